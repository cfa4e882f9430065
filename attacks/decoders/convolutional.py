"""The convolutional decoders of the mixing papers: two convolutions with an interpolation, and an autoencoder."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.attacks.decoders.base import Decoder
from privkit.attacks.decoders.maps import MapGeometry, Painter, as_maps, convolution

CONVOLUTIONAL_RATE = 0.003
"""Peak learning rate of the hourglass networks."""


class Convolutions(Decoder):
    """Two 3×3 convolutions with an interpolation to the image's size between them.

    The paper leaves widths and order open; interpolating between the convolutions is the stronger reading, since the
    second one then draws at the image's resolution. It is the weakest of the published attackers.

    Args:
        geometry: the picture that the release makes.
        width: channels between the convolutions; None for 128.
        depth: must be None or 2.

    Source: Oh et al., DP-CutMixSL, §5.A.

    >>> geometry = MapGeometry.of(torch.zeros(2, 16, 96), (1, 28, 28))
    >>> Convolutions(geometry)(torch.zeros(2, 16, 96)).shape
    torch.Size([2, 1, 28, 28])
    """

    layout: ClassVar = MapGeometry

    def __init__(self, geometry: MapGeometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        if depth not in (None, 2):
            raise ValueError(f"this decoder is two convolutions: its depth is 2, got {depth}")
        self.width, self.geometry = width or 128, geometry
        self.first = nn.Conv2d(geometry.channels, self.width, 3, padding=1)
        self.second = nn.Conv2d(self.width, geometry.image_shape[0], 3, padding=1)

    def forward(self, release: Tensor) -> Tensor:
        """Images [N, C, H, W], centred on 0.5 and not clamped."""
        hidden = self.first(as_maps(release, self.geometry))
        hidden = functional.interpolate(hidden, self.geometry.image_shape[1:], mode="bilinear")
        return self.second(functional.relu(hidden)) + 0.5


class Hourglass(nn.Module):
    """Convolutions that halve a picture `depth` times and double it again, with or without skips between equal sizes.

    Args:
        inputs: channels of the picture.
        outputs: channels that come out.
        width: channels at full size; doubled with every halving, up to eight times.
        depth: halvings.
        skips: whether it is a U-Net.
    """

    def __init__(self, inputs: int, outputs: int, *, width: int, depth: int, skips: bool) -> None:
        super().__init__()
        sizes = [width * 2 ** min(level, 3) for level in range(depth + 1)]
        self.skips = skips
        self.enter = convolution(inputs, width)
        self.down = nn.ModuleList(convolution(a, b, stride=2) for a, b in pairwise(sizes))
        self.floor = convolution(sizes[-1], sizes[-1])
        self.up = nn.ModuleList(
            convolution(b + a if skips else b, a) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True)
        )
        self.leave = nn.Conv2d(width, outputs, 3, padding=1)

    def forward(self, picture: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H, W]."""
        levels = [self.enter(picture)]
        for down in self.down:
            levels.append(down(levels[-1]))
        hidden = self.floor(levels.pop())
        for up in self.up:
            equal = levels.pop()
            hidden = functional.interpolate(hidden, equal.shape[2:], mode="nearest")
            hidden = up(torch.cat([hidden, equal], 1) if self.skips else hidden)
        return self.leave(hidden)


def halvings(image_shape: tuple[int, int, int]) -> int:
    """How often an image is halved until its longer side is at most 8 pixels; at least once.

    >>> [halvings((1, side, side)) for side in (8, 28, 32, 224)]
    [1, 2, 2, 5]
    """
    depth, side = 0, max(image_shape[1:])
    while side > 8 or depth == 0:
        depth, side = depth + 1, -(-side // 2)
    return depth


class Autoencoder(Decoder):
    """Convolutional autoencoder from the release, laid out as a picture, to the image.

    Args:
        geometry: the picture that the release makes.
        width: channels at the image's size; None for 16.
        depth: halvings; None until 8 pixels a side are left.

    Source: Baek et al., CutMixSL, appendix on leakage, after Wang et al. 2021 (neither gives the layers).

    >>> geometry = MapGeometry.of(torch.zeros(2, 96), (3, 32, 32))
    >>> Autoencoder(geometry)(torch.zeros(2, 96)).shape
    torch.Size([2, 3, 32, 32])
    """

    layout: ClassVar = MapGeometry

    def __init__(self, geometry: MapGeometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        self.width = width or 16
        levels = depth or halvings(geometry.image_shape)
        self.paint = Painter(geometry, self.width)
        channels = geometry.image_shape[0]
        self.body = Hourglass(self.width, channels, width=self.width, depth=levels, skips=False)

    @property
    def learning_rate(self) -> float:
        """Peak of the learning rate's cosine."""
        return CONVOLUTIONAL_RATE

    def forward(self, release: Tensor) -> Tensor:
        """Images [N, C, H, W], centred on 0.5 and not clamped."""
        return self.body(self.paint(release)) + 0.5
