"""Task accuracy with an exact interval."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Proportion:
    """A share of `n` trials with its Clopper–Pearson interval, all in [0, 1]."""

    value: float
    low: float
    high: float
    n: int
    confidence: float


def accuracy(correct: int, trials: int, *, confidence: float = 0.95) -> Proportion:
    """Top-1 accuracy and its exact (Clopper–Pearson) interval over the test images; higher is better.

    Args:
        correct: 0..trials.
        trials: test images, ≥ 1.
        confidence: in (0, 1).

    Source: Clopper and Pearson 1934, computed by scipy `binomtest`.

    >>> accuracy(90, 100).low > 0.82
    True
    """
    from scipy.stats import binomtest

    if trials < 1:
        raise ValueError("accuracy needs at least one test image: there is nothing to count")
    interval = binomtest(correct, trials).proportion_ci(confidence_level=confidence, method="exact")
    return Proportion(
        value=correct / trials, low=float(interval.low), high=float(interval.high), n=trials, confidence=confidence
    )
