"""The base class of decoders (networks from released data to images), and the layout of a release as a picture."""

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
    """A network that maps a release of N records to guesses at the records; for images, [N, C, H, W].

    A release holds tokens [N, T, D], feature maps [N, D, h, w] or vectors [N, D], one row for each record. `layout`
    says how the decoder reads a row: as patches of the image, or as a picture. If `whole_message` is set, the decoder
    reads all rows of a message together, since a shuffle may have mixed them; otherwise it reads each row alone.
    """

    layout: ClassVar[type[Geometry] | type[MapGeometry]]
    width: int
    whole_message: ClassVar[bool] = False
    rate_times_width: ClassVar[float] = 0.4  # tuned at width 96 (docs/results/shuffling.md); so 7.8e-4 at width 512

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        return cls(cls.layout.of(release, image_shape), width=width, depth=depth)

    @property
    def learning_rate(self) -> float:
        """The default peak of the learning rate."""
        return self.rate_times_width / self.width

    @abstractmethod
    def forward(self, release: Tensor) -> Tensor:
        """Decode a release without clamping, so that the loss sees errors outside [0, 1]."""

    def guess(self, release: Tensor) -> Tensor:
        """Guess the records from which a release was computed: the network's output, clamped to [0, 1]."""
        images: Tensor = self(release)
        return images.float().clamp(0, 1)

    def error_sums(self, release: Tensor, truth: Tensor) -> tuple[float, float]:
        """Sum the squared errors over all pixels: once for the guess, and once for the unclamped output."""
        drawn = self(release).float()
        return (drawn.clamp(0, 1) - truth).square().sum().item(), (drawn - truth).square().sum().item()

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        """The training loss, a scalar: mean squared error against images [N, C, H, W] in [0, 1], unless overridden."""
        return nn.functional.mse_loss(self(release).float(), truth)


@dataclass(frozen=True, kw_only=True)
class MapGeometry:
    """The layout of a release as a picture: a grid of positions with a vector of features at each."""

    channels: int  # features at each position
    rows: int  # positions from top to bottom; 1 for vectors
    columns: int  # positions from left to right; 1 for vectors
    image_shape: tuple[int, int, int]  # (C, H, W)

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int]) -> MapGeometry:
        """Read the layout of tokens [N, T, D] (with or without class token), maps [N, D, h, w] or vectors [N, D].

        Raises `NotApplicable` if tokens form no square grid, or the release has another number of axes.
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
    """Arrange a release as feature maps [N, D, h, w]; tokens are laid out row by row, without a class token."""
    if release.ndim == 3:
        return patch_tokens(release).transpose(1, 2).reshape(len(release), -1, geometry.rows, geometry.columns)
    return release.reshape(len(release), geometry.channels, geometry.rows, geometry.columns)


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Build a 3×3 convolution, group normalization (since batches are small and messages differ) and GELU."""
    groups = max(g for g in range(1, 9) if outputs % g == 0)
    first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
    return nn.Sequential(first, nn.GroupNorm(groups, outputs), nn.GELU())


class Painter(nn.Module):
    """Turns a release into a picture of the image's size, [N, channels, H, W], by one linear map at each position.

    The map gives a square of pixels for each position. The squares may leave out some rows and columns of the image's
    pixels. If along each axis these are fewer than half the positions, zeros are added around the picture, as after
    convolutions without padding. Otherwise the picture is resized.
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
