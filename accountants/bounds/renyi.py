"""From Rényi differential privacy to (ε, δ): conversions, and the best order of a grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.bounds.bound import Limit
from privkit.shared.array import Array

RENYI_ORDERS: tuple[float, ...] = (
    *(1 + 10.0**e for e in range(-6, -2)),
    *(1 + i / 100 for i in range(1, 10)),
    *(1 + i / 10 for i in range(1, 30)),
    *(float(i) for i in range(4, 65)),
    *(72.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 224.0, 256.0, 320.0, 384.0, 448.0, 512.0, 1024.0, 2048.0, 4096.0),
)
"""Rényi orders that are tried if a curve is known at every order > 1."""
SAMPLED_ORDERS = np.arange(2.0, 65.0)  # orders at which the curves of sampled releases are tried
COARSE_ORDERS = tuple(
    map(np.array, ([2.0, 3.0, 4.0, 6.0, 9.0, 14.0], [14.0, 18.0, 22.0, 28.0, 36.0, 44.0, 54.0, 64.0]))
)
"""Orders of `SAMPLED_ORDERS` that are tried first; the second list follows if the last order of the first is the best.
"""
BANDS = ((2.0, 9.0), (14.0, 22.0), (28.0, 36.0), (44.0, 64.0))
"""Bands of coarse orders. If the best order is in a band, all orders between the coarse orders below and above this
band are tried."""
HIGH_ORDERS = tuple(map(np.array, ([64.0, 80.0, 112.0, 160.0], [160.0, 224.0, 320.0, 448.0])))
"""Further orders, tried list by list if the last of `SAMPLED_ORDERS` is the best, which happens at small ε."""


def canonne(orders: ArrayLike, rdp: ArrayLike, delta: ArrayLike) -> Array:
    """The ε at δ that each order α > 1 proves for a mechanism with Rényi divergence ε_α (`rdp`): ε_α + ln(1 − 1/α) −
    ln(αδ)/(α − 1). A negative value proves (0, δ)-DP.

    At every order, this ε is below ε_α + ln(1/δ)/(α − 1), the formula of Mironov 2017, Proposition 3.

    Source: Canonne, Kamath and Steinke 2020, Proposition 12 (Balle et al. 2020, Theorem 21).
    """
    a = np.asarray(orders, float)
    return np.asarray(np.asarray(rdp, float) + np.log1p(-1 / a) - (np.log(delta) + np.log(a)) / (a - 1))


def log_delta(orders: ArrayLike, rdp: ArrayLike, epsilon: ArrayLike) -> Array:
    """The ln δ at ε that each order α > 1 proves for a mechanism with Rényi divergence ε_α (`rdp`): (α − 1)(ε_α − ε +
    ln(1 − 1/α)) − ln α, at most 0.

    Source: Canonne, Kamath and Steinke 2020, Proposition 12, solved for δ.
    """
    a = np.asarray(orders, float)
    logs = (a - 1) * (np.asarray(rdp, float) - np.asarray(epsilon, float) + np.log1p(-1 / a)) - np.log(a)
    return np.asarray(np.minimum(logs, 0.0))


def best_epsilon(orders: ArrayLike, rdp: ArrayLike, delta: float) -> Limit:
    """The smallest ε ≥ 0 at δ in (0, 1) that a Rényi curve proves by the conversion `canonne`, and the order that
    proves it. The curve is given at A increasing orders > 1: `rdp` [A] holds upper bounds ≥ 0 on the divergence, `inf`
    if none is known."""
    a, r = np.asarray(orders, float), np.asarray(rdp, float)
    if a.ndim != 1 or a.shape != r.shape or not a.size:
        raise ValueError(f"orders and rdp must be two lists of one length >= 1, got shapes {a.shape} and {r.shape}")
    if not np.all(np.isfinite(a) & (a > 1)):
        raise ValueError(f"orders must be finite numbers > 1, got {orders!r}")
    if np.any(np.isnan(r) | (r < 0)):
        raise ValueError(f"rdp must hold numbers >= 0, got {rdp!r}")
    validate.delta(delta)
    values = canonne(a, r, delta)
    at = int(np.argmin(values))
    return Limit(value=max(0.0, float(values[at])), order=float(a[at]), at_edge=at in (0, len(a) - 1))
