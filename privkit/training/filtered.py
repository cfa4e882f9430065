"""Stacked lower segments with a filter behind them, which a defense trains beyond the task."""

from __future__ import annotations

from torch import Tensor, nn

from privkit.training.stacked import Stacked


class Filtered(Stacked):
    """Copies of a lower segment with a filter behind it.

    Args:
        lower: the segment.
        filter: takes the segment's output and keeps its shape.
        copies: n ≥ 1.
    """

    def __init__(self, lower: nn.Module, filter: nn.Module, copies: int) -> None:
        super().__init__(nn.Sequential(lower, filter), copies)
        self._last: tuple[Tensor, Tensor | None] | None = None

    def forward(self, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
        """Evaluate segment and filter; see `Stacked.forward`."""
        if self.by_record is not None:
            return super().forward(inputs, rows)
        unfiltered = self.part("0")(inputs, rows)
        self._last = unfiltered.detach(), rows
        filtered: Tensor = self.part("1")(unfiltered, rows)
        return filtered

    def filter_alone(self) -> Tensor:
        """The output of the last call; gradients reach the filters, and not the segments before them."""
        assert self._last is not None
        filtered: Tensor = self.part("1")(*self._last)
        return filtered
