"""A user's own conditions on the rows, for CI: "ssim<=0.4" fails the run when a defense gives away more."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite

from privkit.reports.schema import Row

COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
PATTERN = re.compile(r"^\s*([a-z_]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*$")
METRICS = (
    *("accuracy", "mse", "psnr", "ssim", "f_sim", "identified", "lpips", "auc", "epsilon"),
    *("token_accuracy", "rouge_l", "exact", "cells", "dense_error", "dense_mse", "categories"),
)
CONSTANT_FLOORS = {
    "mid_grey": "the mid-grey image",
    "mean_image": "the mean auxiliary image",
    "most_frequent_token": "the most frequent auxiliary token",
    "most_frequent_by_place": "the most frequent auxiliary token of each place",
    "column_mean": "the mean or most frequent auxiliary value of each column",
}


class GateError(ValueError):
    """A condition that cannot be read; the message says what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One condition that every defended row with such a number must meet by its mean; NaN never meets it.

    A condition that bounds what may be recovered (ssim <= x, psnr <= x, mse >= x) must also hold for the constant
    guesses, which anybody can make without the release: an attack that does worse than they do has failed, and its
    failure is no merit of the defense.

    Attributes:
        metric: "accuracy"; a metric of reconstructions, which is taken unaligned; "auc", the larger of an AUC and one
            less it; or "epsilon", the lower bound of canaries.
        comparison: one of <=, >=, <, >.
        bound: a number.

    >>> Gate.parse("ssim <= 0.4")
    Gate(metric='ssim', comparison='<=', bound=0.4)
    """

    metric: str
    comparison: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Gate:
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
            raise GateError(
                f"cannot read the gate {text!r}; write metric, comparison and number, such as ssim<=0.4 "
                f"(metrics: {', '.join(METRICS)}; comparisons: {', '.join(COMPARISONS)})"
            )
        return cls(metric=match[1], comparison=match[2], bound=bound)

    def __str__(self) -> str:
        """As the user may write it."""
        return f"{self.metric}{self.comparison}{self.bound!r}"

    def failures(self, rows: Sequence[Row]) -> list[str]:
        """The sentences of those findings that do not meet the condition."""
        return [sentence for _, met, sentence in self.findings(rows) if not met]

    def findings(
        self, rows: Sequence[Row], pending: Collection[tuple[str, int]] = ()
    ) -> list[tuple[Row, bool | None, str]]:
        """For every defended row whether it meets the condition, in a sentence; the undefended baseline is exempt.

        A defense whose attacks gave no such number at all fails too, once for each row.

        Args:
            rows: of the run.
            pending: defenses and seeds that have cells without a result: what has no number yet is neither met nor
                failed (None).
        """
        results: list[tuple[Row, bool | None, str]] = []
        defended = [row for row in rows if row.defense.partition(":")[0] != "none"]
        measured = {(row.defense, row.seed) for row in defended if self._values(row)[""] is not None}
        for row in defended:
            values = self._values(row)
            if (row.defense, row.seed) in measured and row.status != "error" and values[""] is None:
                continue  # this attack asks another question, or is not applicable
            held = {guess: v is not None and COMPARISONS[self.comparison](v, self.bound) for guess, v in values.items()}
            guess = next((guess for guess, met in held.items() if not met), "")
            shown = "no number" if values[guess] is None else f"{values[guess]:.4f}"
            waits = values[guess] is None and row.status != "error" and (row.defense, row.seed) in pending
            sentence = (
                f"{row.defense} / {row.attack}, seed {row.seed}: {self.metric} is {shown}{guess}, "
                f"the gate wants {self.comparison} {self.bound:g}"
            )
            results.append((row, None if waits else all(held.values()), sentence))
        return results

    def _values(self, row: Row) -> dict[str, float | None]:
        """The numbers that must meet the condition, the row's own first; None where it has none."""
        if self.metric == "accuracy":
            return {"": row.accuracy.value if row.accuracy else None}
        if self.metric == "auc":
            auc = row.answers.get("auc")
            return {"": None if auc is None else max(auc.value, 1 - auc.value)}
        if self.metric == "epsilon":
            return {"": None if row.empirical_bound is None else row.empirical_bound.epsilon}
        estimate = row.recovered.get("unaligned", {}).get(self.metric)
        if estimate is None:
            return {"": None}
        values: dict[str, float | None] = {"": estimate.value}
        if self.comparison.startswith("<" if estimate.higher_is_closer else ">"):
            for name, what in CONSTANT_FLOORS.items():
                floor = row.floors.get(name, {}).get("unaligned", {}).get(self.metric)
                if floor is not None:
                    guess = f" for {what}, a guess that needs no release (the attack has {estimate.value:.4f})"
                    values[guess] = floor.value
        return values
