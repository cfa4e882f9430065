"""The domain of images: checks, constant guesses, and scores of guesses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from privkit.attacks.scores.image import Values, image_scores
from privkit.constraints import Count
from privkit.domains.domain import Domain, repeated_prints
from privkit.errors import DataError, UsageError
from privkit.shared.measures import IMAGES, Records

_CHANNELS = (1, 3, 4)
_SATURATED = 0.5  # share of pure-white pixels above which images look clipped
_EXACT = 1e-3  # largest distance of an 8-bit pixel from a whole number of 255ths
_DARK = 0.25
"""If all pixels are darker than this, images use little of [0, 1], as 12-bit values in 16-bit files do."""


def scale_of(images: NDArray[np.generic]) -> float:
    """The divisor that brings a user's array to [0, 1]: 255 for uint8, 65535 for uint16, 1 for booleans and floats.
    Raises `DataError` for other number types, and for shapes other than [N, H, W] and [N, H, W, C].
    """
    scales = {"uint8": 255.0, "uint16": 65535.0, "bool": 1.0, "float16": 1.0, "float32": 1.0, "float64": 1.0}
    if images.dtype.name not in scales:
        raise DataError(
            f"images of {images.dtype} have no known scale; give uint8 (0 to 255), uint16 (0 to 65535) or floats in "
            "[0, 1]"
        )
    channels_first = images.ndim == 4 and images.shape[1] in _CHANNELS and images.shape[3] not in _CHANNELS
    if images.ndim not in (3, 4) or channels_first:
        cure = "; move the channels last with images.transpose(0, 2, 3, 1)" if channels_first else ""
        raise DataError(f"an array of images is [N, H, W] or [N, H, W, C], got {list(images.shape)}{cure}")
    return scales[images.dtype.name]


def check_array(images: NDArray[np.generic]) -> NDArray[np.generic]:
    """Check a user's images [N, H, W], [N, H, W, C] or [N, C, H, W], and return them with the channels on the last
    axis. Raises `DataError` for shapes, number types and ranges that are not allowed.
    """
    if images.ndim == 4 and images.shape[1] in _CHANNELS and images.shape[3] not in _CHANNELS:
        images = images.transpose(0, 2, 3, 1)
    scale_of(images)
    if images.ndim == 4 and images.shape[3] not in _CHANNELS:
        raise DataError(
            f"images have 1, 3 or 4 channels, got {list(images.shape)}; an array of images is [N, H, W], [N, H, W, C] "
            "or [N, C, H, W]"
        )
    if images.dtype.kind == "f" and len(images):
        flat = torch.from_numpy(np.array([images.min(), images.max()], dtype=np.float32))
        check_images(flat.view(2, 1, 1, 1))
    return images


def check_images(x: Tensor) -> None:
    """Raise `DataError` for tensors other than float32 [N, C, H, W] in [0, 1], with advice on common mistakes."""
    shape = list(x.shape)
    if x.ndim == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS and x.shape[1] == x.shape[2]:
        raise DataError(f"images must be [N, C, H, W], got {shape}; use x.permute(0, 3, 1, 2)")
    if x.ndim != 4 or x.dtype != torch.float32:
        raise DataError(f"images must be float32 [N, C, H, W], got {x.dtype} {shape}")
    if not len(x):
        return
    low, high = x.min().item(), x.max().item()
    if low != low or high != high:
        raise DataError("images must lie in [0, 1], got NaN; replace or leave out those pixels")
    if low < 0 or high > 1:
        cure = (
            "divide them by 255" if low >= 0 and 1 < high <= 255 else "rescale them, such as by (x - min) / (max - min)"
        )
        raise DataError(f"images must lie in [0, 1], got {low:g} to {high:g}; {cure}")


def clipping_warning(x: Tensor) -> str:
    """A warning if images look clipped at white, or use only a small part of [0, 1]; otherwise "". Such images have
    large constant areas, which are easy to guess, so every reconstruction would look close.
    """
    if not len(x):
        return ""
    white, brightest = (x == 1).float().mean().item(), x.max().item()
    if white > _SATURATED:
        return (
            f"{100 * white:.0f} % of the pixels are pure white, so that every attack looks good; check that the "
            "pictures were not clipped"
        )
    if brightest < _DARK:
        return (
            f"the brightest pixel is {brightest:.3f} of the scale, so that every attack looks good; rescale the "
            "pictures (12-bit values in 16-bit files must be multiplied by 16)"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Implements `Domain` for images: N images are float32 [N, C, H, W] with pixels in [0, 1].

    Attributes:
        shape: numbers of channels, rows and columns of an image, (C, H, W).
    """

    kind: ClassVar[Records] = IMAGES
    name: ClassVar[str] = IMAGES.name
    records: ClassVar[str] = IMAGES.noun

    shape: tuple[Count, Count, Count]

    @classmethod
    def of(cls, x: Tensor) -> Images:
        """Make the domain of images with the shape of `x`, [N, C, H, W]; raises `DataError` if `x` is not images."""
        check_images(x)
        _, c, h, w = x.shape
        return cls(shape=(c, h, w))

    def check(self, x: Tensor) -> None:
        check_images(x)
        if x.shape[1:] != self.shape:
            turned = (*x.shape[2:], x.shape[1]) == self.shape
            cure = "a shape is [C, H, W], channels first" if turned else "resize them"
            raise DataError(f"images must be {list(self.shape)} each, got {list(x.shape[1:])}; {cure}")

    def zeros(self, count: int) -> Tensor:
        return torch.zeros(count, *self.shape)

    def random(self, count: int, generator: Generator) -> Tensor:
        return torch.rand(count, *self.shape, generator=generator)

    def extremes(self, generator: Generator) -> Tensor:
        _, h, w = self.shape
        y, x = torch.arange(h).unsqueeze(1), torch.arange(w)
        fine, coarse = ((y // side + x // side) % 2 for side in (1, max(1, h // 4)))
        black = y * 0 + x * 0
        drawn = [black, black + 1, fine, 1 - fine, coarse, 1 - coarse, black + 2 * x // w]
        noise = torch.rand(2, *self.shape, generator=generator)
        noise[1] = (noise[1] < 0.5).float()
        return torch.cat([torch.stack(drawn).float().unsqueeze(1).expand(-1, *self.shape), noise])

    def fit(self, x: Tensor, given: Domain) -> Tensor:
        if not isinstance(given, Images):
            raise UsageError(f"{given.records} cannot stand in for images; name auxiliary data of images")
        channels, height, width = self.shape
        if x.shape[1] != channels:
            x = x.mean(1, keepdim=True).expand(-1, channels, -1, -1)
        if x.shape[2:] != (height, width):
            x = interpolate(x, size=(height, width), mode="area")
        return x.contiguous().clamp(0, 1)

    def fingerprints(self, x: Tensor) -> list[bytes]:
        return _prints(x, _steps(x))

    def repeats(self, x: Tensor, known: Tensor, given: Domain) -> NDArray[np.bool_]:
        steps = _steps(known)
        return repeated_prints(_prints(x, steps), _prints(known, steps))

    def warning(self, x: Tensor) -> str:
        return clipping_warning(x)

    def guesses(self, auxiliary: Tensor) -> dict[str, Tensor]:
        return {"mid_grey": torch.full_like(auxiliary[0], 0.5), "mean_image": auxiliary.mean(0)}

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, Values]:
        return image_scores(truth.cpu().numpy(), guess.cpu().numpy(), data_range=1.0)

    def distances(self, guess: Tensor, truth: Tensor) -> Values:
        """Compute the mean squared error over pixels between each of G guesses, [G, C, H, W], and each of N true
        images, [N, C, H, W]: float [G, N].
        """
        a, b = (images.cpu().flatten(1).double().numpy() for images in (guess, truth))
        squares = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
        return np.asarray(squares.clip(0) / a.shape[1])

    def shown(self, x: Tensor) -> list[str]:
        return []


def _steps(x: Tensor) -> int:
    """The number of brightness steps by which images are told apart: those of 8 bits if all images have only these,
    else those of 16 bits.
    """
    pixels = 255 * x
    return 255 if bool(((pixels - pixels.round()).abs() < _EXACT).all()) else 65535


def _prints(x: Tensor, steps: int) -> list[bytes]:
    pixels = (x.cpu() * steps).round().numpy().astype(np.uint8 if steps == 255 else np.uint16)
    return [hashlib.sha256(np.ascontiguousarray(image).tobytes()).digest() for image in pixels]
