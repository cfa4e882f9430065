"""Rényi curves of sampled releases: sums at whole orders for arrays of releases, and integrals at any order for one.

The sums interpolate between whole orders, and are cheap to compose. The integrals (`…_curve`) are exact up to rounding;
if an integral is too large to compute (μ in the hundreds), the result is αμ²/2, the divergence without sampling. All
results are upper bounds, and at most the curve without sampling. The A orders lie in (1, 100000]. A rate lies in [0,
1]; μ ≥ 0 is the L2 sensitivity divided by the noise's standard deviation. The tight profiles are in `subsampling`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, ndtr

from privkit.accountants import validate
from privkit.accountants.bounds.loss_distribution import LossDistribution
from privkit.accountants.bounds.subsampling import checked_orders, finite_numbers, rates
from privkit.shared.array import Array

_HIGHEST = 1e5  # highest order
_ROWS = 256  # releases that are computed at once, so that intermediate arrays stay in the cache
_MOST_NODES = 200_000  # nodes of one integral; beyond them, at shifts in the hundreds, the unsampled curve is returned
_MARGIN = 14.0
"""Standard deviations beyond the integrand's peaks where integration ends; the rest is below e^(−98) of the
integral."""
_SLACK = 1e-12
"""Every moment is raised by this share, above the errors of quadrature and rounding, so that it is an upper bound."""


def without_replacement_rdp(orders: ArrayLike, rate: float, rdp: Callable[[Array], Array]) -> Array:
    """Upper bound on the Rényi curve of one release from k of n clients under replace-one, for any mechanism: float
    [A], at A orders α > 1.

    The mechanism without sampling has the Rényi curve `rdp`, a vectorised function α ↦ ε(α) ≥ 0; `rate` is γ = k/n. At
    integers the result is the bound of Theorem 9. Between integers, (α − 1)ε(α) is interpolated: it is convex, and 0 at
    α = 1. `rdp` is evaluated at all integers up to the largest order, and at `orders`. Sampling cannot increase the
    divergence, so the result is never above `rdp`.

    Source: Wang, Balle and Kasiviswanathan 2019, Theorem 9 and Corollary 10.
    """
    a, g = checked_orders(orders, _HIGHEST), float(rates(validate.real("rate", rate)))
    flat = a.ravel()
    top = int(np.ceil(flat.max()))
    j = np.arange(2.0, top + 1)
    with np.errstate(divide="ignore", over="ignore"):
        curve, cap = _base_values(rdp, j), _base_values(rdp, flat)
        terms = (j - 1) * curve + np.log(2.0)
        terms[0] = min(terms[0], np.log(4) + log_expm1(curve[0]))
        terms += j * np.log(g)

        def cumulant(order: Array) -> Array:
            bound = np.logaddexp(0, _binomial_sums(terms[None], order))
            return np.asarray(np.minimum(bound, (order - 1) * curve[order.astype(int) - 2]))

        values = np.minimum(_interpolated(flat, cumulant)[0] / (flat - 1), cap)
    return values.reshape(a.shape) if g > 0 else np.zeros(a.shape)


def without_replacement_grid_rdp(orders: ArrayLike, rate: float, base: LossDistribution) -> Array:
    """The Rényi curve of one release from k of n clients under replace-one, if the loss without sampling is given on a
    grid: float [A].

    `base` is the distribution of the loss ln y without sampling, where y = P/Q is the likelihood ratio of two
    neighbors. This distribution must dominate the release's, and must stay the same if P and Q change roles.

    With γ = k/n (`rate`), the sampled ratio is L = 1 − γ + γy, and the curve ε(α) obeys e^{(α−1)ε(α)} = 1 + E_Q[f(L);
    y > 1] for f(L) = L^α − 1 − α(L − 1) + L^{1−α} − 1 + (α − 1)(L − 1). This mean grows with the base profile, since f
    is convex and touches 0 at L = 1. For small x = L − 1, f is replaced by its upper bound α(α − 1)x²/2·((1 + x)^{max(α
    − 2, 0)} + 1) (Taylor).

    The curve at A orders α > 1 is infinite if the base loss can be infinite, or if the mean overflows.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9 (the profile); the moment is derived as in `sampled_renyi`.

    >>> coin = LossDistribution(interval=1.0, lowest=-1, masses=np.array([1, 0, np.e]) / (1 + np.e), infinity=0.0)
    >>> without_replacement_grid_rdp([2, 8], 0.1, coin).round(6).tolist()
    [0.014609, 0.054139]
    """
    a, g = checked_orders(orders, _HIGHEST), float(rates(validate.real("rate", rate)))
    inside = (base.losses > 0) & (base.masses > 0)
    log_mass, x = (base.log_masses - base.losses)[inside], g * np.expm1(base.losses[inside])
    log_ratio = np.log1p(x)
    curve = np.full(a.size, np.inf)
    if base.infinity > 0 and g > 0:
        return curve.reshape(a.shape)
    for i, order in enumerate(a.ravel().tolist()):
        with np.errstate(over="ignore", invalid="ignore"):
            exact = np.expm1(order * log_ratio) + np.expm1((1 - order) * log_ratio) - x
            small = order * (order - 1) / 2 * x * x * (np.exp(max(order - 2, 0) * log_ratio) + 1)
            excess = float((np.exp(log_mass) * np.where(order * x < 1e-3, small, exact)).sum())
        if np.isfinite(excess):
            curve[i] = np.log1p(excess * (1 + 1e-9)) / (order - 1)
    return curve.reshape(a.shape)


def fixed_size_gaussian_rdp(orders: ArrayLike, rate: ArrayLike, mu: ArrayLike) -> Array:
    """Rényi curves of R Gaussian releases from k of n clients under replace-one, from the tight profile: upper bounds.

    For A orders α > 1 the result is [A], or [R, A] if `rate` (γ = k/n) or `mu` ≥ 0 (L2 sensitivity / σ) holds R
    numbers. It is never above the divergence αμ²/2 without sampling.

    Let x ~ N(0, 1), y = e^{μx − μ²/2} and L = 1 − γ + γy. The curve ε(α) obeys e^{(α−1)ε(α)} = 1 + E[L^α − 1 − α(L −
    1)] + E[L^{1−α} − 1 + (α − 1)(L − 1)], with both means taken over x > μ/2. The first mean is Σ_j C(α, j)(1 −
    γ)^{α−j}γ^j·a_j with a_j = E[y^j − 1 − j(y − 1)] ≥ 0. The second is at most C(α, 2)γ²·a_2 (Taylor); this is tight if
    it is large enough to matter. Between integers, (α − 1)ε(α) is interpolated, since it is convex.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9 (the profile); the moments are derived as in `sampled_renyi`,
    which integrates both parts exactly. Theorem 27 of Wang, Balle and Kasiviswanathan 2019 is about twice as large.
    """

    def reverse(order: Array, rate: Array, mu: Array) -> Array:
        return np.asarray(np.log(order * (order - 1) / 2) + 2 * np.log(rate) + _log_half_gaps(2, mu))

    return gaussian_rows(orders, rate, mu, _fixed_size_terms, _log_nobody, reverse)


def poisson_gaussian_rdp(orders: ArrayLike, rate: ArrayLike, mu: ArrayLike) -> Array:
    """Rényi curves of R Poisson-sampled Gaussian releases under add-or-remove-one: upper bounds, exact at integer
    orders.

    For A orders α > 1 the result is [A], or [R, A] if `rate` or `mu` ≥ 0 (L2 sensitivity / σ) holds R numbers. It is
    never above the divergence αμ²/2 without sampling.

    Source: Mironov, Talwar and Zhang 2019, §3.3. Their sum is taken over e^{j(j−1)μ²/2} − 1, so that all terms have one
    sign.
    """
    return gaussian_rows(orders, rate, mu, _poisson_terms, _log_nobody)


def gaussian_rows(
    orders: ArrayLike,
    rate: ArrayLike,
    mu: ArrayLike,
    terms: Callable[[int, Array, Array], Array],
    offset: Callable[[Array, Array], Array] = lambda order, rate: np.zeros_like(rate * order),
    more: Callable[[Array, Array, Array], Array] = lambda order, rate, mu: np.full_like(rate * order, -np.inf),
) -> Array:
    """Rényi curves of R sampled Gaussians at A orders α > 1, [R, A]: ln(1 + e^offset · Σ_j C(α,j) e^{term_j} +
    e^more)/(α − 1), at most αμ²/2. The formula is evaluated at integers α; between integers, (α − 1)·curve is
    interpolated."""
    a, (g, m) = checked_orders(orders, _HIGHEST), np.broadcast_arrays(rates(rate), finite_numbers("mu", mu, least=0))
    flat, shape = a.ravel(), (*g.shape, *a.shape)
    g, m = g.ravel()[:, None], m.ravel()[:, None]
    values = np.empty((g.size, flat.size))
    top = int(np.ceil(flat.max()))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        for start in range(0, g.size, _ROWS):
            part = slice(start, start + _ROWS)
            inside = np.clip(g[part], 1e-300, 1 - 1e-16)  # the ends are set below
            log_terms = terms(top, inside, m[part])

            def cumulant(order: Array, rows: Array = inside, log_terms: Array = log_terms, part: slice = part) -> Array:
                sums = offset(order, rows) + _binomial_sums(log_terms, order)
                bound = np.logaddexp(0, np.logaddexp(sums, more(order, rows, m[part])))
                return np.asarray(np.minimum(bound, order * (order - 1) * m[part] ** 2 / 2))

            values[part] = _interpolated(flat, cumulant) / (flat - 1)
        unsampled = flat * m**2 / 2
    values = np.where(g == 1, unsampled, np.where((g == 0) | (m == 0), 0.0, np.minimum(values, unsampled)))
    return values.reshape(shape)


def _poisson_terms(top: int, rate: Array, mu: Array) -> Array:
    # ln[(q/(1−q))^j (e^{j(j−1)μ²/2} − 1)] for j = 2..top, [R, top − 1]
    j = np.arange(2.0, top + 1)
    return np.asarray(j * (np.log(rate) - np.log1p(-rate)) + log_expm1(j * (j - 1) * mu**2 / 2))


def _fixed_size_terms(top: int, rate: Array, mu: Array) -> Array:
    # ln[(γ/(1−γ))^j·a_j] of `fixed_size_gaussian_rdp` for j = 2..top, [R, top − 1]
    j = np.arange(2.0, top + 1)
    return np.asarray(j * (np.log(rate) - np.log1p(-rate)) + _log_half_gaps(j, mu))


def _log_half_gaps(j: ArrayLike, mu: Array) -> Array:
    # ln E[y^j − 1 − j(y − 1); x > μ/2] for y = e^{μx − μ²/2}, raised by a bound on the error of cancellation
    power = np.asarray(j, float)
    exponent = power * (power - 1) * mu**2 / 2
    below, above = ndtr(-mu / 2), ndtr(mu / 2)  # E[1; x > μ/2] and E[y; x > μ/2]
    moment = np.exp(np.minimum(exponent, 30.0)) * ndtr((power - 0.5) * mu)
    gap = moment - below - power * (above - below) + 4 * np.finfo(float).eps * (moment + power)
    whole_line = log_expm1(exponent)
    return np.minimum(np.where(exponent < 30, np.log(np.maximum(gap, 0)), whole_line + 1e-12), whole_line + 1e-12)


def _log_nobody(order: Array, rate: Array) -> Array:
    return order * np.log1p(-rate)


def _binomial_sums(terms: Array, orders: Array) -> Array:
    # ln Σ_{j=2..α} C(α, j) e^{term_j} for integer orders α, [R, J] → [R, A]
    sums = np.empty((terms.shape[0], orders.size))
    factorial = gammaln(np.arange(1, orders.max() + 2))
    for i, order in enumerate(orders.astype(int).tolist()):
        part = terms[:, : order - 1] + (factorial[order] - factorial[2 : order + 1] - factorial[order - 2 :: -1])
        peak = np.maximum(part.max(1, keepdims=True), -1e300)
        part -= peak
        np.exp(part, out=part)
        sums[:, i] = np.log(part.sum(1)) + peak[:, 0]
    return sums


def _interpolated(orders: Array, cumulant: Callable[[Array], Array]) -> Array:
    """(α − 1)ε(α), [R, A], interpolated linearly between integers α; it is convex, so this is an upper bound."""
    floor, ceiling = np.floor(orders), np.ceil(orders)
    if np.array_equal(floor, ceiling):
        return cumulant(orders)
    needed = np.unique(np.concatenate([floor, ceiling]))
    needed = needed[needed > 1]
    values = cumulant(needed)
    if floor.min() == 1:
        needed, values = np.insert(needed, 0, 1.0), np.concatenate([np.zeros((len(values), 1)), values], axis=1)
    low, high = np.searchsorted(needed, floor), np.searchsorted(needed, ceiling)
    part = orders - floor
    with np.errstate(invalid="ignore"):
        mixed = (1 - part) * values[:, low] + part * values[:, high]
    return np.where(part == 0, values[:, low], mixed)


def log_expm1(x: Array) -> Array:
    """ln(e^x − 1) for x ≥ 0."""
    return np.where(x > 1, x + np.log1p(-np.exp(-np.maximum(x, 1))), np.log(np.expm1(np.minimum(x, 1))))


def _base_values(rdp: Callable[[Array], Array], orders: Array) -> Array:
    curve = np.asarray(rdp(orders), float)
    if curve.shape != orders.shape or not np.all(curve >= 0):
        raise ValueError("the base Rényi curve must give a number >= 0 for every order")
    return curve


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
    a = checked_orders(orders, _HIGHEST)
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
