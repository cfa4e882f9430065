"""Augmentation of training images on their device."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from privkit.errors import unknown

Augmentation = Literal["none", "crop", "crop_flip"]
_AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)


def augment(images: Tensor, kind: str, generator: Generator) -> Tensor:
    """Shift every image at random, and mirror it with odds of one half, in one gather.

    Args:
        images: float [N, C, H, W] or [M, B, C, H, W].
        kind: "none", "crop" (shifts of up to an eighth of each side, zeros coming in: a random crop after padding) or
            "crop_flip" (mirrored, too).
        generator: the only source of randomness, on the device of `images`.

    Returns:
        Images of the same shape; with "none" the very same, and nothing is drawn.

    Raises:
        UsageError: for another kind.

    Source: crop and flip as in He et al. 2016 §4.2 (four pixels of 32).

    >>> image = torch.arange(64.0).view(1, 1, 8, 8)
    >>> augment(image, "crop", torch.Generator().manual_seed(0))[0, 0, :2]
    tensor([[ 0.,  8.,  9., 10., 11., 12., 13., 14.],
            [ 0., 16., 17., 18., 19., 20., 21., 22.]])
    """
    if kind not in _AUGMENTATIONS:
        raise unknown("augmentation", kind, _AUGMENTATIONS)
    if kind == "none":
        return images
    if images.ndim not in (4, 5):
        raise ValueError(f"images must be [N, C, H, W] or [M, B, C, H, W], got shape {list(images.shape)}")
    *batch, c, h, w = images.shape
    flat, device = images.reshape(-1, c, h * w), images.device
    rows = _shifted(len(flat), h, generator)
    columns = _shifted(len(flat), w, generator)
    if kind == "crop_flip":
        flip = torch.rand(len(flat), 1, generator=generator, device=device) < 0.5
        columns = torch.where(flip, columns.flip(1), columns)
    inside = ((rows >= 0) & (rows < h)).unsqueeze(2) & ((columns >= 0) & (columns < w)).unsqueeze(1)
    source = rows.clamp(0, h - 1).unsqueeze(2) * w + columns.clamp(0, w - 1).unsqueeze(1)
    moved = flat.gather(2, source.view(-1, 1, h * w).expand(-1, c, -1))
    return torch.where(inside.view(-1, 1, h * w), moved, 0).view(*batch, c, h, w)


def _shifted(n: int, side: int, generator: Generator) -> Tensor:
    """Pixel numbers of n sides, each shifted by up to an eighth: int64 [n, side]; those outside are other pixels."""
    most = side // 8
    shift = torch.randint(-most, most + 1, (n, 1), generator=generator, device=generator.device)
    return shift + torch.arange(side, device=generator.device)
