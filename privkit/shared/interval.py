"""A value with its confidence limits, the one form of every measured number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its confidence interval.

    Attributes:
        n: number of trials, records or seeds behind it.
        confidence: of both limits together, in (0, 1).
        method: how the limits were found, in words; "exact" for a number that is not an estimate.
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
        hits: 0..trials. If a trial has several dependent parts, it counts by its share of hits; the interval then
            rounds outwards.
        trials: n ≥ 1.
        confidence: in (0, 1).

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
    """Both limits, which scipy takes milliseconds to search; a run asks for the same counts many times."""
    from scipy.stats import binomtest

    limits = binomtest(hits, trials).proportion_ci(confidence_level=confidence, method="exact")
    return float(limits.low), float(limits.high)
