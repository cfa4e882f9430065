"""LeNet-5, cut after any layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.base import NamedCuts, SplitModel
from privkit.models.chain import cut_chain
from privkit.torch_utils.seeded import seeded

_SMALLEST = 12  # pixels a side, which leave 1×1 after the second pooling


@dataclass(frozen=True, kw_only=True)
class LeNet5(NamedCuts):
    """LeNet-5: two convolutions of 5×5 with poolings, and three linear layers; tanh between them.

    Images below 32 pixels are padded by two, as 28-pixel digits were. The second convolution sees all six maps, and the
    output is linear, as in every later implementation: 61,706 weights on grey 28- or 32-pixel images.

    Attributes:
        cut: last layer of the lower segment: "conv1", "pool1", "conv2", "pool2", "fc1" or "fc2", with the tanh behind
            it. DP-CutMixSL cuts after "conv2".

    Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition", §II.B.

    >>> LENET5.build(Images(shape=(1, 28, 28)), 10, positions=True, seed=0).lower(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 16, 10, 10])
    """

    domain: ClassVar[str] = "images"

    cut: str = "conv2"

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2")

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; `positions` changes nothing. See `ModelSpec.build`."""
        channels, height, width = domain.shape
        if min(height, width) < _SMALLEST:
            raise UsageError(f"lenet5 needs images of at least {_SMALLEST}×{_SMALLEST} pixels, got {height}×{width}")
        pad = 2 if min(height, width) < 32 else 0
        left = [((side + 2 * pad - 4) // 2 - 4) // 2 for side in (height, width)]
        with seeded(torch.device("cpu"), seed):
            pieces = {
                "conv1": nn.Sequential(nn.Conv2d(channels, 6, 5, padding=pad), nn.Tanh()),
                "pool1": nn.AvgPool2d(2),
                "conv2": nn.Sequential(nn.Conv2d(6, 16, 5), nn.Tanh()),
                "pool2": nn.AvgPool2d(2),
                "fc1": nn.Sequential(nn.Flatten(), nn.Linear(16 * left[0] * left[1], 120), nn.Tanh()),
                "fc2": nn.Sequential(nn.Linear(120, 84), nn.Tanh()),
                "head": nn.Linear(84, classes),
            }
        return cut_chain(pieces, self.cut)


LENET5 = LeNet5()
"""LeNet-5, cut after the second convolution."""
