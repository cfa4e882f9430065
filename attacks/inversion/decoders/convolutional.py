"""Convolutional decoders, which read a release as a picture: from papers on mixing, U-Net and pix2pix."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from privkit.attacks.inversion.decoders.base import Decoder, MapGeometry, Painter, as_maps, convolution
from privkit.attacks.release_scale import mean_and_scale

_CONVOLUTIONAL_RATE = 0.003  # peak learning rate of the networks that halve pictures

_L1_WEIGHT = 100.0  # weight of the absolute error, relative to the discriminator's loss: pix2pix's default


class Convolutions(Decoder):
    """A decoder of two 3×3 convolutions, with an interpolation to the image's size between them.

    It is the weakest published decoder. The paper states neither the widths (128 here) nor the place of the
    interpolation. Our choice makes the attack stronger: the second convolution works at the image's resolution.

    Source: Oh et al., DP-CutMixSL, §5.A.
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
        hidden = self.first(as_maps(release, self.geometry))
        hidden = functional.interpolate(hidden, self.geometry.image_shape[1:], mode="bilinear")
        images: Tensor = self.second(functional.relu(hidden)) + 0.5
        return images


class _Hourglass(nn.Module):
    """A U-Net: convolutions halve a picture `depth` times and double it again, with skips between layers of equal size.

    The number of channels doubles with every halving, up to 8·`width`.
    """

    def __init__(self, inputs: int, outputs: int, *, width: int, depth: int) -> None:
        super().__init__()
        sizes = [width * 2 ** min(level, 3) for level in range(depth + 1)]
        self.enter = convolution(inputs, width)
        self.down = nn.ModuleList(convolution(a, b, stride=2) for a, b in pairwise(sizes))
        self.floor = convolution(sizes[-1], sizes[-1])
        self.up = nn.ModuleList(convolution(b + a, a) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True))
        self.leave = nn.Conv2d(width, outputs, 3, padding=1)

    def forward(self, picture: Tensor) -> Tensor:
        levels = [self.enter(picture)]
        for down in self.down:
            levels.append(down(levels[-1]))
        hidden = self.floor(levels.pop())
        for up in self.up:
            equal = levels.pop()
            hidden = functional.interpolate(hidden, equal.shape[2:], mode="nearest")
            hidden = up(torch.cat([hidden, equal], 1))
        images: Tensor = self.leave(hidden)
        return images


def halvings(image_shape: tuple[int, int, int]) -> int:
    """How often a U-Net halves an image (C, H, W): until the longer side is at most 8 pixels, but at least once.

    >>> [halvings((1, side, side)) for side in (8, 28, 32, 224)]
    [1, 2, 2, 5]
    """
    depth, side = 0, max(image_shape[1:])
    while side > 8 or depth == 0:
        depth, side = depth + 1, -(-side // 2)
    return depth


class _ResidualPicture(nn.Module):
    """A residual block of two 3×3 convolutions; at the start of training it adds only a constant to each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        nn.init.zeros_(self.second.weight)

    def forward(self, picture: Tensor) -> Tensor:
        change: Tensor = self.second(functional.gelu(self.first(functional.gelu(picture))))
        return picture + change


class _Pyramid(nn.Module):
    """Two residual blocks; if `depth` > 0, the output of a pyramid on the halved picture is added between them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.before, self.after = _ResidualPicture(width), _ResidualPicture(width)
        self.below: nn.Module | None = None
        if depth:
            self.below = nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), _Pyramid(width, depth - 1))

    def forward(self, picture: Tensor) -> Tensor:
        picture = self.before(picture)
        if self.below is not None:
            picture = picture + functional.interpolate(self.below(picture), picture.shape[2:], mode="nearest")
        images: Tensor = self.after(picture)
        return images


