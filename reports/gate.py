"""A user's own conditions on the rows, for CI: "ssim<=0.4" fails the run when a defense gives away more."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from privkit.reports.schema import Row

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
PATTERN = re.compile(r"^\s*([a-z_]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*$")
METRICS = ("accuracy", "mse", "psnr", "ssim")


class ConditionError(ValueError):
    """A condition that cannot be read; the message says what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition that every defended row must meet by its mean; a missing number or NaN never meets it.

    Attributes:
        metric: "accuracy", or an image metric, which is taken unaligned.
        comparison: one of <=, >=, <, >.
        bound: a number.

    >>> Condition.parse("ssim <= 0.4")
    Condition(metric='ssim', comparison='<=', bound=0.4)
    """

    metric: str
    comparison: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition.

        Raises:
            ConditionError: with what is allowed.
        """
        match = PATTERN.match(text)
        try:
            bound = float(match[3]) if match else None
        except ValueError:
            bound = None
        if match is None or bound is None or match[1] not in METRICS:
            raise ConditionError(
                f"cannot read the gate {text!r}; write metric, comparison and number, such as ssim<=0.4 "
                f"(metrics: {', '.join(METRICS)}; comparisons: {', '.join(COMPARISONS)})"
            )
        return cls(metric=match[1], comparison=match[2], bound=bound)

    def failures(self, rows: Sequence[Row]) -> list[str]:
        """A sentence for every defended row that does not meet the condition; the undefended baseline is exempt.

        A defense whose rows gave no number at all fails too.
        """
        found = []
        for row in rows:
            if row.defense == "none":
                continue
            value = self._value(row)
            if value is None or not COMPARISONS[self.comparison](value, self.bound):
                shown = "no number" if value is None else f"{value:.4f}"
                found.append(
                    f"{row.defense} / {row.attack}, seed {row.seed}: {self.metric} is {shown}, "
                    f"the gate wants {self.comparison} {self.bound:g}"
                )
        return found

    def _value(self, row: Row) -> float | None:
        """The row's number, None where it has none."""
        if self.metric == "accuracy":
            return row.accuracy.value if row.accuracy else None
        estimate = row.recovers.get("unaligned", {}).get(self.metric)
        return estimate.mean if estimate else None
