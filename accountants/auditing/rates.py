"""Error rates of thresholds on scores: the area under the ROC curve, and true positives at few false ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.auditing.score_cuts import Cuts, at_least, lower, scores, upper


@dataclass(frozen=True, kw_only=True)
class Rate:
    """True positive rate at a threshold, with its two-sided Clopper–Pearson interval.

    Attributes:
        value: share of members whose score is at least the threshold.
        low: lower confidence limit.
        high: upper confidence limit.
        threshold: chosen from the non-members' scores alone.
        false_positive_rate: share of non-members at or above it, at most what was asked for.
        false_positive_limit: one-sided upper confidence limit of the rate behind that share.
    """

    value: float
    low: float
    high: float
    threshold: float
    false_positive_rate: float
    false_positive_limit: float


def auroc(in_scores: ArrayLike, out_scores: ArrayLike, *, convex_hull: bool = False) -> float:
    """Area under the ROC curve: how often a member scores higher than a non-member, ties counting one half.

    Args:
        in_scores: [n] scores of members, finite.
        out_scores: [k] scores of non-members, finite.
        convex_hull: of the ROC curve's convex hull instead (attacks that toss a coin between two thresholds); never
            below 1/2, so biased upwards on scores that tell nothing.

    Returns:
        In [0, 1]; 1/2 is chance.

    Raises:
        ValueError: if scores are empty, NaN, infinite or booleans.

    Source: Hanley and McNeil 1982; the hull: Fawcett 2006, §5.

    >>> auroc([3, 4], [1, 3])
    0.875
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    if convex_hull:
        cuts = Cuts.of(members, others).hull()
        spared = others.size - cuts.alarms
        area = np.sum((spared[1:] + spared[:-1]) * np.diff(cuts.missed))
        return float(area / (2 * members.size * others.size))
    wins = np.searchsorted(others, members, "left") + np.searchsorted(others, members, "right")
    return float(wins.sum() / (2 * members.size * others.size))


def true_positive_rate(
    in_scores: ArrayLike, out_scores: ArrayLike, false_positive_rate: float, *, confidence: float = 0.95
) -> Rate:
    """Share of members found at the lowest threshold that accuses at most a given share of the non-members.

    Args:
        in_scores: [n] scores of members, finite.
        out_scores: [k] scores of non-members, finite.
        false_positive_rate: in [0, 1).
        confidence: of the interval, in (0, 1).

    Raises:
        ValueError: if an argument is out of range, or scores are empty, NaN, infinite or booleans.

    Source: Carlini et al. 2022, §III (the measure); Clopper and Pearson 1934. The threshold depends on the non-members
    only, so the members' count is binomial given it.

    >>> found = true_positive_rate([1, 5, 6, 7], [1, 2, 3, 4], 0.25)
    >>> found.value, found.false_positive_rate, round(found.low, 3)
    (0.75, 0.25, 0.194)
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    rate = validate.real("false_positive_rate", false_positive_rate, least=0, below=1)
    error = 1 - validate.real("confidence", confidence, above=0, below=1)
    allowed = min(floor(rate * others.size * (1 + 1e-12)), others.size - 1)  # 0.29·100 is 29
    threshold = float(np.nextafter(others[others.size - 1 - allowed], inf))
    found = at_least(members, threshold)
    alarms = at_least(others, threshold)
    return Rate(
        value=found / members.size,
        low=float(lower(found, members.size, error / 2)),
        high=float(upper(found, members.size, error / 2)),
        threshold=threshold,
        false_positive_rate=alarms / others.size,
        false_positive_limit=float(upper(alarms, others.size, error)),
    )
