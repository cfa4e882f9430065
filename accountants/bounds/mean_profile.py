r"""The mean of many Gaussian privacy profiles at many ε, by piecewise polynomials that are never below it.

A loss distribution needs δ(ε) = E δ_G(ε; μ) at some 10⁵ ε. Here δ_G is the profile of a Gaussian release, and the
shift μ is random with some 10³ values (a law of mixing ratios). We split the ε into panels, evaluate the mean at n =
`_NODES` Chebyshev nodes of a panel, and interpolate. With a = μ/2 − ε/μ, the normal density φ and the Hermite
polynomials He_j, the n-th derivative is

    δ_G⁽ⁿ⁾ = −e^ε Φ(a − μ) + Σ_{j ≤ n−2} He_j(a)·φ(a)/μ^{j+1},

so a panel of half-width h has an error of at most 2·(h/2)ⁿ/n!·max |δ⁽ⁿ⁾|. To bound the maximum, we put the largest |a|
into the polynomials, with all signs set to plus, and the smallest |a| into φ. A panel is halved until this error is
below `_TOLERANCE` of δ at its end. The error is then added to the mean.

Source: derived; the error of interpolation: Trefethen, Approximation Theory and Approximation Practice, 2013.
"""

from __future__ import annotations

from math import factorial, pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr

from privkit.shared.array import Array

_NODES = 28  # nodes of a panel; a panel with fewer ε is computed at the ε themselves
_TOLERANCE = 1e-15  # error of a panel's polynomial, relative to δ at its end
_STEEPEST = 10.0  # largest ratio of δ at a panel's two ends; it keeps rounding small relative to the smaller δ
_CHUNK = 1 << 17  # elements of ε × μ that are in memory at a time
_BODY = 4.0  # a above which Φ(a) is computed directly, without the factor e^{−a²/2}
_ROUNDING, _CANCELLATION = 3e-13, 1e-14
"""Two rounding errors of δ. The first is relative to δ and comes from e^{−a²/2} with |a| up to 37. The second is
relative to Φ(a) and comes from subtracting e^ε·Φ(b).

The rounding of a itself grows with μ; above μ = 50 it is the larger part of the first error. Both are about five times
the sum of the errors of a value and of the interpolation, in a panel over which δ falls by `_STEEPEST`.
"""
_NOWHERE, _SMALLEST = 100.0, 1e-25
"""|a| from which a normal density is below 1e-2000, and the μ to which smaller shifts are raised."""
_Panels = tuple[NDArray[np.int_], NDArray[np.int_], Array]
"""For P panels: the index of the first ε, the index after the last ε, and the error of the polynomial, [P] each."""


def mean_profile(epsilon: Array, mu: Array, weight: Array) -> Array:
    """Upper bounds on the mean profile Σ_j weight_j·δ_G(ε; μ_j) of Gaussian releases, at E increasing values of ε ≥ 0:
    float [E], in [0, 1]. Their relative excess is about 1e-12, and more for shifts below 0.1.

    `mu` [J] are shifts > 0 in standard deviations of the noise, and `weight` [J] their probabilities > 0; with the
    remaining probability nothing is released.
    """
    mu = np.maximum(mu, _SMALLEST)
    deltas, starts, ends = np.empty(epsilon.size), np.array([0]), np.array([epsilon.size])
    smooth: list[_Panels] = []
    few: list[tuple[int, int]] = []
    while starts.size:
        small = ends - starts <= _NODES
        few += zip(starts[small].tolist(), ends[small].tolist(), strict=True)
        starts, ends = starts[~small], ends[~small]
        if not starts.size:
            break
        left, right = epsilon[starts], epsilon[ends - 1]
        high, low = _mean(left, mu, weight), _mean(right, mu, weight)
        error = _remainder(left, right, mu, weight)
        flat = (error <= _TOLERANCE * low) & (high <= _STEEPEST * low) | (high == 0)
        smooth.append((starts[flat], ends[flat], np.where(high > 0, error, 0.0)[flat]))
        starts, ends = starts[~flat], ends[~flat]
        middle = np.searchsorted(epsilon, (epsilon[starts] + epsilon[ends - 1]) / 2, side="right")
        starts, ends = np.concatenate([starts, middle]), np.concatenate([middle, ends])
    for start, end in few:
        deltas[start:end] = _mean(epsilon[start:end], mu, weight) + _margin(epsilon[start:end], mu, weight)
    _interpolate(deltas, epsilon, smooth, mu, weight)
    return np.asarray(np.minimum(deltas * (1 + _ROUNDING * (1 + float(mu.max()) / 50)), 1.0))


