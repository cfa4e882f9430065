"""A lower segment known to the adversary: frozen, compared with the release, and mixed as the clients mix."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.inversion.mixed_releases import by_cell
from privkit.torch_utils.seeded import seeded

_FRESH_STD = 0.02  # of parameters that no module knows how to draw: class tokens, position embeddings


def frozen(lower: nn.Module, device: torch.device) -> nn.Module:
    """A copy in evaluation mode whose weights take no gradient; the original is left as it was."""
    return deepcopy(lower).to(device).eval().requires_grad_(False)


def fresh(lower: nn.Module, seed: int) -> nn.Module:
    """The architecture of a lower segment with weights drawn anew from a seed; all original numbers are replaced.

    >>> torch.equal(fresh(nn.Linear(2, 2), 0).weight, fresh(nn.Linear(2, 2), 0).weight)
    True
    """
    clone = deepcopy(lower).cpu().eval()
    with torch.no_grad(), seeded(torch.device("cpu"), seed):
        for parameter in clone.parameters():
            parameter.normal_(std=_FRESH_STD)
        for part in clone.modules():  # their own ways to draw their weights, by torch's convention
            for name in ("reset_parameters", "_reset_parameters"):
                if callable(getattr(part, name, None)):
                    getattr(part, name)()
                    break
    return clone


def mixed_release(smashed: Tensor, mixed: int, share: Tensor | None) -> Tensor:
    """The release [N, ...] of k = `mixed` images under public weights, from the smashed data [N·k, ...] of each.

    The shares are [N, k, T], or None for k = 1.

    Source: the mixing of CutMix and Mixup at the cut, Oh et al., DP-CutMixSL, Eq. 6-7.

    >>> shares = torch.tensor([[[1.0, 0.5], [0.0, 0.5]]])
    >>> mixed_release(torch.tensor([[[1.0], [1.0]], [[5.0], [5.0]]]), 2, shares).tolist()
    [[[1.0], [3.0]]]
    """
    if share is None:
        return smashed
    members = smashed.unflatten(0, (-1, mixed))
    weights = by_cell(share, smashed)
    if weights.shape[2] == 1:
        weights = weights.reshape(*weights.shape[:2], *[1] * (smashed.ndim - 1))
    else:
        weights = weights.unsqueeze(3) if smashed.ndim == 3 else weights.unflatten(2, (1, *smashed.shape[2:]))
    mixture: Tensor = (members * weights).sum(1)
    return mixture


def check_release(lower: nn.Module, view: View, image_shape: tuple[int, int, int]) -> None:
    """Refuse segments that read no images, and releases that are not their plain output (spectra, other cuts)."""
    try:
        with torch.no_grad():
            given = lower(torch.zeros(1, *image_shape, device=view.smashed.device)).shape[1:]
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        raise NotApplicable(
            f"the lower segment cannot read images of {list(image_shape)} ({error}): hand over one that takes the "
            "images themselves, with whatever prepares them as its first layer"
        ) from error
    if given != view.smashed.shape[1:]:
        if not view.whole:
            raise NotApplicable(
                f"the lower segment gives {given[0]} tokens an image, of which {view.smashed.shape[1]} were released, "
                "and nobody knows which: take black_box, which reads any number of tokens"
            )
        raise NotApplicable(
            f"the lower segment gives {list(given)} an image, but {list(view.smashed.shape[1:])} was released: "
            "a defense that changes the form of the release must be part of the lower segment that is handed over"
        )
