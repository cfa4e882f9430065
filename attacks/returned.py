"""The gradients returned across the cut, and the gradients of weights computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privkit.attacks.base import NotApplicable, View

_AT_ONCE = 256  # examples whose weight gradients are computed at once


def returned_gradients(attack: str, views: Sequence[View]) -> tuple[Tensor, Tensor, Tensor]:
    """Collect the cut-layer gradients of all views in one matrix, float [N, F]; views without gradients are left out.

    Also returns two tensors, int64 [N]: the 0-based number of each gradient's view in `views`, and the index of its
    released row, counted through all views, also those without gradients. Raises `NotApplicable` if no view holds a
    gradient, or if the gradients differ in size.
    """
    starts = torch.tensor([0, *(len(view.smashed) for view in views)]).cumsum(0).tolist()
    parts, rounds, examples = [], [], []
    for number, (view, start) in enumerate(zip(views, starts, strict=False)):
        if view.cut_gradient is not None:
            part = view.cut_gradient.detach().flatten(1).float()
            parts.append(part)
            rounds.append(torch.full((len(part),), number, device=part.device))
            examples.append(start + torch.arange(len(part), device=part.device))
    if not parts:
        raise NotApplicable(
            f"{attack} reads the gradient that comes back across the cut, but no view holds one: record training "
            f"rounds of a protocol that sends it, with a lower segment that learns"
        )
    if len({part.shape[1] for part in parts}) > 1:
        raise NotApplicable(f"{attack} needs gradients of one size: attack views of different forms one by one")
    return torch.cat(parts), torch.cat(rounds), torch.cat(examples)


def weight_gradients(
    lower: nn.Module, images: Tensor, arrived: Tensor, state: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Compute the gradient of the lower segment's P weights for each example, float [N, P], in evaluation mode.

    `arrived` [N, F] is the gradient that each example's output received. `state` holds the weights at that time, or is
    None for the present weights.
    """
    lower = deepcopy(lower).eval().to(images.device)
    if state is not None:
        lower.load_state_dict(state)
    weights = {name: weight.detach() for name, weight in lower.named_parameters()}
    if not weights:
        raise NotApplicable("the lower segment has no weights, so there is no gradient of weights to read")

    def inner(state: dict[str, Tensor], image: Tensor, back: Tensor) -> Tensor:
        released: Tensor = functional_call(lower, state, (image.unsqueeze(0),))
        return (released.flatten() * back).sum()

    each = vmap(grad(inner), (None, 0, 0), chunk_size=_AT_ONCE)(weights, images, arrived.to(images.device))
    return torch.cat([part.flatten(1) for part in each.values()], 1).to(arrived.device)