def _interpolate(deltas: Array, epsilon: Array, smooth: list[_Panels], mu: Array, weight: Array) -> None:
    """Write the polynomials' values at all ε of the panels `smooth` into `deltas` [E], with their errors added."""
    if not sum(panels.size for panels, _, _ in smooth):
        return
    starts, ends = (np.concatenate([part[side] for part in smooth]) for side in (0, 1))
    error = np.concatenate([part[2] for part in smooth])
    angle = (np.arange(_NODES) + 0.5) * pi / _NODES
    node, order = np.cos(angle), np.arange(_NODES)
    left, right = epsilon[starts], epsilon[ends - 1]
    center, half = (left + right) / 2, (right - left) / 2
    values = _mean((center[:, None] + half[:, None] * node).ravel(), mu, weight).reshape(-1, _NODES)
    coefficients = values @ np.cos(np.outer(angle, order)) * (np.where(order == 0, 1, 2) / _NODES)
    error = error + _margin(left, mu, weight)
    sizes = ends - starts
    panel = np.repeat(np.arange(sizes.size), sizes)
    at = np.arange(panel.size) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    x = np.clip((epsilon[at] - center[panel]) / np.where(half > 0, half, 1.0)[panel], -1, 1)
    ahead, two = np.zeros(x.size), np.zeros(x.size)
    for one in reversed(coefficients.T[1:]):  # Clenshaw's recurrence
        ahead, two = one[panel] + 2 * x * ahead - two, ahead
    deltas[at] = coefficients[panel, 0] + x * ahead - two + error[panel]


def _mean(epsilon: Array, mu: Array, weight: Array) -> Array:
    """The mean Σ weight·δ_G(ε; μ), [E], evaluated directly."""
    means, step = np.empty(epsilon.size), max(1, _CHUNK // mu.size)
    for start in range(0, epsilon.size, step):
        means[start : start + step] = _deltas(epsilon[start : start + step, None], mu) @ weight
    return means


def _deltas(epsilon: Array, mu: Array) -> Array:
    """δ of each shift, [E, J]. Both terms share one exponential, so that their difference keeps its digits."""
    a = mu / 2 - epsilon / mu
    tail = np.exp(-a * a / 2) / 2
    high = a > _BODY
    first = tail * erfcx(np.minimum(a, _BODY) / -sqrt(2))
    first[high] = ndtr(a[high])
    tail *= erfcx((mu - a) / sqrt(2))
    return np.asarray(np.maximum(first - tail, 0.0))


def _margin(epsilon: Array, mu: Array, weight: Array) -> Array:
    # a bound on the error of the mean by cancellation, [E]
    return np.asarray(_CANCELLATION * (ndtr(mu / 2 - epsilon[:, None] / mu) @ weight))


def _remainder(left: Array, right: Array, mu: Array, weight: Array) -> Array:
    # bounds on the error of interpolation on panels, [P]
    first, last = mu / 2 - left[:, None] / mu, mu / 2 - right[:, None] / mu  # a at both ends
    nearest = np.where((first > 0) & (last < 0), 0.0, np.minimum(np.abs(first), np.abs(last)))
    farthest = np.maximum(np.abs(first), np.abs(last))
    # If e^{−a²/2} underflows, it is raised to the smallest float. For |a| ≥ 100 it is 0, whatever factors follow.
    density = np.where(nearest < _NOWHERE, np.maximum(np.exp(-nearest * nearest / 2), 5e-324), 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        # Polynomials of a and powers of μ are scaled by h/μ, so that neither overflows.
        scale = ((right - left) / 4)[:, None] / mu
        bound, before = np.full_like(first, 0.5), np.zeros_like(first)  # e^ε·Φ(b) is at most e^{−a²/2}/2
        bound *= ((right - left) / 4)[:, None] ** _NODES
        power, hermite = ((right - left) / 4)[:, None] ** (_NODES - 1) * scale / sqrt(2 * pi), np.ones_like(first)
        for j in range(_NODES - 1):
            bound += power * hermite
            hermite, before = farthest * hermite + j * before, hermite
            power = power * (4 / (right - left)[:, None] * scale)
        total = (np.where(density > 0, bound, 0.0) * density) @ weight
    return np.asarray(np.where(np.isnan(total), np.inf, 2 * total / factorial(_NODES)))
