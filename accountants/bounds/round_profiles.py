"""Privacy profiles of one round, ready to be composed: Gaussian, sampled or mixed, and Laplace."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian, subsampling
from privkit.accountants.bounds.loss_distribution import Pair, Profile

Array = NDArray[np.float64]


def without_replacement_gaussian(rate: float, mu: float) -> Profile:
    """One Gaussian release from k of n clients, replace-one: the tight profile (W).

    Args:
        rate: γ = k/n in [0, 1].
        mu: L2 sensitivity under replace-one over the noise's standard deviation, ≥ 0.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9; Balle and Wang 2018, Theorem 8.

    >>> float(without_replacement_gaussian(0.2, 1.0)(np.array(0.0)).round(6))
    0.076585
    """
    g, base = validate.real("rate", rate, least=0, most=1), gaussian_profile(mu)
    return lambda epsilon: subsampling.without_replacement_delta(epsilon, g, base)


def poisson_gaussian(rate: float, mu: float) -> Pair:
    """One Poisson-sampled Gaussian release, add or remove one: the profiles of both directions.

    Args:
        rate: q in [0, 1].
        mu: L2 sensitivity under add-or-remove over the noise's standard deviation, ≥ 0.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 8.

    >>> from privkit.accountants.bounds.pld import composed_epsilon
    >>> round(composed_epsilon(poisson_gaussian(0.01, 1.0), 1000, 1e-5, 1e-3), 3)
    1.829
    """
    q, base = validate.real("rate", rate, least=0, most=1), gaussian_profile(mu)
    return (
        lambda epsilon: subsampling.poisson_removed_delta(epsilon, q, base),
        lambda epsilon: subsampling.poisson_added_delta(epsilon, q, base),
    )


def poisson_gaussian_replace_one(rate: float, mu: float) -> Profile:
    """One Poisson-sampled Gaussian release, replace-one: (1−q)N(0,1) + qN(±μ,1) against each other.

    Args:
        rate: q in [0, 1].
        mu: the bound on one record's norm (not the distance of two) over the noise's standard deviation, ≥ 0.

    Source: derived: the worst replacement is the opposite vector; the likelihood ratio increases along it.

    >>> from privkit.accountants.bounds.pld import composed_epsilon
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

    >>> from privkit.accountants.bounds.pld import composed_epsilon
    >>> round(composed_epsilon(hidden_mixture([0.3, 0.7], [0.5, 0.5]), 10, 1e-5, 1e-3), 3)
    7.972
    """
    m, w = subsampling.mixture(shifts, weights)
    zero, one = np.zeros(1), np.ones(1)
    return _threshold_profile(m, w, zero, one), _threshold_profile(zero, one, -m, w)


def released_mixture(mus: Sequence[float], weights: Sequence[float]) -> Profile:
    """A Gaussian release whose random ratio is told with it: the mean of the profiles.

    Args:
        mus: μ_i ≥ 0 at each ratio; nodes of a quadrature for a continuous law.
        weights: their probabilities, which sum to 1.

    Source: derived: the ratio is independent of the data, so the loss is that of the pair (ratio, output).

    >>> from privkit.accountants.bounds.pld import composed_epsilon
    >>> round(composed_epsilon(released_mixture([0.3, 0.7], [0.5, 0.5]), 100, 1e-5, 1e-3), 2)
    37.83
    """
    m, w = subsampling.mixture(mus, weights)
    scale = float(w.sum())

    def delta(epsilon: Array) -> Array:
        found = np.zeros_like(epsilon, dtype=float)
        for mu, weight in zip(m.tolist(), (w / scale).tolist(), strict=True):
            found += weight * np.exp(gaussian.log_delta(epsilon, mu))
        return np.minimum(found, 1.0)

    return delta


def laplace(shift: float) -> Profile:
    """One Laplace variable: 1 − e^{(ε−t)/2} up to ε = t.

    Args:
        shift: t, sensitivity over the scale b, ≥ 0.

    Source: derived from the hockey-stick integral.

    >>> float(laplace(1.0)(np.array(0.0)).round(4))
    0.3935
    """
    t = validate.real("shift", shift, least=0)
    return lambda epsilon: -np.expm1(np.minimum(epsilon - t, 0) / 2)


def gaussian_profile(mu: float) -> Profile:
    """One Gaussian release.

    Source: Balle and Wang 2018, Theorem 8.

    >>> float(gaussian_profile(1.0)(np.array(1.0)).round(6))
    0.126937
    """
    m = validate.real("mu", mu, least=0)
    return lambda epsilon: np.exp(gaussian.log_delta(epsilon, m))


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
        return np.clip(first - second, 0.0, 1.0)

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
