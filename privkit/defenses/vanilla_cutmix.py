"""Vanilla CutMix: a box of one client's positions is pasted into another's smashed data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.defenses.boxes import nested_boxes
from privkit.defenses.masks import box_grid, permutations
from privkit.defenses.mixing import dirichlet_ratios
from privkit.defenses.random_cutmix import RandomCutMix


@dataclass(frozen=True, kw_only=True)
class VanillaCutMix(RandomCutMix):
    """CutMix with boxes; nothing is proven.

    One client, drawn at random, gives the background, the next a box, the next a box inside that one. For k = 2 this is
    CutMix. For larger k the masks stay exclusive, and the ratios follow the Dirichlet law up to whole positions. Labels
    are mixed by the positions that were really filled.

    Attributes:
        patch: side of a position of a feature map; 1 cuts between any two pixels. Tokens are positions, and must form a
            square grid. At the input layer, None is 1.
        drawn: with "once" the areas are kept, up to whole positions, and the places are fresh. Other fields are those
            of `RandomCutMix`.

    Source: CutMixSL appendix B, Eq. 10; DP-CutMixSL §3.D ("Random CutMix vs. Vanilla CutMix and Mixup"). The papers
    have two clients; boxes inside boxes are ours.
    """

    name: ClassVar[str] = "vanilla_cutmix"
    input_patch: ClassVar[int] = 1

    def masks(self, smashed: Tensor, present: Tensor, generator: Generator, coins: Generator | None = None) -> Tensor:
        """Exclusive masks bool [G, k, T] of every group; `coins` draw the ratios, if given."""
        rows, columns = box_grid(self.name, smashed, self.side, leading=3)
        ratios = dirichlet_ratios(present, self.concentration, coins or generator)
        groups, members = ratios.shape
        order = permutations(groups, members, generator)
        areas = ratios.gather(1, order).flip(1).cumsum(1).flip(1)
        areas[:, 0] = 1.0  # the background, rounding errors of the sum aside
        boxes = nested_boxes(areas.clamp(max=1), rows, columns, generator)
        owner = order.gather(1, boxes.sum(1) - 1)
        return owner.unsqueeze(1) == torch.arange(members, device=owner.device).view(1, -1, 1)
