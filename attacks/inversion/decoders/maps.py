"""Maps: any release as a picture of features, for decoders made of convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from torch import Tensor, nn
from torch.nn import functional

from privkit.attacks.base import NotApplicable
from privkit.attacks.patches import class_tokens, patch_tokens


@dataclass(frozen=True, kw_only=True)
class MapGeometry:
    """The picture that a release makes."""

    channels: int  # features a cell
    rows: int  # cells from top to bottom; 1 for vectors, as are the columns
    columns: int  # cells from left to right
    image_shape: tuple[int, int, int]  # (C, H, W)

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int]) -> MapGeometry:
        """Read the geometry off tokens [N, T, D] or [N, T + 1, D] (class token), maps [N, D, h, w] or vectors [N, D].

        Raises:
            NotApplicable: if the tokens are no square grid, or the release has another number of axes.

        >>> import torch
        >>> [MapGeometry.of(torch.zeros(*shape), (1, 28, 28)).rows for shape in ((2, 16, 96), (2, 96))]
        [4, 1]
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
            raise NotApplicable(
                f"a decoder of maps needs tokens on a square grid, but {release.shape[1]} tokens are none"
            )
        return cls(channels=release.shape[2], rows=side, columns=side, image_shape=image_shape)


def as_maps(release: Tensor, geometry: MapGeometry) -> Tensor:
    """Feature maps [N, D, h, w] of a release; tokens of patches are laid out row by row, a class token is left out."""
    if release.ndim == 3:
        return patch_tokens(release).transpose(1, 2).reshape(len(release), -1, geometry.rows, geometry.columns)
    return release.reshape(len(release), geometry.channels, geometry.rows, geometry.columns)


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """3×3 convolution, group normalisation (batches are small and messages differ), GELU."""
    groups = max(g for g in range(1, 9) if outputs % g == 0)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.GroupNorm(groups, outputs), nn.GELU()
    )


class Painter(nn.Module):
    """Paint every cell of a release by one linear map, into features [N, channels, H, W] as large as the image.

    Where cells are no whole patches, but lack less than half of their number of pixels, the picture is framed by zeros:
    so convolutions without padding release. Otherwise it is resized.

    >>> import torch
    >>> Painter(MapGeometry.of(torch.zeros(2, 8, 12, 12), (1, 28, 28)), 8).frame  # left, right, top, bottom
    (2, 2, 2, 2)
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
        return (
            picture if picture.shape[2:] == self.size else functional.interpolate(picture, self.size, mode="bilinear")
        )