class Autoencoder(Decoder):
    """A residual convolutional decoder that reads a release as a picture, and computes at half the image's side.

    Channels are normalized by their mean and variance in `sample` (rows of the attacked release): a picture that is
    normalized by its own mean would lose its brightness. The first of `depth` halvings stacks 2×2 pixels as channels;
    by default, the halvings end at 8 pixels a side.

    Source: Baek et al., CutMixSL, appendix on leakage, after Wang et al. 2021 (neither gives the layers); residual
    blocks: He et al. 2016; 2×2 pixels as channels: Shi et al. 2016.
    """

    layout: ClassVar = MapGeometry
    learning_rate = _CONVOLUTIONAL_RATE
    mean: Tensor
    scale: Tensor

    def __init__(
        self, geometry: MapGeometry, sample: Tensor, *, width: int | None = None, depth: int | None = None
    ) -> None:
        super().__init__()
        self.width, self.geometry = width or 32, geometry
        cells = as_maps(sample.detach().cpu(), geometry).double().transpose(0, 1).flatten(1)
        mean, scale = mean_and_scale(cells, 1)
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        painted = -(-self.width // 4)
        self.paint = Painter(geometry, painted)
        self.enter = nn.Conv2d(4 * painted, self.width, 3, padding=1)
        self.body = _Pyramid(self.width, (depth or halvings(geometry.image_shape)) - 1)
        self.leave = nn.Conv2d(self.width, 4 * geometry.image_shape[0], 3, padding=1)

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        return cls(MapGeometry.of(release, image_shape), release, width=width, depth=depth)

    def forward(self, release: Tensor) -> Tensor:
        cells = as_maps(release, self.geometry)
        cells = (cells - self.mean.view(-1, 1, 1)) / self.scale.view(-1, 1, 1)
        _, height, width = self.geometry.image_shape
        picture = functional.pad(self.paint(cells), (0, width % 2, 0, height % 2))
        hidden = self.body(self.enter(functional.pixel_unshuffle(picture, 2)))
        drawn = functional.pixel_shuffle(self.leave(functional.gelu(hidden)), 2)
        return drawn[:, :, :height, :width] + 0.5


class UNet(Decoder):
    """A U-Net decoder of a release as a picture, trained on the absolute error: pix2pix without its discriminator.

    By default, it halves the picture down to 8 pixels a side. Source: Isola et al. 2017, §3.2.1.
    """

    layout: ClassVar = MapGeometry
    learning_rate = _CONVOLUTIONAL_RATE

    def __init__(self, geometry: MapGeometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        self.width = width or 16
        channels = geometry.image_shape[0]
        levels = depth or halvings(geometry.image_shape)
        self.paint = Painter(geometry, self.width)
        self.body = _Hourglass(self.width, channels, width=self.width, depth=levels)

    def forward(self, release: Tensor) -> Tensor:
        images: Tensor = self.body(self.paint(release)) + 0.5
        return images

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        return functional.l1_loss(self(release).float(), truth)


class Pix2Pix(UNet):
    """The U-Net decoder, trained with a discriminator that judges overlapping pieces of decoded images separately.

    Decoder and discriminator are updated together: one backward pass gives both gradients, and the discriminator's
    weights are constants for the decoder's gradient.

    Source: Isola et al. 2017, §3; the attacker of Yao et al., patch shuffling, Table IX.
    """

    def __init__(self, geometry: MapGeometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__(geometry, width=width, depth=depth)
        self.discriminator = nn.Sequential(
            convolution(geometry.image_shape[0], self.width, stride=2),
            convolution(self.width, 2 * self.width, stride=2),
            nn.Conv2d(2 * self.width, 1, 3, padding=1),
        )

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        drawn = self(release).float()
        held = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        praise = _cross_entropy(functional_call(self.discriminator, held, (drawn,)), real=True)
        lesson = _cross_entropy(self.discriminator(truth), real=True) + _cross_entropy(
            self.discriminator(drawn.detach()), real=False
        )
        return functional.l1_loss(drawn, truth) + (praise + 0.5 * lesson) / _L1_WEIGHT


def _cross_entropy(verdict: Tensor, *, real: bool) -> Tensor:
    goal = torch.full_like(verdict, float(real))
    return functional.binary_cross_entropy_with_logits(verdict, goal)
