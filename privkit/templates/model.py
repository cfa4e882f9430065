"""Model `template`: a convolution at the client and a linear layer at the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from privkit.constraints import Checked, Count
from privkit.domains.images.domain import Images
from privkit.models.base import SplitModel


@dataclass(frozen=True, kw_only=True)
class Template(Checked):
    """A convolution with tanh and pooling below the cut, and a linear layer above it.

    Attributes:
        maps: number of feature maps that cross the cut.

    Source: your own.
    """

    domain: ClassVar[str] = "images"

    maps: Count = 8

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments with seeded weights; see `privkit.models.base.ModelSpec.build`."""
        channels, height, width = domain.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            lower = nn.Sequential(nn.Conv2d(channels, self.maps, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2))
            upper = nn.Sequential(nn.Flatten(), nn.Linear(self.maps * (height // 2) * (width // 2), classes))
        return SplitModel(lower=lower, upper=upper)
