"""Mixtures of Gaussians whose component nobody is told, and others that no specification has: to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr, logsumexp, ndtr

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.loss_distribution import Pair, Profile
from privkit.accountants.bounds.subsampling import checked_orders
from privkit.shared.array import Array


def poisson_gaussian_replace_one(rate: float, mu: float) -> Profile:
    """One Poisson-sampled Gaussian release, replace-one: (1−q)N(0,1) + qN(±μ,1) against each other.

    Args:
        rate: q in [0, 1].
        mu: the bound on one record's norm (not the distance of two) over the noise's standard deviation, ≥ 0.

    Source: derived: the worst replacement is the opposite vector; the likelihood ratio increases along it.

    >>> from privkit.accountants.bounds.numerical_composition import composed_epsilon
    >>> round(composed_epsilon(poisson_gaussian_replace_one(0.01, 1.0), 1000, 1e-5, 1e-3), 2)
    2.84
    """
    q, m = validate.real("rate", rate, least=0, most=1), validate.real("mu", mu, least=0)
    weights = np.array([1 - q, q])
    return _threshold_profile(np.array([0.0, m]), weights, np.array([0.0, -m]), weights)


def hidden_mixture(shifts: Sequence[float], weights: Sequence[float]) -> Pair:
    """Σ w_i N(m_i, 1) against N(0, 1): a random ratio that nobody is told, zero background. Both directions.

    Args:
        shifts: m_i ≥ 0 in standard deviations of the noise.
        weights: w_i ≥ 0, which sum to 1.

    Source: definition; the likelihood ratio increases in the output, so the worst event is a half line.

    >>> from privkit.accountants.bounds.numerical_composition import composed_epsilon
    >>> round(composed_epsilon(hidden_mixture([0.3, 0.7], [0.5, 0.5]), 10, 1e-5, 1e-3), 3)
    7.972
    """
    m, w = mixture(shifts, weights)
    zero, one = np.zeros(1), np.ones(1)
    return _threshold_profile(m, w, zero, one), _threshold_profile(zero, one, -m, w)


def released_mixture(mus: Sequence[float], weights: Sequence[float]) -> Profile:
    """A Gaussian release whose random ratio is told with it: the mean of the profiles.

    Args:
        mus: μ_i ≥ 0 at each ratio; nodes of a quadrature for a continuous law.
        weights: their probabilities, which sum to 1.

    Source: derived: the ratio is independent of the data, so the loss is that of the pair (ratio, output).

    >>> from privkit.accountants.bounds.numerical_composition import composed_epsilon
    >>> round(composed_epsilon(released_mixture([0.3, 0.7], [0.5, 0.5]), 100, 1e-5, 1e-3), 2)
    37.83
    """
    m, w = mixture(mus, weights)
    scale = float(w.sum())

    def delta(epsilon: Array) -> Array:
        deltas = np.zeros_like(epsilon, dtype=float)
        for mu, weight in zip(m.tolist(), (w / scale).tolist(), strict=True):
            deltas += weight * np.exp(gaussian.log_delta(epsilon, mu))
        return np.asarray(np.minimum(deltas, 1.0))

    return delta


def mixture_gaussian_rdp(orders: ArrayLike, shifts: Sequence[float], weights: Sequence[float]) -> Array:
    """Rényi curve of Σ w_i N(m_i, 1) against N(0, 1), the larger of both directions: a hidden random ratio.

    Args:
        orders: [A] α > 1, any real numbers.
        shifts: m_i ≥ 0 in standard deviations of the noise.
        weights: w_i ≥ 0, which sum to 1.

    Returns:
        [A] by the trapezoidal rule on an entire integrand, exact to about 1e-12. Shifts 0 and μ are Poisson sampling.

    Source: definition of the Rényi divergence.

    >>> float(mixture_gaussian_rdp(8, [0.3, 0.7], [0.5, 0.5]).round(9))
    1.330460349
    """
    a, (m, w) = checked_orders(orders), mixture(shifts, weights)
    top = float(m.max())
    if top == 0:
        return np.zeros(a.shape)
    x = np.arange(-13 - float(a.max()) * top, 13 + float(a.max()) * top, min(0.1, 0.2 / top))
    with np.errstate(divide="ignore"):
        ratio = logsumexp(np.outer(x, m) - m * m / 2 + np.log(w), axis=1)
    density = np.log(x[1] - x[0]) - x * x / 2 - np.log(2 * pi) / 2
    curve = []
    for order in a.ravel().tolist():
        both = [float(logsumexp(density + power * ratio)) for power in (order, 1 - order)]
        if max(both) < 1e-3:  # E[L^p − 1 − p(L − 1)], whose integrand is never negative
            with np.errstate(over="ignore", invalid="ignore"):
                gaps = [np.expm1(power * ratio) - power * np.expm1(ratio) for power in (order, 1 - order)]
            weight = np.exp(density)
            both = [float(np.log1p(np.sum(np.where(weight > 0, weight * gap, 0)))) for gap in gaps]
        curve.append(max(*both, 0.0) / (order - 1))
    return np.array(curve).reshape(a.shape)


def mixture(shifts: Sequence[float], weights: Sequence[float]) -> tuple[Array, Array]:
    """Checked shifts and weights of a mixture, as arrays.

    Raises:
        ValueError: if they are not of one length, out of range, or the weights do not sum to 1.

    >>> mixture([0.3, 0.7], [0.5, 0.5])[1].tolist()
    [0.5, 0.5]
    """
    m = np.array([validate.real("shift", value, least=0) for value in shifts])
    w = np.array([validate.real("weight", value, least=0, most=1) for value in weights])
    if m.size != w.size or not m.size or abs(w.sum() - 1) > 1e-9:
        raise ValueError(f"a mixture needs as many shifts as weights, which sum to 1, got {shifts!r} and {weights!r}")
    return m, w


def _threshold_profile(up: Array, up_weights: Array, low: Array, low_weights: Array) -> Profile:
    """δ(ε) of Σ u_i N(a_i, 1) against Σ v_i N(b_i, 1) whose likelihood ratio increases: a half line is worst."""

    far = 40.0 + float(np.abs(np.concatenate([up, low])).max())
    table = np.linspace(-far, far, 4001)
    values = np.maximum.accumulate(_log_mixture(table, up, up_weights)[0] - _log_mixture(table, low, low_weights)[0])

    def delta(epsilon: Array) -> Array:
        e = np.asarray(epsilon, float)
        flat = e.ravel()
        cell = np.clip(np.searchsorted(values, flat), 1, table.size - 1)
        x = np.interp(flat, values, table)
        for _ in range(3):  # Newton's method inside a cell of the table; δ is flat in the threshold
            above, slope_above = _log_mixture(x, up, up_weights)
            below, slope_below = _log_mixture(x, low, low_weights)
            step = (above - below - flat) / np.maximum(slope_above - slope_below, 1e-300)
            x = np.clip(x - step, table[cell - 1], table[cell])
        x = x.reshape(e.shape)
        first = sum(weight * ndtr(mean - x) for mean, weight in zip(up, up_weights, strict=True))
        second = sum(
            weight * np.exp(np.clip(e + log_ndtr(mean - x), -700, 700))
            for mean, weight in zip(low, low_weights, strict=True)
        )
        return np.asarray(np.clip(first - second, 0.0, 1.0))

    return delta


def _log_mixture(x: Array, means: Array, weights: Array) -> tuple[Array, Array]:
    """Log density of a mixture of unit Gaussians, less that of N(0, 1), and its slope."""
    kept = weights > 0
    terms = [mean * x + (log(weight) - mean**2 / 2) for mean, weight in zip(means[kept], weights[kept], strict=True)]
    peak = np.max(terms, axis=0)
    parts = [np.exp(np.maximum(term - peak, -700)) for term in terms]
    total = np.sum(parts, axis=0)
    slope = np.sum([mean * part for mean, part in zip(means[kept], parts, strict=True)], axis=0) / total
    return peak + np.log(total), slope
