"""Own images of wanted labels."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


class ByLabel:
    """Draws images of given labels."""

    def __init__(self, labels: Tensor) -> None:
        self.rows = labels.argsort(stable=True)
        self.counts = labels.bincount()
        self.starts = self.counts.cumsum(0) - self.counts

    def drawn(self, told: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        """A row for each label, and the label; any row, and −1, for a label that none of the images has."""
        inside = (told >= 0) & (told < len(self.counts))
        known = told.clamp(0, len(self.counts) - 1)
        usable = inside & (self.counts[known] > 0)
        place = torch.rand(len(told), generator=draws, device=told.device, dtype=torch.float64)
        some = (place * len(self.rows)).long()
        own = self.starts[known] + (place * self.counts[known]).long()
        return self.rows[torch.where(usable, own, some)], torch.where(usable, told, -1)
