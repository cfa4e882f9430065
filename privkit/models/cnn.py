"""The convolutional network of PyTorch's MNIST example with tanh, cut after any layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from privkit.domains.images.domain import Images
from privkit.models.base import NamedCuts, SplitModel
from privkit.models.chain import cut_chain
from privkit.torch_utils.seeded import seeded

_MAPS, _WIDTH = (32, 64), 256


@dataclass(frozen=True, kw_only=True)
class Cnn(NamedCuts):
    """Two convolutions of 3×3, one pooling, and two linear layers, with tanh between them.

    Smashed data lie in [−1, 1] at every cut. An image of 28 pixels has 12,544 of them at "pool" and 256 at "fc".
    There are 3,232,906 weights for grey 28-pixel images of ten classes.

    Attributes:
        cut: last layer of the lower segment: "conv1", "conv2", "pool" or "fc", with the tanh behind it.

    Source: accurate_sl, Table 1, "CNN on MNIST". Paper and release cut after "fc" and after "pool".

    >>> split = CNN.build(Images(shape=(1, 28, 28)), 10, positions=True, seed=0)
    >>> split.lower(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 256])
    """

    domain: ClassVar[str] = "images"

    cut: str = "fc"

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("conv1", "conv2", "pool", "fc")

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; `positions` changes nothing. See `ModelSpec.build`."""
        channels, height, width = domain.shape
        first, second = _MAPS
        with seeded(torch.device("cpu"), seed):
            pieces = {
                "conv1": nn.Sequential(nn.Conv2d(channels, first, 3, padding=1), nn.Tanh()),
                "conv2": nn.Sequential(nn.Conv2d(first, second, 3, padding=1), nn.Tanh()),
                "pool": nn.MaxPool2d(2),
                "fc": nn.Sequential(nn.Flatten(), nn.Linear(second * (height // 2) * (width // 2), _WIDTH), nn.Tanh()),
                "head": nn.Linear(_WIDTH, classes),
            }
        split = cut_chain(pieces, self.cut)
        split.lower.to(memory_format=torch.channels_last)  # its convolutions take two thirds of the time on a CPU
        return split


CNN = Cnn()
"""The network of accurate_sl on MNIST, cut after its first linear layer."""
