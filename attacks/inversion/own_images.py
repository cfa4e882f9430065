"""What an adversary who can run the lower segment learns from images of its own before it attacks."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import QueryResult
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.order.own_tokens import KEEPS_ALL, shares_kept
from privkit.attacks.order.token_reading import rows_a_message

_RIDGE = 1e-3
_TOKENS_IN_ORDER = 1_024  # of a message, up to which an order over all of them is searched
_RIDGE_IMAGES = 2_000  # the dual form solves as many equations


def divided(observation: ImageObservation, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """The adversary's images: those that it learns from, and one round of others that it tries choices on."""
    if observation.auxiliary is None or len(observation.auxiliary) < 2:
        return None, None
    images, batch = observation.auxiliary.to(device), observation.batch_size
    return (
        (images[:-batch], images[-batch:]) if len(images) >= 2 * batch and len(images) - batch >= 2 else (images, None)
    )


@torch.no_grad()
def released_by(lower: nn.Module, images: Tensor) -> Tensor:
    """What images [N, C, H, W] release, undefended."""
    return torch.cat([lower(part) for part in images.split(256)])


def regressed(lower: nn.Module, own: Tensor, smashed: Tensor) -> Tensor:
    """Ridge regression of images on releases, in the dual form: as many unknowns as images."""
    own = own[:_RIDGE_IMAGES]
    seen = released_by(lower, own).flatten(1)
    mean = seen.mean(0)
    away, wanted = seen - mean, (smashed.flatten(1) - mean)
    gram = away @ away.T
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean().clamp_min(1e-12))
    weights = torch.linalg.solve(gram, own.flatten(1) - own.flatten(1).mean(0))
    images: Tensor = ((wanted @ away.T @ weights).view(-1, *own.shape[1:]) + own.mean(0)).clamp(0, 1)
    return images


def mixes_images(lower: nn.Module, images: Tensor, answer: QueryResult) -> bool:
    """Whether tokens of queried images came back in other images' rows, and an order over a message can be searched.

    The lower segment is undefended and gives tokens; the answer has one image a row, in messages of at most 1,024
    tokens.
    """
    size, released = rows_a_message(answer.view), answer.view.smashed
    if size < 2 or size * released.shape[1] > _TOKENS_IN_ORDER:
        return False
    return shares_kept(released_by(lower, images)[answer.members.flatten()], released, size)[0] <= KEEPS_ALL


def found_among(own: Tensor, images: Tensor) -> Tensor:
    """Which of the own images [M, C, H, W] each image [N, C, H, W] is, int64 [N]."""
    drawn = torch.rand(own[0].numel(), generator=Generator().manual_seed(0), dtype=torch.float64).to(own.device)
    keys, wanted = (some.flatten(1).double() @ drawn for some in (own, images))
    return (wanted.unsqueeze(1) - keys).abs().argmin(1)
