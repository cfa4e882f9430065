"""A user's own conditions on the rows, for CI: "ssim<=0.4" fails the run when a defense gives away more."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from privkit.reports.schema import Row

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
PATTERN = re.compile(r"^\s*([a-z_]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*$")
METRICS = ("accuracy", "mse", "psnr", "ssim")
CONSTANT_FLOORS = {"mid_grey": "the mid-grey image", "mean_image": "the mean auxiliary image"}


class ConditionError(ValueError):
    """A condition that cannot be read; the message says what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition that every defended row must meet by its mean; a missing number or NaN never meets it.

    A condition that bounds what may be recovered (ssim <= x, psnr <= x, mse >= x) must also hold for the constant
    guesses, which anybody can make without the release: an attack that does worse than they do has failed, and its
    failure is no merit of the defense.

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
        if match is None or bound is None or not isfinite(bound) or match[1] not in METRICS:
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
            if row.defense.partition(":")[0] == "none":
                continue
            for guess, value in self._values(row).items():
                if value is None or not COMPARISONS[self.comparison](value, self.bound):
                    shown = "no number" if value is None else f"{value:.4f}"
                    found.append(
                        f"{row.defense} / {row.attack}, seed {row.seed}: {self.metric} is {shown}{guess}, "
                        f"the gate wants {self.comparison} {self.bound:g}"
                    )
                    break
        return found

    def _values(self, row: Row) -> dict[str, float | None]:
        """The numbers that must meet the condition, the row's own first; None where it has none."""
        if self.metric == "accuracy":
            return {"": row.accuracy.value if row.accuracy else None}
        estimate = row.recovers.get("unaligned", {}).get(self.metric)
        if estimate is None:
            return {"": None}
        values: dict[str, float | None] = {"": estimate.mean}
        if self.comparison.startswith("<" if estimate.higher_is_closer else ">"):
            for name, what in CONSTANT_FLOORS.items():
                floor = row.floors.get(name, {}).get("unaligned", {}).get(self.metric)
                if floor is not None:
                    guess = f" for {what}, a guess that needs no release (the attack has {estimate.mean:.4f})"
                    values[guess] = floor.mean
        return values
