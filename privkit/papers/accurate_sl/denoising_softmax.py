"""Denoising theory behind a softmax: moments of Σ exp under masks and noise, and the true test for Theorem 3.4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, expm1, pi, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logsumexp

from privkit.accountants import validate
from privkit.papers.accurate_sl.denoising import Noise, arrays, finite
from privkit.shared.array import Array


def log_exp_sum(weights: ArrayLike, features: ArrayLike, p: float, noise: Noise) -> float:
    """ln E S of the softmax denominator S = Σ_i exp((M R_p(X + Z))_i), in logarithms so that nothing overflows.

    Args:
        weights: M [m, n].
        features: X [n].
        p: share kept, in [0, 1]. For scaling by λ give λ·M and p = 1.

    Raises:
        ValueError: for Laplace noise with b·max|m_ik| ≥ 1 and p > 0: the mean is infinite.

    Source: Xu et al., Lemma A.2 (i); for Laplace noise with e^{m²σ²/2} replaced by 1/(1 − b²m²).

    >>> round(np.exp(log_exp_sum([[1.0]], [0.0], 0.5, Noise(law="gaussian", scale=1))).item(), 4)
    1.3244
    """
    m, x = arrays(weights, features)
    p = validate.real("p", p, least=0, most=1)
    with np.errstate(all="ignore"):  # ln 0 is meant; `_finite` refuses the rest
        return finite(float(logsumexp(_kept(m, x, p, noise).sum(axis=1))))


def log_exp_sum_squared(
    weights: ArrayLike, features: ArrayLike, p: float, noise: Noise, *, mask: Literal["shared", "per_row"] = "shared"
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

    >>> round(np.exp(log_exp_sum_squared([[1.0]], [0.0], 0.5, Noise(law="gaussian", scale=1))).item(), 4)
    4.1945
    """
    m, x = arrays(weights, features)
    p = validate.real("p", p, least=0, most=1)
    validate.choice("mask", mask, ("shared", "per_row"))
    with np.errstate(all="ignore"):
        if mask == "shared" or p in (0, 1):
            logs = [_kept(m + row, x, p, noise).sum(axis=1) for row in m]  # row by row: m²n numbers may be too many
        else:
            logs = [_kept_apart(m, i, x, p, noise).sum(axis=1) for i in range(len(m))]
        return finite(float(logsumexp(np.concatenate(logs))))


def approximate_mean_log(log_mean: float, log_mean_square: float) -> float:
    """ln E S − Var S/(2(E S)²), the second-order approximation of E ln S, from ln E S and ln E S².

    It has no error bound: see `lognormal_error`.

    Source: Xu et al., Lemma A.4.

    >>> approximate_mean_log(1.0, 2.0)
    1.0
    """
    mean, square = validate.real("log_mean", log_mean), validate.real("log_mean_square", log_mean_square)
    if square < 2 * mean - 1e-9 * max(1.0, abs(mean)):
        raise ValueError(f"log_mean_square must be >= 2·log_mean = {2 * mean!r} (E S² >= (E S)²), got {square!r}")
    return mean - _expm1(max(0.0, square - 2 * mean)) / 2


def lognormal_error(s2: float) -> float:
    """Error of Lemma A.4 for S = exp(N(0, s²)), where E ln S = 0: s²/2 − (e^{s²} − 1)/2, ever worse as s² grows.

    Theorem 3.3 takes σ to be large and rests on this lemma, so its proof shows nothing.

    Args:
        s2: variance of ln S, ≥ 0.

    Source: derived.

    >>> round(lognormal_error(4), 3)
    -24.799
    """
    s2 = validate.real("s2", s2, least=0)
    return approximate_mean_log(s2 / 2, 2 * s2)


def least_variance_by_theorem_3_4(weights: ArrayLike, features: ArrayLike) -> float:
    """The σ² from which Theorem 3.4 promises that some scaling helps: max over i, i* of (m_i* − m_i)·X/‖m_i‖².

    **The theorem is false**: it overlooks that noise which all logits share cancels in the softmax. At M = [[20, 3],
    [20, 0]], X = (0, 1), i* = 0 and σ² = .0075 the condition holds, yet `softmax_loss_gap` grows as λ falls below 1.
    The right test, for the mean loss, is `loss_slope` > 0.

    Source: Xu et al., Theorem 3.4.

    >>> least_variance_by_theorem_3_4([[20, 3], [20, 0]], [0, 1])
    0.0075
    """
    m, x = arrays(weights, features)
    with np.errstate(all="ignore"):
        logits, norms = m @ x, np.sum(m * m, axis=1)
        if not np.all(norms > 0):
            raise ValueError(f"weights must have no row of zeros, got one in row {int(np.argmin(norms))}")
        return finite(float(np.max((logits.max() - logits) / norms)))


