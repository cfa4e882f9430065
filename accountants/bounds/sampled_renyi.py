"""Rényi divergence of sampled Gaussians at any order, whole or fractional: an upper bound, exact up to rounding.

The functions take A orders in (1, 100000], the sampling rate in [0, 1], and μ ≥ 0, the L2 sensitivity divided by the
noise's standard deviation. They return float [A], at most the divergence αμ²/2 without sampling. If the integral is too
large to compute (μ in the hundreds), they return αμ²/2.
"""

from __future__ import annotations

from math import pi

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.bounds.subsampling import finite_numbers
from privkit.shared.array import Array

_MOST_NODES = 200_000  # nodes of one integral; beyond them, at shifts in the hundreds, the unsampled curve is returned
_MARGIN = 14.0
"""Standard deviations beyond the integrand's peaks where integration ends; the rest is below e^(−98) of the
integral."""
_SLACK = 1e-12
"""Every moment is raised by this share, above the errors of quadrature and rounding, so that it is an upper bound."""


def poisson_gaussian_curve(orders: ArrayLike, rate: float, mu: float) -> Array:
    """The Rényi divergence of one Poisson-sampled Gaussian release under add-or-remove-one, at A orders α in (1,
    100000]: float [A].

    With rate q and shift μ (in standard deviations of the noise), it is ln E L^α/(α − 1) for the likelihood ratio L = 1
    − q + q·e^{μx − μ²/2} of x ~ N(0, 1). We integrate E[L^α − 1 − α(L − 1)] by the trapezoidal rule. The integrand is
    never negative, so small divergences keep their digits.

    Error of the rule: on the line Im x = b with 2bμ ≤ π, the integrand's modulus integrates to at most √2·(2 +
    b²)·e^{b²/2} times the integral. So a rule of step h has a relative error below e^{−40} if b²/2 − 2πb/h ≤ −47.

    Source: Mironov, Talwar and Zhang 2019, Theorem 5 (the larger direction); the error of the rule is derived from
    Trefethen and Weideman 2014, Theorem 5.1.
    """
    return _by_order(orders, rate, mu, both=False)


def without_replacement_gaussian_curve(orders: ArrayLike, rate: float, mu: float) -> Array:
    """The Rényi divergence of one Gaussian release from k of n clients under replace-one, at A orders α in (1, 100000]:
    float [A].

    Let γ = k/n be the rate and δ_G the profile of the unsampled release. The tight profile is γ·δ_G(ln(1 + (e^ε −
    1)/γ)) in both directions. A Rényi divergence ε(α) is an integral over a profile. Let L = 1 − γ + γ·e^{μx − μ²/2}.
    Then e^{(α−1)ε(α)} is 1 plus the means, over x ~ N(0, 1) with x > μ/2, of L^α − 1 − α(L − 1) and of L^{1−α} − 1 + (α
    − 1)(L − 1). The result is at most the bound of Wang, Balle and Kasiviswanathan 2019.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9 (the profile); the integral: derived from Liese and Vajda 2006,
    Theorem 11. A dominating profile gives a dominating divergence.
    """
    return _by_order(orders, rate, mu, both=True)


def _by_order(orders: ArrayLike, rate: float, mu: float, both: bool) -> Array:
    a = finite_numbers("order", orders)
    if not a.size or np.any((a <= 1) | (a > 1e5)):
        raise ValueError(f"orders must be numbers > 1 and <= 100000, at least one, got {orders!r}")
    q, m = validate.real("rate", rate, least=0, most=1), validate.real("mu", mu, least=0)
    unsampled = a * m**2 / 2
    if q in (0.0, 1.0) or m == 0:
        return unsampled * q
    moment, q = _half_line if both else _line, max(q, 1e-100)
    log_moment = [moment(order, q, m) for order in a.ravel().tolist()]
    return np.asarray(np.minimum(np.logaddexp(0, np.array(log_moment).reshape(a.shape)) / (a - 1), unsampled))


def _line(order: float, rate: float, mu: float) -> float:
    step = 0.64 if mu < 0.16 else pi**2 / (47 * mu + pi**2 / (8 * mu))  # b = 2π/h and b = π/2μ
    low, high = -_MARGIN - max(2 - order, 0.0) * mu, _MARGIN + max(order, 2.0) * mu
    if (high - low) / step > _MOST_NODES:
        return np.inf
    x = np.arange(low, high + step, step)
    return _log_sum(_log_excess(order, rate, mu * x - mu * mu / 2) + np.log(step), x)


def _half_line(order: float, rate: float, mu: float) -> float:
    """ln of the sum of both integrals over x > μ/2, where L > 1, by Gauss–Legendre quadrature on short pieces."""
    high = _MARGIN + max(order, 2.0) * mu
    width = min(0.5, 0.4 / mu)
    pieces = int(np.ceil((high - mu / 2) / width))
    if pieces * 16 > _MOST_NODES:
        return np.inf
    node, weight = np.polynomial.legendre.leggauss(16)
    width = (high - mu / 2) / pieces
    x = (mu / 2 + width * (np.arange(pieces)[:, None] + (node + 1) / 2)).ravel()
    log_weight = np.log(np.tile(weight * width / 2, pieces))
    log_ratio = mu * (x - mu / 2)
    terms = np.logaddexp(_log_excess(order, rate, log_ratio), _log_excess(1 - order, rate, log_ratio))
    return _log_sum(terms + log_weight, x)


def _log_sum(terms: Array, x: Array) -> float:
    # ln Σ e^term·φ(x), raised by a bound on the rounding error
    terms = terms - x * x / 2 - np.log(2 * pi) / 2
    if (peak := float(terms.max())) == -np.inf:  # a shift whose square underflows
        return peak
    return peak + float(np.log(np.exp(terms - peak).sum())) + _SLACK + 1e-15 * abs(peak)


def _log_excess(order: float, rate: float, log_ratio: Array) -> Array:
    """ln[L^p − 1 − p(L − 1)] for L = 1 − q + q·e^{log_ratio}, with q = `rate` and p = `order` outside [0, 1]."""
    u = rate * np.expm1(np.minimum(log_ratio, 700))
    log_mixed = np.where(log_ratio < 40, np.log1p(u), np.logaddexp(np.log1p(-rate), np.log(rate) + log_ratio))
    small = (np.abs(u) <= 0.05) & (abs(order) * np.abs(u) <= 0.5)
    power = order * log_mixed
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # L^p − 1 − p·u keeps its digits near p = 0; L·(L^{p−1} − 1) − (p − 1)·u, which equals it, near p = 1.
        if abs(order) < 0.5:
            gap = np.expm1(power) - order * u
        else:
            gap = (1 + u) * np.expm1((order - 1) * log_mixed) - (order - 1) * u
        found = np.where(power > 300, power, np.log(gap))
        near = u[small]
        series, term = np.zeros_like(near), np.full_like(near, order * (order - 1) / 2)
        for k in range(2, 22):
            series += term
            term = term * (order - k) / (k + 1) * near
        found[small] = np.log(series) + 2 * np.log(np.abs(near))
    return found
