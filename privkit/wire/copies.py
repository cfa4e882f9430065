"""Copies of one record pass the lower segments once, if that gives the same bits."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.torch_utils.seeded import seeded
from privkit.training.stacked import Stacked

_TRIALS = 4  # rounds of copies that pass in full: one of them may hold black images, which hide draws


class CopiesOnce:
    """Lower segments that compute each client's record once if its batch is copies of that record.

    This fails for a user's segment that draws or reads its whole batch, and on a machine that rounds fewer rows
    differently. So the first rounds of copies pass in full as well; if any bit differs, all later ones do. The defense
    always gets the whole batch.

    Args:
        lowers: in eval mode.

    Attributes:
        trials: remaining rounds of copies that pass in full; None if all do.

    >>> lowers = CopiesOnce(Stacked(torch.nn.Linear(3, 2), 1))
    >>> lowers(torch.ones(1, 50, 3)).shape, lowers.trials
    (torch.Size([1, 50, 2]), 3)
    """

    def __init__(self, lowers: Stacked) -> None:
        self._lowers, self.trials = lowers, _TRIALS if type(lowers) is Stacked else None

    def __call__(self, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """As `Stacked.forward`, whose only output is a tensor."""
        once = inputs[:, :1]
        if self.trials is None or rows is not None or not torch.equal(inputs, once.expand_as(inputs)):
            whole: Tensor = self._lowers(inputs, rows)
            return whole
        if self.trials == 0:
            return self._copied(once, inputs.shape[1])
        whole = self._lowers(inputs)
        with seeded(inputs.device, 0):
            same = torch.equal(whole, self._copied(once, inputs.shape[1]))
        self.trials = self.trials - 1 if same else None
        return whole

    def _copied(self, once: Tensor, count: int) -> Tensor:
        """What [n, 1, ...] gives, as many times as a batch has records, [n, B, ...]."""
        given: Tensor = self._lowers(once)
        return given.repeat_interleave(count, 1)
