"""Whether repeated releases of the same data differ by the noise that a receipt names."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt

import numpy as np
from scipy.special import chdtr, gammainc, ndtr

from privkit.shared.array import Array

LEVEL = 1e-6
"""Chance that one test of honest noise raises an alarm."""
_ROUNDED = 0.1
"""Share of draws that equal another one of their coordinate, above which a noise was rounded."""


def unlike(draws: Array, law: str, scale: float = 1.0) -> str:
    """How draws of one release differ from independent noise of a law; empty if no test finds a difference.

    Five tests: the size of the noise in its weakest direction, its law in each coordinate, its size over all
    coordinates of one draw, its largest number, and repeated numbers. Shared, mirrored or lacking noise leaves a
    direction with little of it; clamped noise has no tail; rounded noise repeats.

    Args:
        draws: [K, p], K releases of the same data with other noise, K > p.
        law: "gaussian" or "laplace".
        scale: σ, or b.

    Source: Davidson and Szarek 2001, Theorem II.13, for the smallest singular value of Gaussian noise; Bai and Yin 1993
    for that of Laplace noise, with a wider margin.

    >>> noise = np.random.default_rng(0).normal(size=(1000, 8))
    >>> unlike(noise, "gaussian", 1.0), unlike(noise, "gaussian", 2.0)[:24]
    ('', 'it has standard deviatio')
    """
    k, p = draws.shape
    if p > 1 and (np.diff(np.sort(draws, 0), axis=0) == 0).mean() > _ROUNDED:
        return "its numbers repeat, as rounded or constant ones do"
    apart = (draws - draws.mean(0)) * sqrt(k / (k - 1)) / scale
    deviation = 1.0 if law == "gaussian" else sqrt(2)
    smallest = sqrt(max(0.0, np.linalg.eigvalsh(apart.T @ apart / k)[0])) / deviation
    margin = sqrt(-2 * log(LEVEL)) if law == "gaussian" else 8.0
    if smallest < 1 - (sqrt(p) + margin) / sqrt(k):
        return (
            f"it has standard deviation {smallest * deviation * scale:.4g} in its quietest direction, where "
            f"{deviation * scale:.4g} is declared"
        )
    if not _follows(apart.ravel(), ndtr if law == "gaussian" else _laplace):
        deviates = apart.std() * scale
        return f"its numbers have standard deviation {deviates:.4g} and do not follow the declared {law} law"
    sizes = (apart**2).sum(1) if law == "gaussian" else np.abs(apart).sum(1)
    if not _follows(sizes, lambda size: chdtr(p, size) if law == "gaussian" else gammainc(p, size)):
        return "its coordinates depend on each other"
    furthest = float(np.abs(apart).max())
    within = 2 * ndtr(furthest) - 1 if law == "gaussian" else 1 - np.exp(-furthest)
    if apart.size * np.log(within) < log(LEVEL):
        return f"none of {apart.size} numbers lies further than {furthest * scale:.4g}, as if it were clamped"
    return ""


def _follows(values: Array, law: Callable[[Array], Array]) -> bool:
    """Whether values are as near to a distribution function as independent draws of it are, at `LEVEL`.

    Source: Massart 1990, Corollary 1 (Dvoretzky–Kiefer–Wolfowitz).
    """
    n, expected = len(values), law(np.sort(values))
    steps = np.arange(n + 1) / n
    furthest = max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max())
    return bool(furthest <= sqrt(log(2 / LEVEL) / (2 * n)))


def _laplace(values: Array) -> Array:
    """Distribution function of Laplace noise of scale 1."""
    half = np.exp(-np.abs(values)) / 2
    return np.where(values < 0, half, 1 - half)
