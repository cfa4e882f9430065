"""The Laplace mechanism: pure ε, Rényi divergence, and its privacy profile in one dimension."""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privkit.accountants import validate

Array = NDArray[np.float64]


def rdp(orders: ArrayLike, shift: ArrayLike) -> Array:
    """Rényi divergence of two Laplace laws of scale 1 that lie `shift` apart.

    Args:
        orders: α > 1.
        shift: L1 sensitivity over the scale b, ≥ 0.

    Source: Mironov 2017, Proposition 6.

    >>> float(rdp(2, 1.0).round(6))
    0.619124
    """
    a, t = np.asarray(orders, float), np.asarray(shift, float)
    up, down = (a - 1) * t, -a * t
    with np.errstate(over="ignore", invalid="ignore"):
        # p·up + (1 − p)·down = 0 with p = α/(2α − 1): without the linear terms nothing cancels.
        small = np.log1p((a * _beyond_linear(up) + (a - 1) * _beyond_linear(down)) / (2 * a - 1))
        large = np.logaddexp(np.log(a / (2 * a - 1)) + up, np.log((a - 1) / (2 * a - 1)) + down)
    return np.where(up < 1, small, large) / (a - 1)


def vector_rdp(orders: ArrayLike, parts: Sequence[tuple[float, int]]) -> Array:
    """Rényi divergence of independent coordinates: the sum of theirs.

    Args:
        orders: α > 1.
        parts: (shift, how many coordinates of it).

    Source: Mironov 2017, Proposition 1.

    >>> float(vector_rdp(2, [(1.0, 3)]).round(6))
    1.857371
    """
    return np.asarray(sum((count * rdp(orders, shift) for shift, count in parts), np.zeros(np.shape(orders))))


def _beyond_linear(x: Array) -> Array:
    """e^x − 1 − x ≥ 0, without cancellation."""
    series = x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7)))))
    return np.where(np.abs(x) < 0.01, series, np.expm1(x) - x)


def delta(epsilon: float, shift: float) -> float:
    """Smallest δ of one Laplace variable: 1 − exp((ε − t)/2) for ε ≤ t, else 0.

    Args:
        epsilon: ε ≥ 0.
        shift: t, sensitivity of the one coordinate over the scale, ≥ 0.

    Source: derived from the hockey-stick integral; equals Balle et al. 2018's profile.

    >>> round(delta(0.0, 1.0), 4)
    0.3935
    """
    e, t = validate.real("epsilon", epsilon, least=0), validate.real("shift", shift, least=0)
    return -expm1((e - t) / 2) if e < t else 0.0


def epsilon(delta_: float, shift: float) -> float:
    """Smallest ε at δ of one Laplace variable: t + 2·ln(1 − δ), at least 0.

    >>> round(epsilon(1e-5, 1.0), 6)
    0.99998
    """
    d, t = validate.delta(delta_), validate.real("shift", shift, least=0)
    return max(0.0, t + 2 * log(1 - d))


def scale_for(epsilon_: float, l1_sensitivity: float) -> float:
    """Scale b of the noise that makes a release ε-DP (δ = 0): sensitivity/ε.

    >>> scale_for(2.0, 512.0)
    256.0
    """
    return validate.real("l1_sensitivity", l1_sensitivity, above=0) / validate.real("epsilon", epsilon_, above=0)
