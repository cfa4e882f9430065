"""Exact privacy profiles of Gaussian releases: of one release, of arrays of releases, and of sampled releases."""

from __future__ import annotations

from math import sqrt
from typing import overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, erfcx, log_ndtr, ndtr

from privkit.accountants import validate
from privkit.accountants.bounds.loss_distribution import Pair, Profile
from privkit.accountants.bounds.subsampling import finite_numbers, poisson_added_delta, without_replacement_delta
from privkit.accountants.search import doubled, narrowed
from privkit.shared.array import Array


@overload
def delta(epsilon: float, mu: float) -> float: ...
@overload
def delta(epsilon: ArrayLike, mu: ArrayLike) -> Array: ...
def delta(epsilon: ArrayLike, mu: ArrayLike) -> float | Array:
    r"""The smallest δ for which a Gaussian release is (ε, δ)-DP: δ(ε) = Φ(a) − e^ε·Φ(b) with a = μ/2 − ε/μ and b = −μ/2
    − ε/μ.

    As b² − a² = 2ε, the second term is ½·exp(−a²/2)·erfcx(−b/√2), so nothing overflows even if ε is in the thousands.
    If both terms are small, their difference is taken before the exponential.

    Args:
        epsilon: ε ≥ 0 in nats, a number or an array.
        mu: μ ≥ 0, a number or an array that broadcasts against `epsilon`: the L2 sensitivity divided by the noise's
            standard deviation. T releases together have the shift √T·μ. If μ = 0, the release does not depend on the
            record.

    Source: Balle and Wang 2018, Theorem 8.

    >>> round(delta(1.0, 1.0), 6), round(delta(800.0, 40.0), 7)
    (0.126937, 0.4900327)
    """
    e, m = finite_numbers("epsilon", epsilon, least=0), finite_numbers("mu", mu, least=0)
    with np.errstate(under="ignore"):
        deltas = np.exp(log_delta(e, m))
    return deltas if deltas.ndim else float(deltas)


def log_delta(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """ln δ at ε ≥ 0 for a Gaussian release of shift μ ≥ 0; −inf if μ = 0. The arguments broadcast, and they are not
    checked, since inner loops call this function."""
    e, m = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(mu, float))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a, b = m / 2 - e / m, -m / 2 - e / m
        second = erfcx(-b / sqrt(2))
        gap = np.maximum(erfcx(np.maximum(-a, 0) / sqrt(2)) - second, 0)  # rounds below 0 only where e^(−a²/2) is 0
        tail = -a * a / 2 + np.log(0.5 * gap)
        body = np.log(np.where(e == 0, erf(m / sqrt(8)), np.exp(log_ndtr(a)) - 0.5 * np.exp(-a * a / 2) * second))
        logs = np.where(a < 0, tail, body)
    return np.where(m == 0, -np.inf, logs)


