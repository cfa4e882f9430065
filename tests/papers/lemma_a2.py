"""Lemma A.2 of accurate split learning: moments of the softmax denominator under masks and noise, in logarithms."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer
from privkit.shared.array import Array


def log_mgf(noise: CutNoise, t: Array) -> Array:
    """ln E e^{tZ}: t²σ²/2 for Gaussian noise, −ln(1 − b²t²) for Laplace noise.

    Raises:
        ValueError: for Laplace noise where b|t| ≥ 1: the expectation is infinite.
    """
    reach = noise.scale * t
    if noise.law == "gaussian":
        return reach * reach / 2
    if np.any(np.abs(reach) >= 1):
        raise ValueError(f"E e^(tZ) of Laplace noise is finite only for b|t| < 1, got b|t| = {np.abs(reach).max():g}")
    return -np.log1p(reach) - np.log1p(-reach)


def log_exp_sum(weights: ArrayLike, features: ArrayLike, p: float, noise: CutNoise) -> float:
    """ln E S of the softmax denominator S = Σ_i exp((M R_p(X + Z))_i), in logarithms so that nothing overflows.

    Args:
        weights: M [m, n].
        features: X [n].
        p: share kept, in [0, 1]. For scaling by λ give λ·M and p = 1.

    Raises:
        ValueError: for Laplace noise with b·max|m_ik| ≥ 1 and p > 0: the mean is infinite.

    Source: Xu et al., Lemma A.2 (i); for Laplace noise with e^{m²σ²/2} replaced by 1/(1 − b²m²).

    >>> round(np.exp(log_exp_sum([[1.0]], [0.0], 0.5, CutNoise(law="gaussian", scale=1))).item(), 4)
    1.3244
    """
    m, x = np.asarray(weights, float), np.asarray(features, float)
    with np.errstate(all="ignore"):  # ln 0 is meant
        return float(logsumexp(_kept(m, x, p, noise).sum(axis=1)))


def log_exp_sum_squared(
    weights: ArrayLike, features: ArrayLike, p: float, noise: CutNoise, *, mask: Literal["shared", "per_row"] = "shared"
) -> float:
    """ln E S² of the same S.

    Args:
        weights: M [m, n].
        features: X [n].
        p: share kept, in [0, 1].
        mask: "shared", one mask of the smashed data for all rows of M, which Lemma A.2 (ii) needs and a defense draws;
            or "per_row", an own mask a row, as the R_p of an m×n matrix would suggest. The noise is shared always.

    Raises:
        ValueError: for Laplace noise with b·max|m_ik + m_jk| ≥ 1 and p > 0: the mean is infinite.

    Source: Xu et al., Lemma A.2 (ii); "per_row" and Laplace noise are derived.

    >>> round(np.exp(log_exp_sum_squared([[1.0]], [0.0], 0.5, CutNoise(law="gaussian", scale=1))).item(), 4)
    4.1945
    """
    m, x = np.asarray(weights, float), np.asarray(features, float)
    with np.errstate(all="ignore"):
        if mask == "shared" or p in (0, 1):
            logs = [_kept(m + row, x, p, noise).sum(axis=1) for row in m]  # row by row: m²n numbers may be too many
        else:
            logs = [_kept_apart(m, i, x, p, noise).sum(axis=1) for i in range(len(m))]
        return float(logsumexp(np.concatenate(logs)))


def _kept(m: Array, x: Array, p: float, noise: CutNoise) -> Array:
    """ln(p·E e^{m(x + Z)} + 1 − p), elementwise, for m [.., n] and x [n]."""
    if p == 0:
        return np.zeros(m.shape)
    kept: Array = np.logaddexp(np.log(p) + m * x + log_mgf(noise, m), np.log1p(-p))
    return kept


def _kept_apart(m: Array, i: int, x: Array, p: float, noise: CutNoise) -> Array:
    """As `_kept` for the sum of row i and each row, masked apart; with itself, a row has one mask."""
    own, both = m[i] * x + log_mgf(noise, m[i]), (m + m[i]) * x + log_mgf(noise, m + m[i])
    one = np.log(p) + np.log1p(-p) + np.logaddexp(m * x + log_mgf(noise, m), own)
    apart: Array = np.logaddexp(np.logaddexp(2 * np.log(p) + both, one), 2 * np.log1p(-p))
    apart[i] = _kept(2 * m[i], x, p, noise)
    return apart


def best_alpha(layer: LinearLayer, noise: CutNoise) -> float:
    """α* = 1/λ* = 1 + σ²F/A, for A > 0.

    Source: derived from Xu et al., Eq. 13.

    >>> best_alpha(LinearLayer(signal=4, diagonal=2, weight=1), CutNoise(law="gaussian", scale=1))
    1.25
    """
    return 1 + noise.variance * layer.weight / layer.signal
