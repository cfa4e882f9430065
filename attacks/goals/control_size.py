"""How large the controls of an attack that reconstructs are: how many records, how many pixels, how many steps."""

from __future__ import annotations

from torch import Tensor, nn

_PLAYED = 100
"""Records that play the victim, at most."""
_OF_VECTORS, _LONGER = 8, 4
"""Pixels a side of images that are sent as vectors, and factor of the training steps: a decoder must learn their
places."""


def played_by(records: int, batch_size: int) -> int:
    """Number of the controls' records that act as victims; the others are the attack's own.

    >>> played_by(1_000, 50), played_by(200, 50)
    (100, 50)
    """
    return min(records // 4, max(_PLAYED, batch_size)) // batch_size * batch_size


def small(records: Tensor, side: int | None, release: Tensor) -> tuple[Tensor, int]:
    """Images of at most `side` pixels a side, smaller ones behind a vector; and the factor of the training steps.

    Other records, and images without a limit, stay as they are.

    >>> import torch
    >>> images, longer = small(torch.ones(2, 1, 28, 28), None, torch.zeros(5, 64))
    >>> images.shape, longer
    (torch.Size([2, 1, 8, 8]), 4)
    """
    if records.ndim == 4 and release.ndim == 2:
        return _shrunk(records, min(side or _OF_VECTORS, _OF_VECTORS)), _LONGER
    return records if side is None else _shrunk(records, side), 1


def _shrunk(images: Tensor, side: int) -> Tensor:
    """Area averages, so that controls are fast."""
    height, width = (min(side, pixels) for pixels in images.shape[2:])
    return nn.functional.adaptive_avg_pool2d(images, (height, width))
