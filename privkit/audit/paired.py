"""Paired comparison of two measurements of the same records: test, effect size, interval of the mean difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt

import numpy as np

from privkit.attacks.scores.image import Values
from privkit.audit.scoring import estimate
from privkit.reports.seed_intervals import over_values
from privkit.shared.interval import Interval


@dataclass(frozen=True, kw_only=True)
class Paired:
    """How the second measurement differs from the first.

    Attributes:
        difference: mean of second less first, with its interval: over seeds if there are several, else over records.
        p_value: of Wilcoxon's signed-rank test, two-sided: differences of records are symmetric around 0.
        effect: matched-pairs rank-biserial correlation in [-1, 1]: the rank sum of positive differences less that of
            negative ones, as a share of both.
    """

    difference: Interval
    p_value: float
    effect: float


def paired(first: Sequence[Values], second: Sequence[Values], ids: Sequence[Sequence[int]] | None = None) -> Paired:
    """Compare two measurements of the same records.

    The test counts each record once; for a record that several seeds measure, the mean change counts. So it is about
    these trained models. Another training may change more than another record; only an interval over seeds shows that.

    Args:
        first: [N] finite values for each seed.
        second: likewise, of the same records in the same order.
        ids: of these records, for each seed; None if all records differ.

    Source: Wilcoxon 1945, with zeros as in Pratt 1959; Kerby 2014 (rank-biserial correlation); Efron 1979 and Student
    1908 (intervals).

    >>> found = paired([np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])], [np.array([0.2, 0.4, 0.6, 0.8, 1.0, 1.2])])
    >>> round(found.difference.value, 3), found.p_value, found.effect
    (0.35, 0.03125, 1.0)
    """
    from scipy.stats import rankdata, wilcoxon

    changes = [b - a for a, b in zip(first, second, strict=True)]
    together = np.concatenate(changes)
    if ids is not None:
        _, record = np.unique(np.concatenate(ids), return_inverse=True)
        together = np.bincount(record, together) / np.bincount(record)
    ranks = rankdata(np.abs(together))
    up, down = float(ranks[together > 0].sum()), float(ranks[together < 0].sum())
    return Paired(
        difference=_over(changes, together),
        p_value=float(wilcoxon(together, zero_method="pratt").pvalue) if up + down else 1.0,
        effect=(up - down) / (up + down) if up + down else 0.0,
    )


def _over(changes: Sequence[Values], together: Values) -> Interval:
    if len(changes) > 1:
        return over_values([float(change.mean()) for change in changes], 0.95)
    found = estimate(together, higher_is_closer=True, seed=0)
    return Interval(value=found.value, low=found.low, high=found.high, n=found.n, method=found.method)


def unpaired(first: Sequence[Interval], second: Sequence[Interval]) -> Interval:
    """The difference of two numbers whose records are not stored; each has one value a seed.

    Several seeds give Student's interval of the paired differences. One seed combines the limits of two independent
    estimates, which is wider than needed if both rest on the same records.

    Source: Zou and Donner 2008 (limits of a difference from those of its parts).

    >>> one = [Interval(value=0.5, low=0.4, high=0.6, n=9, method="m")]
    >>> found = unpaired(one, [Interval(value=0.8, low=0.7, high=0.9, n=9, method="m")])
    >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
    (0.3, 0.159, 0.441)
    """
    changes = [0.0 if a.value == b.value else b.value - a.value for a, b in zip(first, second, strict=True)]
    if len(changes) > 1 and all(map(isfinite, changes)):
        return over_values(changes, 0.95)
    (a, b), change = (first[0], second[0]), float(np.mean(changes))
    if not isfinite(change):
        return Interval(value=change, low=change, high=change, n=len(changes), method="infinite")
    low = sqrt((b.value - b.low) ** 2 + (a.high - a.value) ** 2)
    high = sqrt((b.high - b.value) ** 2 + (a.value - a.low) ** 2)
    return Interval(value=change, low=change - low, high=change + high, n=a.n, method="from the limits of both")


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for several tests: the probability of any wrong rejection is at most the level.

    Source: Holm 1979.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    adjusted, largest = [nan] * len(p_values), 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[number]))
        adjusted[number] = largest
    return adjusted
