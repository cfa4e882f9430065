"""Stages on artificial data, for rules and laws that need a stage's receipt before any run."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from privkit.defenses.base import Defense, Receipt, Release
from privkit.defenses.compile import Step, run

CLASSES = 5
SHAPES = ((16, 4), (4, 8, 8), (16,))
"""Smashed data of one record: tokens, a feature map, a vector."""
IMAGE = (3, 28, 28)


class Trial:
    """Rounds of made-up messages for some stages: M messages of B records, or M groups of k messages.

    Args:
        stages: in order, all on images or all on smashed data.
        shape: of one record at the first stage.
        batch: B.
        messages: M, or the number of groups.
        dtype: of the data; float64 shows the smallest changes, and some stages hold float32 weights.

    Attributes:
        lead: (M, B).
        size: numbers in a round.
    """

    def __init__(
        self,
        stages: Sequence[Defense],
        shape: tuple[int, ...],
        batch: int = 4,
        messages: int = 2,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        group = max(stage.group for stage in stages)
        self.stages, self.shape, self.dtype = tuple(stages), shape, dtype
        self.lead = (messages * group, max(batch, *(stage.smallest_batch for stage in stages)))
        self.size = prod((*self.lead, *shape))
        self._groups = torch.arange(messages * group).view(messages, group)
        self._soft = any(stage.soft_labels for stage in stages)

    def labels(self, alike: int = 1) -> Tensor:
        """int64 [M, B]; `alike` neighbors in a message share a label."""
        return (torch.arange(self.lead[1]) // alike).expand(self.lead) % CLASSES

    def data(self, seed: int = 0) -> Tensor:
        """[M, B, ...], uniform in [0, 1]."""
        return torch.rand(*self.lead, *self.shape, generator=Generator().manual_seed(seed), dtype=self.dtype)

    def play(self, data: Tensor, labels: Tensor, seed: int) -> tuple[Release, tuple[Step, ...]]:
        """One round with the coins and the noise of a seed."""
        given = one_hot(labels, CLASSES).to(data.dtype) if self._soft else labels
        once = any(stage.drawn == "once" for stage in self.stages)
        kept = Generator().manual_seed(seed + 1) if once else None
        return run(self.stages, Release(smashed=data, labels=given), Generator().manual_seed(seed), self._groups, kept)

    def receipt(self) -> Receipt:
        """The receipt of the last stage for uniform data."""
        return self.play(self.data(), self.labels(), 0)[1][-1].receipt

    def of(self, messages: int) -> Trial:
        """The same trial with another number of messages."""
        return Trial(self.stages, self.shape, self.lead[1], messages, self.dtype)


def trial_of(
    stages: Sequence[Defense], shape: tuple[int, ...] | None = None, image: tuple[int, ...] = IMAGE
) -> Trial | None:
    """A trial of a shape that these stages take; None if they take none.

    Args:
        stages: as for `Trial`.
        shape: of one record's smashed data, if known; None tries tokens, a feature map and a vector.
        image: (C, H, W) of stages on images.
    """
    shapes = (image,) if stages[0].level == "input" else SHAPES if shape is None else (shape,)
    for known in shapes:
        for dtype in (torch.float64, torch.float32):
            trial = Trial(stages, known, dtype=dtype)
            try:
                with torch.no_grad():
                    trial.play(trial.data(), trial.labels(), 0)
            except Exception:  # of a user's stage, on data that it was not made for
                continue
            return trial
    return None


def receipt_of_trial(stage: Defense) -> Receipt | None:
    """A stage's receipt for artificial data; None if it takes none of the usual shapes."""
    trial = trial_of((stage,))
    return None if trial is None else trial.receipt()
