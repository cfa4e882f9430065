"""Means over seeds or records, with confidence intervals that stay inside the quantity's range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, hypot, isfinite, log, log1p

import numpy as np

from privkit.reports.columns import START
from privkit.reports.schema import Metrics, Row, Summary
from privkit.shared.interval import Interval
from privkit.shared.measures import UNBOUNDED, likeness, measure

_Key = tuple[str, str, str, str]  # defense, attack, floor and protocol
_Values = dict[int, dict[str, Interval]]  # seed -> name -> value with its limits


def over_values(values: Sequence[float], confidence: float, within: tuple[float, float] = UNBOUNDED) -> Interval:
    """The mean of n ≥ 1 values (of seeds or records) with Student's interval, which stays inside the range (low, high).

    Near an end of the range the distribution is skewed, and a symmetric interval would have too low coverage. So the
    half width t·s/√n (Student's quantile t, standard deviation s) is transformed by the delta method: to the logit
    scale if the range has two ends, or to the log scale if it has only a lower end. The limits are transformed back. If
    some values are infinite, the limits are the smallest and the largest value. The interval of a single value is the
    whole range.

    Source: Student 1908 and the delta method; for proportions over few clusters Korn and Graubard 1998, for AUC Pepe
        2003, §5.2. Coverage is simulated in `tests/reports/test_seed_intervals.py`.
    """
    from scipy.special import stdtrit

    mean, n, (low, high) = float(np.mean(values)), len(values), within
    if not isfinite(mean):
        limits, method = (float(np.min(values)), float(np.max(values))), "smallest and largest value"
        return Interval(value=mean, low=limits[0], high=limits[1], n=n, confidence=confidence, method=method)
    if n == 1:
        return Interval(
            value=mean, low=min(low, mean), high=max(mean, high), n=1, confidence=confidence, method="none: one value"
        )
    half = float(stdtrit(n - 1, (1 + confidence) / 2) * np.std(values, ddof=1) / n**0.5)
    share = (mean - low) / (high - low) if isfinite(high - low) else 0.5
    inside = low < mean < high and 0 < share < 1  # a mean next to an end may round to a share of 1
    if half == 0 or not isfinite(low) or not inside:  # values are equal, unbounded, or outside the range
        limits, method = (mean - half, mean + half), "Student"
        if low <= mean <= high:
            limits = max(low, limits[0]), min(high, limits[1])
    elif isfinite(high):
        center, spread = log(share) - log1p(-share), half / (high - low) / (share * (1 - share))
        limits = (low + (high - low) * _logistic(center - spread), low + (high - low) * _logistic(center + spread))
        method = "Student, on the logit scale"
    else:
        spread = min(half / (mean - low), 700.0)  # e^700 is nearly the largest number
        limits = (low + (mean - low) * exp(-spread), low + (mean - low) * exp(spread))
        method = "Student, on the log scale"
    return Interval(value=mean, low=limits[0], high=limits[1], n=n, confidence=confidence, method=method)


def over_records(values: Sequence[float], confidence: float, within: tuple[float, float] = UNBOUNDED) -> Interval:
    """The mean of a value over n ≥ 1 records, with the interval of `over_values`.

    A percentile bootstrap is too narrow for few records: with 2 records it contains the mean in half of all cases. If
    all values are equal and the range has two ends, the interval comes from Clopper–Pearson's limit of the share of
    records that may have another value. Records are treated as independent, although a mixing defense makes the records
    of one message dependent.
    """
    found, (low, high) = over_values(values, confidence, within), within
    if found.low == found.high and found.n > 1 and low <= found.value <= high and isfinite(high - low):
        others = 1 - ((1 - confidence) / 2) ** (1 / found.n)
        limits = found.value - others * (found.value - low), found.value + others * (high - found.value)
        return replace(found, low=limits[0], high=limits[1], method="Clopper–Pearson limit of other values")
    if not isfinite(found.value):  # an exact copy has an infinite PSNR, and so has the mean
        return replace(found, method="smallest value and infinity")
    return replace(found, method=f"{found.method}, over records" if found.n > 1 else found.method)


def over_intervals(
    found: Sequence[Interval], confidence: float, within: tuple[float, float] = UNBOUNDED, *, fitted: bool = False
) -> Interval:
    """The mean of a value over n ≥ 1 seeds, with an interval that is at least as wide as the seeds' intervals imply.

    Few seeds may agree by chance. For three shares of 1, each from 100 records, Student's interval is a point, although
    the records alone allow a share of 0.98. The squared half widths of independent seeds add up. If each seed's value
    is the best of many, chosen by comparison with the truth (`fitted`), all seeds err in the same direction. Averaging
    does not remove this error, so the limits are then at least as wide as the mean of the seeds' limits.

    Source: `over_values`; Zou and Donner 2008 (limits of a sum from the limits of its parts).
    """
    over, n = over_values([one.value for one in found], confidence, within), len(found)
    below, above = [one.value - one.low for one in found], [one.high - one.value for one in found]
    if not all(map(isfinite, (*below, *above))):
        return over

    def joined(parts: Sequence[float]) -> float:
        return sum(parts) if fitted else hypot(*parts)

    low, high = (min(over.low, over.value - joined(below) / n), max(over.high, over.value + joined(above) / n))
    wider = (low, high) != (over.low, over.high)
    return replace(
        over, low=low, high=high, method=f"{over.method}, at least as wide as over records" if wider else over.method
    )


def _logistic(x: float) -> float:
    return 1 / (1 + exp(-x)) if x > -700 else 0.0  # without overflow


def over_seeds(rows: Sequence[Row], confidence: float = 0.95) -> list[Summary]:
    """The means over seeds for every defense and attack, and for every guess without the release (floor). A single seed
    gives no summary. A mean's interval (`seed_intervals.over_intervals`) covers random splits, weights and draws."""
    groups: dict[_Key, _Values] = {}
    done = [row for row in rows if row.status == "done"]
    for row in done:
        values = _means(row.recovered) | row.answers
        values |= {"accuracy": row.accuracy} if row.accuracy else {}
        groups.setdefault((row.defense, row.attack, "", ""), {})[row.seed] = values
    for row in done:
        for name, metrics in row.floors.items():
            key = (row.defense, row.attack, name, "") if name == START else ("", "", name, row.protocol)
            groups.setdefault(key, {})[row.seed] = _means(metrics)
    made = []
    for (defense, attack, floor, protocol), by_seed in _merged(groups).items():
        first, *others = by_seed.values()
        if not others:
            continue
        means = {}
        for name in (name for name in first if all(name in other for other in others)):
            found, of = [values[name] for values in (first, *others)], measure(name)
            means[name] = over_intervals(found, confidence, of.within, fitted=of.fitted)
        named = {"defense": defense, "attack": attack, "floor": floor, "protocol": protocol}
        made.append(Summary(**named, seeds=tuple(by_seed), values=means))
    return made


def _merged(groups: Mapping[_Key, _Values]) -> dict[_Key, _Values]:
    found: dict[_Key, _Values] = {}
    for named, values in groups.items():
        alike = all(other == values for key, other in groups.items() if key[:3] == named[:3])
        found.setdefault((*named[:3], "" if alike else named[3]), values)
    return found


def _means(metrics: Mapping[str, Metrics]) -> dict[str, Interval]:
    means: dict[str, Interval] = dict(metrics.get("unaligned", {}))
    matched = metrics.get("matched", {})
    return means | {f"matched_{name}": matched[name] for name in filter(None, [likeness(list(matched))])}
