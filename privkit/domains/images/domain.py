"""The domain of images: checks, constant guesses, and scores of guesses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from privkit.attacks.scores.image import Values, image_scores
from privkit.domains.domain import Domain
from privkit.domains.images.checks import check_images, clipped
from privkit.errors import DataError, UsageError
from privkit.shared.measures import IMAGES, Records


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images, float32 [N, C, H, W] in [0, 1]. See `Domain`.

    Attributes:
        shape: (C, H, W).
    """

    kind: ClassVar[Records] = IMAGES
    name: ClassVar[str] = IMAGES.name
    records: ClassVar[str] = IMAGES.noun

    shape: tuple[int, int, int]

    @classmethod
    def of(cls, x: Tensor) -> Images:
        """The domain of these images; a `DataError` if they are none."""
        check_images(x)
        _, c, h, w = x.shape
        return cls(shape=(c, h, w))

    def check(self, x: Tensor) -> None:
        check_images(x)
        if x.shape[1:] != self.shape:
            raise DataError(f"images must be {list(self.shape)} each, got {list(x.shape[1:])}; resize them")

    def zeros(self, count: int) -> Tensor:
        return torch.zeros(count, *self.shape)

    def random(self, count: int, generator: Generator) -> Tensor:
        return torch.rand(count, *self.shape, generator=generator)

    def extremes(self, generator: Generator) -> Tensor:
        """Black, white, fine and coarse checkerboards with their negatives, a step, gray and black-and-white noise."""
        _, h, w = self.shape
        y, x = torch.arange(h).unsqueeze(1), torch.arange(w)
        fine, coarse = ((y // side + x // side) % 2 for side in (1, max(1, h // 4)))
        black = y * 0 + x * 0
        drawn = [black, black + 1, fine, 1 - fine, coarse, 1 - coarse, black + 2 * x // w]
        noise = torch.rand(2, *self.shape, generator=generator)
        noise[1] = (noise[1] < 0.5).float()
        return torch.cat([torch.stack(drawn).float().unsqueeze(1).expand(-1, *self.shape), noise])

    def fit(self, x: Tensor, given: Domain) -> Tensor:
        """Area resampling, grey by mean or repetition."""
        if not isinstance(given, Images):
            raise UsageError(f"{given.records} cannot stand in for images; name auxiliary data of images")
        channels, height, width = self.shape
        if x.shape[1] != channels:
            x = x.mean(1, keepdim=True).expand(-1, channels, -1, -1)
        if x.shape[2:] != (height, width):
            x = interpolate(x, size=(height, width), mode="area")
        return x.contiguous().clamp(0, 1)

    def fingerprints(self, x: Tensor) -> list[bytes]:
        pixels = x.cpu().mul(255).round().to(torch.uint8).contiguous().numpy()
        return [hashlib.sha256(image.tobytes()).digest() for image in pixels]

    def warning(self, x: Tensor) -> str:
        return clipped(x)

    def guesses(self, auxiliary: Tensor) -> dict[str, Tensor]:
        return {"mid_grey": torch.full_like(auxiliary[0], 0.5), "mean_image": auxiliary.mean(0)}

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, Values]:
        """The image metrics, guess n against image n; images too small for SSIM get none."""
        return image_scores(truth.cpu().numpy(), guess.cpu().numpy(), data_range=1.0)

    def shown(self, x: Tensor) -> list[str]:
        return []
