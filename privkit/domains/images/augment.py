"""Augmentation of training images on their device."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from privkit.domains.images.color import jitter
from privkit.errors import UsageError, unknown

Augmentation = Literal["none", "crop", "crop_flip", "histology"]
_AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)


def augment(images: Tensor, kind: str, generator: Generator) -> Tensor:
    """Shift every image at random; some kinds also mirror it with probability one half or change its colors.

    Args:
        images: float [N, C, H, W] or [M, B, C, H, W].
        kind: "none", "crop" (shifts of up to an eighth of each side, filled with zeros: a random crop after padding),
            "crop_flip" (mirrored, too) or "histology" (turned upside down and given random colors, too).
        generator: the only source of randomness, on the device of `images`.

    Returns:
        Images of the same shape; with "none" the same tensor, and nothing is drawn.

    Raises:
        UsageError: for another kind, or for "histology" of images without colors.

    Source: crop and flip as in He et al. 2016 §4.2 (four pixels of 32); "histology" as in Mabuchi and Ishikawa, Patch
    SplitNN, §4.2 on PCam.

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
    if kind == "histology":
        check_colors(kind, c)
        images = jitter(images.reshape(-1, c, h, w), generator)
    flat = images.reshape(-1, c, h * w)
    rows = _shifted(len(flat), h, generator)
    columns = _shifted(len(flat), w, generator)
    if kind in ("crop_flip", "histology"):
        columns = _mirrored(columns, generator)
    if kind == "histology":
        rows = _mirrored(rows, generator)
    inside = ((rows >= 0) & (rows < h)).unsqueeze(2) & ((columns >= 0) & (columns < w)).unsqueeze(1)
    source = rows.clamp(0, h - 1).unsqueeze(2) * w + columns.clamp(0, w - 1).unsqueeze(1)
    moved = flat.gather(2, source.view(-1, 1, h * w).expand(-1, c, -1))
    return torch.where(inside.view(-1, 1, h * w), moved, 0).view(*batch, c, h, w)


def check_colors(kind: str, channels: int) -> None:
    """Refuse images without colors if an augmentation changes colors.

    Raises:
        UsageError: for "histology" of images that have not three channels.
    """
    if kind == "histology" and channels != 3:
        raise UsageError(
            f"augment=histology changes colors, and these images have {channels} "
            f"channel{'s' if channels > 1 else ''}; use crop_flip"
        )


def _mirrored(pixels: Tensor, generator: Generator) -> Tensor:
    """Pixel numbers [n, side], backwards with odds of one half."""
    flip = torch.rand(len(pixels), 1, generator=generator, device=generator.device) < 0.5
    return torch.where(flip, pixels.flip(1), pixels)


def _shifted(n: int, side: int, generator: Generator) -> Tensor:
    """Pixel numbers of n sides, each shifted by up to an eighth: int64 [n, side]; those outside are other pixels."""
    most = side // 8
    shift = torch.randint(-most, most + 1, (n, 1), generator=generator, device=generator.device)
    return shift + torch.arange(side, device=generator.device)