def softmax_loss_gap(weights: ArrayLike, features: ArrayLike, label: int, sigma: float, lam: float = 1.0) -> float:
    """E|L(MX) − L(λM(X + Z))| of the softmax cross-entropy L of two classes, by quadrature, for Gaussian noise.

    Args:
        weights: M [2, n]. Two classes: the loss then depends on one Gaussian number, the difference of the logits.
        features: X [n].
        label: the true class, 0 or 1.
        sigma: standard deviation of the noise, > 0.
        lam: λ = 1/α in [0, 1]; 1 is no scaling.

    Source: Xu et al., Theorem 3.4, both sides; the quadrature is derived.

    >>> [round(softmax_loss_gap([[20, 3], [20, 0]], [0, 1], 0, 0.0075**0.5, lam), 6) for lam in (1, 0.99)]
    [0.010023, 0.010272]
    """
    mean, spread = _margin(weights, features, label, sigma)
    lam = validate.real("lam", lam, least=0, most=1)
    clean = np.logaddexp(0, -mean)
    kinks = (mean / lam,) if lam else ()
    return _expectation(lambda margin: abs(clean - np.logaddexp(0, -lam * margin)), mean, spread, kinks)


def loss_slope(weights: ArrayLike, features: ArrayLike, label: int, sigma: float) -> float:
    """E⟨s(z̃) − y*, z̃⟩ with z̃ = M(X + Z), the slope of λ ↦ E L(λz̃) at λ = 1; two classes, by quadrature.

    Scaling by a λ just below 1 lowers the mean cross-entropy if and only if this is positive; E L is convex in λ, so
    where it is not, no λ < 1 helps.

    Args:
        weights: M [2, n].
        features: X [n].
        label: the true class, 0 or 1.
        sigma: standard deviation of the noise, > 0.

    Source: derived.

    >>> loss_slope([[20, 3], [20, 0]], [0, 1], 0, 0.0075**0.5) < 0
    True
    """
    mean, spread = _margin(weights, features, label, sigma)
    return _expectation(lambda margin: -margin * expit(-margin), mean, spread)


def _expm1(exponent: float) -> float:
    """e^x − 1, refused where it overflows."""
    try:
        return expm1(exponent)
    except OverflowError:
        return finite(float("inf"))


def _kept(m: Array, x: Array, p: float, noise: Noise) -> Array:
    """ln(p·E e^{m(x + Z)} + 1 − p), elementwise, for m [.., n] and x [n]."""
    if p == 0:
        return np.zeros(m.shape)
    kept: Array = np.logaddexp(np.log(p) + m * x + noise.log_mgf(m), np.log1p(-p))
    return kept


def _kept_apart(m: Array, i: int, x: Array, p: float, noise: Noise) -> Array:
    """As `_kept` for the sum of row i and each row, masked apart; with itself, a row has one mask."""
    own, both = m[i] * x + noise.log_mgf(m[i]), (m + m[i]) * x + noise.log_mgf(m + m[i])
    one = np.log(p) + np.log1p(-p) + np.logaddexp(m * x + noise.log_mgf(m), own)
    apart: Array = np.logaddexp(np.logaddexp(2 * np.log(p) + both, one), 2 * np.log1p(-p))
    apart[i] = _kept(2 * m[i], x, p, noise)
    return apart


def _margin(weights: ArrayLike, features: ArrayLike, label: int, sigma: float) -> tuple[float, float]:
    """Mean and standard deviation of true minus other logit; the cross-entropy is ln(1 + e^{−margin})."""
    m, x = arrays(weights, features)
    if len(m) != 2:
        raise ValueError(f"weights must have 2 rows (two classes), got {len(m)}: simulate the loss for more")
    true = validate.whole("label", label, least=0, most=1)
    sigma = validate.real("sigma", sigma, above=0)
    with np.errstate(all="ignore"):
        contrast = m[true] - m[1 - true]
        return finite(float(contrast @ x)), finite(sigma * float(np.linalg.norm(contrast)))


def _expectation(function: Callable[[float], float], mean: float, spread: float, kinks: Sequence[float] = ()) -> float:
    """E function(N(mean, spread²)), adaptive, split where the margin is 0 or the function has a kink."""
    from scipy.integrate import quad  # slow to import

    if spread == 0:
        return float(function(mean))
    reach = 14.0  # beyond lies less than 1e-43 of the mass
    splits = {min(reach, max(-reach, (value - mean) / spread)) for value in (0.0, *kinks)}
    cuts = sorted({-reach, 0.0, reach, *splits})
    pieces = [
        quad(lambda u: function(mean + spread * u) * exp(-u * u / 2), low, high, epsabs=1e-14, epsrel=1e-10, limit=200)
        for low, high in pairwise(cuts)
    ]
    return finite(sum(value for value, _ in pieces) / sqrt(2 * pi))
