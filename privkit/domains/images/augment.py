"""Augmentation of training images on their device: shifts, mirrors and random colors."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from privkit.errors import UsageError, unknown

Augmentation = Literal["none", "crop", "crop_flip", "histology"]
_AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)


def augment(images: Tensor, kind: str, generator: Generator) -> Tensor:
    """Augment every image with its own random shift; some kinds also mirror it, or change its colors.

    Args:
        images: images, float [N, C, H, W], or [n, B, C, H, W] for n clients with batches of B images.
        kind: "none" (unchanged images), "crop" (shifts of up to an eighth of each side, filled with zeros: a random
            crop after padding), "crop_flip" (also mirrored left-right with probability ½) or "histology" (also mirrored
            top-bottom with probability ½, and given random colors).

    Source: crop and flip as in He et al. 2016 §4.2 (four pixels of 32); "histology" as in Mabuchi and Ishikawa, Patch
    SplitNN, §4.2 on PCam.
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
    """Raise `UsageError` if this kind of augmentation changes colors and images do not have three channels."""
    if kind == "histology" and channels != 3:
        raise UsageError(
            f"augment=histology changes colors, and these images have {channels} "
            f"channel{'s' if channels > 1 else ''}; use crop_flip"
        )


def _mirrored(pixels: Tensor, generator: Generator) -> Tensor:
    """Reverse each row of pixel indices [n, side] with probability one half."""
    flip = torch.rand(len(pixels), 1, generator=generator, device=generator.device) < 0.5
    return torch.where(flip, pixels.flip(1), pixels)


def _shifted(n: int, side: int, generator: Generator) -> Tensor:
    """Draw pixel indices, int64 [n, side], each row shifted by up to side/8; indices outside 0..side−1 mean zeros."""
    most = side // 8
    shift = torch.randint(-most, most + 1, (n, 1), generator=generator, device=generator.device)
    return shift + torch.arange(side, device=generator.device)


_SPREAD = 0.2  # factors of brightness, contrast and saturation lie within 1 ± this; the hue turns by at most this share
_GREY = 0.1  # probability that an image loses its colors
_LUMINANCE = (0.299, 0.587, 0.114)


def jitter(images: Tensor, generator: Generator) -> Tensor:
    """Change brightness, contrast, saturation and hue, in this order, of every image, float [N, 3, H, W] in [0, 1].
    Each image becomes grey with probability 0.1.

    Source: torchvision's ColorJitter and RandomGrayscale with the settings of Mabuchi and Ishikawa, §4.2. The original
    ColorJitter also draws the order of the four changes.
    """
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"colors change in images [N, 3, H, W], got shape {list(images.shape)}; use crop_flip")
    n, device = len(images), images.device
    draws = 2 * torch.rand(4, n, 1, 1, 1, generator=generator, device=device) - 1
    grey = torch.rand(n, 1, 1, 1, generator=generator, device=device) < _GREY
    brightness, contrast, saturation = 1 + _SPREAD * draws[:3]
    images = (images * brightness).clamp(0, 1)
    images = _blend(images, _luminance(images).mean((1, 2, 3), keepdim=True), contrast)
    images = _blend(images, _luminance(images), saturation)
    images = turned(images, _SPREAD * draws[3].squeeze(1))
    return torch.where(grey, _luminance(images), images)


def turned(images: Tensor, hue: Tensor) -> Tensor:
    """Turn the hue of images [N, 3, H, W] in [0, 1] by `hue`, [N, 1, 1], in full turns of the color wheel."""
    red, green, blue = images.unbind(1)
    value, least = images.amax(1), images.amin(1)
    chroma = value - least
    safe = torch.where(chroma > 0, chroma, 1)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    start = images.new_tensor([5.0, 3.0, 1.0]).view(3, 1, 1)  # where on the wheel red, green and blue fall
    turn = (start + (sixth + 6 * hue).unsqueeze(1)) % 6
    return value.unsqueeze(1) - chroma.unsqueeze(1) * torch.minimum(turn, 4 - turn).clamp(0, 1)


def _luminance(images: Tensor) -> Tensor:
    weights = images.new_tensor(_LUMINANCE).view(3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Compute share · images + (1 − share) · other, clamped to [0, 1]; `share` may exceed 1."""
    return (share * images + (1 - share) * other).clamp(0, 1)
