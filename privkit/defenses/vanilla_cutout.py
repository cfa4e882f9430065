"""Vanilla Cutout: each client drops one box of its smashed data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.defenses.boxes import nested_boxes
from privkit.defenses.masks import box_grid
from privkit.defenses.random_cutout import RandomCutout


@dataclass(frozen=True, kw_only=True)
class VanillaCutout(RandomCutout):
    """Zeroes one random box of each client's smashed data, whose size follows from the payload; nothing is proven.

    Attributes:
        payload: share of positions that are kept and travel, in [0, 1]; the box has the rest, to half its height.
        patch: side of a position of a feature map; 1 cuts between any two pixels. Tokens are positions, and must form a
            square grid. At the input layer, None is 1. Other fields are those of `RandomCutout`.

    Source: DeVries and Taylor 2017; DP-CutMixSL §3.B, Eq. 4; CutMixSL appendix B, Eq. 9.

    >>> z = torch.ones(3, 4, 16, 6)
    >>> release, receipt = VanillaCutout(payload=0.75).apply(z, torch.zeros(3, 4), torch.Generator().manual_seed(0))
    >>> receipt.masks.sum(1).tolist()
    [12, 12, 12]
    """

    name: ClassVar[str] = "vanilla_cutout"
    input_patch: ClassVar[int] = 1
    server_knows: ClassVar[str] = "the server sees which positions are zero, or is told the box in four numbers"

    def masks(self, smashed: Tensor, generator: Generator) -> Tensor:
        """Masks bool [M, T] of positions outside the box, one a client."""
        rows, columns = box_grid(self.name, smashed, self.side, leading=2)
        areas = torch.full((len(smashed), 1), 1 - self.payload, dtype=torch.float64, device=generator.device)
        return ~nested_boxes(areas, rows, columns, generator).squeeze(1)
