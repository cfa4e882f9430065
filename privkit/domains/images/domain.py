"""The domain of images: checks, constant guesses, and scores of guesses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
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
        """The domain of these images.

        Raises:
            DataError: if they are no images.
        """
        check_images(x)
        _, c, h, w = x.shape
        return cls(shape=(c, h, w))

    def check(self, x: Tensor) -> None:
        """Refuse tensors other than float32 [N, *shape] in [0, 1]; see `Domain.check`."""
        check_images(x)
        if x.shape[1:] != self.shape:
            raise DataError(f"images must be {list(self.shape)} each, got {list(x.shape[1:])}; resize them")

    def zeros(self, count: int) -> Tensor:
        """Black images."""
        return torch.zeros(count, *self.shape)

    def random(self, count: int, generator: Generator) -> Tensor:
        """Uniform pixels."""
        return torch.rand(count, *self.shape, generator=generator)

    def extremes(self, generator: Generator) -> Tensor:
        """Black, white, fine and coarse checkerboards with their negatives, a step, gray and black-and-white noise.

        >>> Images(shape=(1, 4, 4)).extremes(Generator().manual_seed(0)).flatten(1).mean(1)[:6].tolist()
        [0.0, 1.0, 0.5, 0.5, 0.5, 0.5]
        """
        _, h, w = self.shape
        y, x = torch.arange(h).unsqueeze(1), torch.arange(w)
        fine, coarse = ((y // side + x // side) % 2 for side in (1, max(1, h // 4)))
        black = y * 0 + x * 0
        drawn = [black, black + 1, fine, 1 - fine, coarse, 1 - coarse, black + 2 * x // w]
        noise = torch.rand(2, *self.shape, generator=generator)
        noise[1] = (noise[1] < 0.5).float()
        return torch.cat([torch.stack(drawn).float().unsqueeze(1).expand(-1, *self.shape), noise])

    def fit(self, x: Tensor, given: Domain) -> Tensor:
        """Area resampling, grey by mean or repetition; see `Domain.fit`.

        >>> Images(shape=(1, 4, 4)).fit(torch.rand(2, 3, 8, 8), Images(shape=(3, 8, 8))).shape
        torch.Size([2, 1, 4, 4])
        """
        if not isinstance(given, Images):
            raise UsageError(f"{given.records} cannot stand in for images; name auxiliary data of images")
        channels, height, width = self.shape
        if x.shape[1] != channels:
            x = x.mean(1, keepdim=True).expand(-1, channels, -1, -1)
        if x.shape[2:] != (height, width):
            x = interpolate(x, size=(height, width), mode="area")
        return x.contiguous().clamp(0, 1)

    def fingerprints(self, x: Tensor) -> list[bytes]:
        """One hash an image, of pixels in 256 steps, so that two decodings of one picture are equal."""
        pixels = x.cpu().mul(255).round().to(torch.uint8).contiguous().numpy()
        return [hashlib.sha256(image.tobytes()).digest() for image in pixels]

    def warning(self, x: Tensor) -> str:
        """Whether pictures look clipped; see `Domain.warning`."""
        return clipped(x)

    def guesses(self, auxiliary: Tensor) -> dict[str, Tensor]:
        """Mid-grey, and the mean image: the best constant guess under MSE."""
        return {"mid_grey": torch.full_like(auxiliary[0], 0.5), "mean_image": auxiliary.mean(0)}

    def scores(self, truth: Tensor, guess: Tensor) -> dict[str, Values]:
        """The image metrics, guess n against image n; images too small for SSIM get none.

        >>> black = torch.zeros(1, 1, 4, 4)
        >>> {name: round(values.item(), 2) for name, values in Images.of(black).scores(black, black + 0.5).items()}
        {'mse': 0.25, 'psnr': 6.02}
        """
        return image_scores(truth.cpu().numpy(), guess.cpu().numpy(), data_range=1.0)

    def distances(self, guess: Tensor, truth: Tensor) -> Values:
        """The MSE of each guess at every image; see `Domain.distances`.

        >>> grey = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1)
        >>> Images.of(grey).distances(grey[:1], grey)
        array([[0.  , 0.25, 1.  ]])
        """
        a, b = (images.cpu().flatten(1).double().numpy() for images in (guess, truth))
        squares = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
        return np.asarray(squares.clip(0) / a.shape[1])

    def shown(self, x: Tensor) -> list[str]:
        """Nothing: images are shown as pictures."""
        return []