def fast_delta(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """δ at ε ≥ 0 for a Gaussian release of shift μ ≥ 0, without logarithms or checks, for the large arrays of numerical
    composition. The absolute error is about 1e-16.

    >>> float(fast_delta(1.0, 1.0).round(6))
    0.126937
    """
    e, m = np.asarray(epsilon, float), np.asarray(mu, float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        a = m / 2 - e / m
        deltas = ndtr(a) - 0.5 * np.exp(-a * a / 2) * erfcx((m - a) / sqrt(2))  # −b = μ − a
    return np.where(m == 0, 0.0, np.maximum(deltas, 0.0))


@overload
def epsilon(delta_: float, mu: float) -> float: ...
@overload
def epsilon(delta_: ArrayLike, mu: ArrayLike) -> Array: ...
def epsilon(delta_: ArrayLike, mu: ArrayLike) -> float | Array:
    """The smallest ε ≥ 0 for which a Gaussian release of shift μ ≥ 0 is (ε, δ)-DP, at δ in (0, 1).

    It is 0 if δ is at least the total variation 2Φ(μ/2) − 1.

    Source: Balle and Wang 2018, Theorem 8, solved for ε by Newton's method inside a bracket.

    >>> round(epsilon(1e-5, 1.0), 4), epsilon(0.5, 1.0)
    (4.3772, 0.0)
    """
    target, m = np.asarray(delta_, float), finite_numbers("mu", mu, least=0)
    if not np.all((target > 0) & (target < 1)):
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta_!r}")
    target, m = np.broadcast_arrays(np.log(target), m)
    shape, target, m = m.shape, target.ravel(), m.ravel()
    epsilons = np.zeros(m.size)
    rows = np.flatnonzero(log_delta(0.0, m) > target)
    if rows.size:
        epsilons[rows] = _inverse(target[rows], m[rows])
    return epsilons.reshape(shape) if shape else float(epsilons[0])


def _inverse(target: Array, m: Array) -> Array:
    """The ε > 0 with ln δ(ε; μ) = `target` for each shift μ in `m`, [n]: Newton's method on ln δ, and bisection if a
    step leaves the bracket."""
    low, high = np.zeros_like(m), m * m / 2 + m * np.sqrt(-2 * target)  # the RDP conversion at its best order
    e = high.copy()
    for _ in range(200):
        value = log_delta(e, m)
        above = value > target
        low, high = np.where(above, e, low), np.where(above, high, e)
        a = m / 2 - e / m
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # δ' = −e^ε Φ(−μ/2 − ε/μ), written so that large ε do not overflow: ε − b²/2 = −a²/2
            slope = -0.5 * erfcx((m - a) / sqrt(2)) * np.exp(-a * a / 2 - value)
            step = e - (value - target) / slope
        # Each Newton step squares the error, so no step matters after one of size 1e-9.
        done = np.abs(step - e) <= 1e-9 * e
        e = np.where(done | (step > low) & (step < high), step, (low + high) / 2)
        if np.all(done | (high - low <= 1e-15 * high)):
            return e
    return e


def mu_for(epsilon_: float, delta_: float) -> float:
    """The largest shift μ whose Gaussian release is (ε, δ)-DP. The noise's standard deviation is then the L2
    sensitivity divided by μ.

    Source: Balle and Wang 2018, Algorithm 1 (solved here in logarithms).

    >>> round(3.7306316348159374 * mu_for(1.0, 1e-5), 9)
    1.0
    """
    e, target = float(finite_numbers("epsilon", epsilon_, least=0)), float(delta_)
    if not 0 < target < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, got {delta_!r}")

    def private(mu: float) -> bool:
        return bool(log_delta(e, mu) < np.log(target))

    return narrowed(private, *doubled(private, 0.0, 1.0))[0]


def rdp(orders: ArrayLike, mu: ArrayLike) -> Array:
    """The Rényi divergence of order α > 1 of a Gaussian release whose shift is μ standard deviations of the noise:
    α·μ²/2. Orders and μ broadcast.

    Source: Mironov 2017, Proposition 7 (Corollary 3).
    """
    return np.asarray(orders, float) * np.square(finite_numbers("mu", mu, least=0)) / 2


def profile(mu: float) -> Profile:
    """The privacy profile (a function from ε ≥ 0 to δ) of one Gaussian release of shift `mu`.

    Source: Balle and Wang 2018, Theorem 8.
    """
    m = validate.real("mu", mu, least=0)
    return lambda epsilon: np.exp(log_delta(epsilon, m))


def without_replacement_profile(rate: float, mu: float) -> Profile:
    """The tight privacy profile of one Gaussian release of shift `mu` from k of n clients, under replace-one. `rate` is
    k/n.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9; Balle and Wang 2018, Theorem 8.
    """
    g, base = validate.real("rate", rate, least=0, most=1), profile(mu)
    return lambda epsilon: without_replacement_delta(epsilon, g, base)


def poisson_profiles(rate: float, mu: float) -> Pair:
    """The privacy profiles of one Poisson-sampled Gaussian release of shift `mu` under add-or-remove-one, for both
    directions: with the record against without it, and the reverse.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 8.
    """
    q, base = validate.real("rate", rate, least=0, most=1), profile(mu)
    return (
        lambda epsilon: without_replacement_delta(epsilon, q, base),
        lambda epsilon: poisson_added_delta(epsilon, q, base),
    )
