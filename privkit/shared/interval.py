"""A value with its confidence limits, the type of every measured number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its confidence interval.

    Attributes:
        value: the estimate, or the exact number.
        low: lower confidence limit.
        high: upper confidence limit.
        n: number of trials, records or seeds behind the value.
        confidence: probability in (0, 1) that both limits hold.
        method: name of the method that gave the limits; "exact" for a number that is no estimate.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95
    method: str


def clopper_pearson(hits: float, trials: int, confidence: float = 0.95) -> Interval:
    """The share of hits among independent trials, with its exact confidence interval.

    A trial with several dependent parts can count with its share of hits; `hits` is then rounded down for the lower
    limit and up for the upper limit. Raises ValueError without a trial.

    Source: Clopper and Pearson 1934, computed by scipy `binomtest`.
    """
    if trials < 1:
        raise ValueError("a share needs at least one trial: there is nothing to count")
    low, high = _exact(floor(hits), trials, confidence)[0], _exact(ceil(hits), trials, confidence)[1]
    how = "Clopper–Pearson"
    return Interval(value=hits / trials, low=low, high=high, n=trials, confidence=confidence, method=how)


@lru_cache(maxsize=4096)  # scipy needs milliseconds for each pair, and a run repeats the same counts
def _exact(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    from scipy.stats import binomtest

    limits = binomtest(hits, trials).proportion_ci(confidence_level=confidence, method="exact")
    return float(limits.low), float(limits.high)
