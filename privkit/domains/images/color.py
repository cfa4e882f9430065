"""Random colors of training images: brightness, contrast, saturation and hue, each image by its own draws."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

_SPREAD = 0.2
"""Factors of brightness, contrast and saturation lie within 1 ± this; the hue turns by at most this share."""
_GREY = 0.1
"""Odds that an image loses its colors."""
_LUMINANCE = (0.299, 0.587, 0.114)


def jitter(images: Tensor, generator: Generator) -> Tensor:
    """Change brightness, contrast, saturation and hue of every image, in this order, and make some of them grey.

    Args:
        images: float [N, 3, H, W] in [0, 1].
        generator: the only source of randomness, on the device of `images`.

    Returns:
        Images of the same shape in [0, 1].

    Raises:
        ValueError: if the images do not have three channels.

    Source: torchvision's ColorJitter and RandomGrayscale with the settings of Mabuchi and Ishikawa, §4.2. ColorJitter
    also draws the order of the four changes.
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
    """Turn the hue, and keep saturation and value.

    Args:
        images: [N, 3, H, W] in [0, 1].
        hue: [N, 1, 1], shares of the color wheel.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    >>> turned(red, torch.tensor([[[1 / 3]]])).flatten().round(decimals=3)
    tensor([0., 1., 0.])
    """
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
    """[N, 3, H, W] -> [N, 1, H, W]."""
    weights = images.new_tensor(_LUMINANCE).view(3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def _blend(images: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """`share` of the images and the rest of `other`, in [0, 1]."""
    return (share * images + (1 - share) * other).clamp(0, 1)
