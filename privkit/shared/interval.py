"""A value with its confidence limits, the form of every measured number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its confidence interval.

    Attributes:
        n: number of trials, records or seeds behind it.
        confidence: joint confidence of both limits, in (0, 1).
        method: name of the method behind the limits; "exact" for a number that is not an estimate.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95
    method: str


def clopper_pearson(hits: float, trials: int, confidence: float = 0.95) -> Interval:
    """The share of hits among independent trials with its exact interval; a ValueError without trials.

    Args:
        hits: number of hits, 0..trials. A trial with several dependent parts counts as its share of hits; the interval
            is then rounded outwards.
        trials: number of trials, n ≥ 1.
        confidence: joint confidence of both limits, in (0, 1).

    Source: Clopper and Pearson 1934, computed by scipy `binomtest`.
    """
    if trials < 1:
        raise ValueError("a share needs at least one trial: there is nothing to count")
    return Interval(
        value=hits / trials,
        low=_exact(floor(hits), trials, confidence)[0],
        high=_exact(ceil(hits), trials, confidence)[1],
        n=trials,
        confidence=confidence,
        method="Clopper–Pearson",
    )


@lru_cache(maxsize=4096)
def _exact(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Both limits, cached, because scipy needs milliseconds for them and a run asks for the same counts often."""
    from scipy.stats import binomtest

    limits = binomtest(hits, trials).proportion_ci(confidence_level=confidence, method="exact")
    return float(limits.low), float(limits.high)
