"""Refused rows of a parameter table: one message a reason, not one a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privkit.reports.budgets import BudgetRow

_NAMED = 3
"""Rows that a message names; the others are counted."""


@dataclass(kw_only=True)
class Refusals:
    """Collects why rows were refused.

    Attributes:
        rows: rows seen, refused or not.
        reasons: reason -> how the first rows with it are called, and how many have it.
    """

    rows: int = 0
    reasons: dict[str, tuple[list[str], int]] = field(default_factory=dict)

    def see(self, row: BudgetRow) -> None:
        """Count a row, and remember why it was refused, where it was."""
        self.rows += 1
        if row.status == "error":
            called = f"{row.row} ({row.name})" if row.name != f"row {row.row}" else str(row.row)
            first, count = self.reasons.get(row.error, ([], 0))
            self.reasons[row.error] = ([*first, called] if count < _NAMED else first, count + 1)

    @property
    def refused(self) -> int:
        """How many rows were refused."""
        return sum(count for _, count in self.reasons.values())

    def sentences(self) -> Iterator[str]:
        """One line a reason, in the order in which they were met."""
        for reason, (first, count) in self.reasons.items():
            if count == 1:
                who = f"row {first[0]}"
            elif count == self.rows:
                who = f"all {count:,} rows"
            else:
                who = f"rows {', '.join(first)}" + (f" and {count - len(first):,} more" if count > len(first) else "")
            yield f"{who}: {reason}"
