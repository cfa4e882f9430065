"""pix2pix: a U-Net from the release, laid out as a picture, to the image, and a patch discriminator."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.convolutional import CONVOLUTIONAL_RATE, Hourglass, halvings
from privkit.attacks.inversion.decoders.maps import MapGeometry, Painter, convolution

_L1_WEIGHT = 100.0
"""Weight of the absolute error against the discriminator's loss: pix2pix's default."""


class UNet(Decoder):
    """pix2pix's generator alone, trained on the absolute error.

    Args:
        geometry: the picture that the release makes.
        width: channels at the image's size; None for 16.
        depth: halvings; None until 8 pixels a side are left.

    Source: Isola et al. 2017, §3.2.1.

    >>> geometry = MapGeometry.of(torch.zeros(2, 8, 12, 12), (1, 28, 28))
    >>> UNet(geometry)(torch.zeros(2, 8, 12, 12)).shape
    torch.Size([2, 1, 28, 28])
    """

    layout: ClassVar = MapGeometry

    def __init__(self, geometry: MapGeometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        self.width = width or 16
        channels = geometry.image_shape[0]
        levels = depth or halvings(geometry.image_shape)
        self.paint = Painter(geometry, self.width)
        self.body = Hourglass(self.width, channels, width=self.width, depth=levels, skips=True)

    @property
    def learning_rate(self) -> float:
        return CONVOLUTIONAL_RATE

    def forward(self, release: Tensor) -> Tensor:
        """Images [N, C, H, W], centred on 0.5 and not clamped."""
        images: Tensor = self.body(self.paint(release)) + 0.5
        return images

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        """Mean absolute error; see `Decoder.objective`."""
        return functional.l1_loss(self(release).float(), truth)


class Pix2Pix(UNet):
    """The U-Net and a discriminator of its pictures.

    The discriminator sees the picture alone and judges overlapping pieces. Generator and discriminator move together:
    both gradients come from one backward pass, the generator's through a discriminator whose weights are held fixed.

    Source: Isola et al. 2017, §3; the attacker of Yao et al., patch shuffling, Table IX.

    >>> geometry = MapGeometry.of(torch.zeros(2, 16, 96), (1, 28, 28))
    >>> Pix2Pix(geometry)(torch.zeros(2, 16, 96)).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, geometry: MapGeometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__(geometry, width=width, depth=depth)
        self.discriminator = nn.Sequential(
            convolution(geometry.image_shape[0], self.width, stride=2),
            convolution(self.width, 2 * self.width, stride=2),
            nn.Conv2d(2 * self.width, 1, 3, padding=1),
        )

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        """Absolute error and both sides of the game, in one scalar; see `Decoder.objective`."""
        drawn = self(release).float()
        held = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        praise = _cross_entropy(functional_call(self.discriminator, held, (drawn,)), real=True)
        lesson = _cross_entropy(self.discriminator(truth), real=True) + _cross_entropy(
            self.discriminator(drawn.detach()), real=False
        )
        return functional.l1_loss(drawn, truth) + (praise + 0.5 * lesson) / _L1_WEIGHT


def _cross_entropy(verdict: Tensor, *, real: bool) -> Tensor:
    """Mean cross-entropy of a discriminator's logits against "real" or "made up"."""
    goal = torch.full_like(verdict, float(real))
    return functional.binary_cross_entropy_with_logits(verdict, goal)
