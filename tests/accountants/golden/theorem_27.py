"""Theorem 27 of Wang, Balle and Kasiviswanathan 2019, to compare with: the tight profile's curve is half as large."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants.bounds.sampled_renyi import gaussian_rows
from privkit.shared.array import Array


def without_replacement_gaussian_rdp(orders: ArrayLike, rate: ArrayLike, mu: ArrayLike) -> Array:
    """Rényi curves of Gaussian releases from k of n clients, replace-one, for many rows at once: upper bounds.

    Args:
        orders: [A] α > 1; between integers the convex (α − 1)ε(α) is interpolated.
        rate: γ = k/n in [0, 1]; scalar or [R].
        mu: L2 sensitivity under replace-one over the noise's standard deviation, ≥ 0; scalar or [R].

    Returns:
        [A], or [R, A]; never above the unsampled αμ²/2, which the theorem can exceed.

    Source: Wang, Balle and Kasiviswanathan 2019, Theorem 27 (the ternary χ^α divergence of Gaussians is the geometric
    mean of neighboring even moments E(L − 1)^ℓ of the likelihood ratio), with Theorem 9 term by term where smaller.

    >>> float(without_replacement_gaussian_rdp(16, 0.2, 0.5).round(9))
    0.493326308
    """
    return gaussian_rows(orders, rate, mu, _without_replacement_terms)


def _without_replacement_terms(top: int, rate: Array, mu: Array) -> Array:
    """ln[γ^j ζ_j] for j = 2..top, [R, top − 1]; ζ_j = min(4·√(B(2⌊j/2⌋)·B(2⌈j/2⌉)), 2·e^{j(j−1)μ²/2})."""
    j = np.arange(2, top + 1)
    even = _log_even_moments(top + top % 2, mu)  # ℓ = 2, 4, …
    theorem_27 = np.log(4) + (even[:, j // 2 - 1] + even[:, (j + 1) // 2 - 1]) / 2
    return np.asarray(np.minimum(theorem_27, np.log(2) + j * (j - 1.0) * mu**2 / 2) + j * np.log(rate))


def _log_even_moments(top: int, mu: Array) -> Array:
    """ln E(L − 1)^ℓ for ℓ = 2, 4, …, top with L the likelihood ratio of N(μ, 1) and N(0, 1), [R, top/2].

    The alternating sum over E L^j loses all digits from ℓ ≈ 60 on; the integrand of the definition is positive and
    entire, so that the trapezoidal rule on it is exact to rounding. `inf` where 2·E L^ℓ is known to be smaller.
    """
    step = 2 * pi / (1.7 * sqrt(top) + 7)
    reach = np.log(top) + 4  # from ℓμ² = ln ℓ + 4 on the moment is as good as E L^ℓ
    x = np.arange(-sqrt(top) - 9, sqrt(top * reach) + 9, step)
    base = np.expm1(mu * x - mu**2 / 2) / mu  # ≈ x for small μ, so that powers neither vanish nor overflow
    square, moments = base**2, np.full((mu.size, top // 2), np.inf)
    log_square, density = np.log(square), np.log(step) - x**2 / 2 - np.log(2 * pi) / 2
    for start in range(0, top // 2, 32):  # one exponential a block, products inside it
        stop = min(start + 32, top // 2)
        rows = np.flatnonzero((2 * start + 2) * mu[:, 0] ** 2 <= reach)
        if not rows.size:
            break
        logs = density + (start + 1) * log_square[rows]
        shift = (density + (start + stop + 1) / 2 * log_square[rows]).argmax(1)[:, None]
        scale = np.take_along_axis(square[rows], shift, 1)
        peak = logs.max(1, keepdims=True)
        power, growth = np.exp(logs - peak), square[rows] / scale
        for index in range(start, stop):
            moments[rows, index] = (np.log(power.sum(1, keepdims=True)) + peak + (index - start) * np.log(scale))[:, 0]
            power *= growth
    degrees = np.arange(2.0, top + 1, 2)
    moments += degrees * np.log(mu)
    return np.where(degrees * mu**2 <= np.log(degrees) + 4, moments, np.inf)
