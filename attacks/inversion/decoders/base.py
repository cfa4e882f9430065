"""The contract of decoders (networks from releases to images), and the layout of releases as pictures."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar, Self

from torch import Tensor, nn
from torch.nn import functional

from privkit.attacks.base import NotApplicable
from privkit.attacks.patches import Geometry, class_tokens, patch_tokens


class Decoder(nn.Module):
    """A network from released rows to guesses at the images, [N, C, H, W], or at other records.

    A release of N rows holds tokens [N, T, D], feature maps [N, D, h, w] or vectors [N, D]. A decoder reads it by its
    `layout`, as patches of the image or as a picture: each row by itself, or all rows of a `whole_message` (the rows
    that a shuffle mixes) together. The `width` sets the default peak of the learning rate.
    """

    layout: ClassVar[type[Geometry] | type[MapGeometry]]
    width: int
    whole_message: ClassVar[bool] = False
    rate_times_width: ClassVar[float] = 0.4  # swept at width 96 (docs/results/shuffling.md); 7.8e-4 at the MAE's 512

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        return cls(cls.layout.of(release, image_shape), width=width, depth=depth)

    @property
    def learning_rate(self) -> float:
        """Default peak of the learning rate's schedule."""
        return self.rate_times_width / self.width

    @abstractmethod
    def forward(self, release: Tensor) -> Tensor:
        """The decoder's output before it is clamped, so that the loss sees every error."""

    def guess(self, release: Tensor) -> Tensor:
        """The guess at the records behind a release: the output, clamped to [0, 1]."""
        images: Tensor = self(release)
        return images.float().clamp(0, 1)

    def error_sums(self, release: Tensor, truth: Tensor) -> tuple[float, float]:
        """Sums of squared errors over all pixels, for the guess and for the unclamped output."""
        drawn = self(release).float()
        return (drawn.clamp(0, 1) - truth).square().sum().item(), (drawn - truth).square().sum().item()

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        """The training loss, a scalar: mean squared error against images [N, C, H, W] in [0, 1], unless overridden."""
        return nn.functional.mse_loss(self(release).float(), truth)


@dataclass(frozen=True, kw_only=True)
class MapGeometry:
    """The layout of a release as a picture."""

    channels: int  # features per cell
    rows: int  # cells from top to bottom; 1 for vectors, as are the columns
    columns: int  # cells from left to right
    image_shape: tuple[int, int, int]  # (C, H, W)

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int]) -> MapGeometry:
        """Read the layout of a release: tokens [N, T, D] (also a class token), maps [N, D, h, w] or vectors [N, D].

        It raises `NotApplicable` if tokens form no square grid, or the release has another number of axes.
        """
        if release.ndim == 4:
            _, channels, rows, columns = release.shape
            return cls(channels=channels, rows=rows, columns=columns, image_shape=image_shape)
        if release.ndim == 2:
            return cls(channels=release.shape[1], rows=1, columns=1, image_shape=image_shape)
        if release.ndim != 3:
            raise NotApplicable(
                "a decoder of maps needs tokens [N, T, D], maps [N, D, h, w] or vectors [N, D], got "
                f"{list(release.shape)}"
            )
        side = isqrt(release.shape[1])
        if side * side != release.shape[1] - class_tokens(release):
            raise NotApplicable(f"a decoder of maps needs tokens on a square grid, but {release.shape[1]} are none")
        return cls(channels=release.shape[2], rows=side, columns=side, image_shape=image_shape)


def as_maps(release: Tensor, geometry: MapGeometry) -> Tensor:
    """Feature maps [N, D, h, w] of a release; tokens of patches are laid out row by row; a class token is left out."""
    if release.ndim == 3:
        return patch_tokens(release).transpose(1, 2).reshape(len(release), -1, geometry.rows, geometry.columns)
    return release.reshape(len(release), geometry.channels, geometry.rows, geometry.columns)


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """A 3×3 convolution, group normalisation (since batches are small and messages differ), and GELU."""
    groups = max(g for g in range(1, 9) if outputs % g == 0)
    first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
    return nn.Sequential(first, nn.GroupNorm(groups, outputs), nn.GELU())


class Painter(nn.Module):
    """Map the features at each position of a release by one linear map to a picture as large as the image.

    The output for N releases is [N, channels, H, W]. If few pixels per side are missing (fewer than half the number of
    positions), zeros are added around the picture, as after convolutions without padding. If more are missing, the
    picture is resized.
    """

    def __init__(self, geometry: MapGeometry, channels: int) -> None:
        super().__init__()
        self.geometry = geometry
        self.size = height, width = geometry.image_shape[1:]
        self.side = max(1, height // geometry.rows)
        down, across = height - self.side * geometry.rows, width - self.side * geometry.columns
        framed = 0 <= 2 * down < geometry.rows and 0 <= 2 * across < geometry.columns
        self.frame = (across // 2, across - across // 2, down // 2, down - down // 2) if framed else (0, 0, 0, 0)
        if not framed:
            self.side = -(-height // geometry.rows)
        self.paint = nn.Conv2d(geometry.channels, channels * self.side**2, 1)

    def forward(self, release: Tensor) -> Tensor:
        picture = functional.pixel_shuffle(self.paint(as_maps(release, self.geometry)), self.side)
        picture = functional.pad(picture, self.frame)
        if picture.shape[2:] == self.size:
            return picture
        return functional.interpolate(picture, self.size, mode="bilinear")
