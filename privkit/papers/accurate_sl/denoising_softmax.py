"""Denoising theory for a softmax: the lemma of Theorem 3.3, and a correct condition that replaces Theorem 3.4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, expm1, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from privkit.accountants import validate
from privkit.papers.accurate_sl.denoising import arrays, finite


def approximate_mean_log(log_mean: float, log_mean_square: float) -> float:
    """The second-order approximation of E ln S for a random variable S > 0: ln E S − Var S/(2(E S)²).

    Its error is unbounded (`lognormal_error`).

    Args:
        log_mean: ln E S.
        log_mean_square: ln E S², at least 2 ln E S.

    Source: Xu et al., Lemma A.4.

    >>> approximate_mean_log(1.0, 2.0)
    1.0
    """
    mean, square = validate.real("log_mean", log_mean), validate.real("log_mean_square", log_mean_square)
    if square < 2 * mean - 1e-9 * max(1.0, abs(mean)):
        raise ValueError(f"log_mean_square must be >= 2·log_mean = {2 * mean!r} (E S² >= (E S)²), got {square!r}")
    return mean - _expm1(max(0.0, square - 2 * mean)) / 2


def lognormal_error(s2: float) -> float:
    """Error of Lemma A.4's approximation of E ln S (`approximate_mean_log`) for a lognormal S: s²/2 − (e^{s²} − 1)/2.

    ln S is normal with mean 0 and variance s² ≥ 0. The error is ≤ 0 and unbounded in s². Theorem 3.3 of Xu et al. uses
    the lemma for strong noise, where this error is large; so the theorem's proof is not valid.

    Source: derived.

    >>> round(lognormal_error(4), 3)
    -24.799
    """
    s2 = validate.real("s2", s2, least=0)
    return approximate_mean_log(s2 / 2, 2 * s2)


def least_variance_by_theorem_3_4(weights: ArrayLike, features: ArrayLike) -> float:
    """The noise variance σ² above which some scaling helps, as Theorem 3.4 claims: max over i, i* of (m_i* −
    m_i)·X/‖m_i‖².

    m_i are the rows of the layer M = `weights` [m, n], and X = `features` [n] the smashed data.

    **The theorem is false**: it overlooks that noise common to all logits cancels in the softmax. At M = [[20, 3], [20,
    0]], X = (0, 1), i* = 0 and σ² = .0075 the theorem's condition holds, but the error `softmax_loss_gap` grows as λ
    falls below 1. For the mean loss, the correct condition is `loss_slope` > 0.

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
    """E|L(MX) − L(λM(X + Z))|: the mean change of the softmax cross-entropy L by Gaussian noise Z and scaling by λ, for
    two classes.

    It is computed by quadrature.

    Args:
        weights: the layer M, [2, n]; with two classes, the loss depends only on one Gaussian number, the difference of
            the logits.
        features: the smashed data X, [n].
        label: the true class, 0 or 1.
        sigma: standard deviation of the noise, > 0.
        lam: λ = 1/α in [0, 1]; 1 means no scaling.

    Source: Xu et al., both sides of Theorem 3.4's inequality; the quadrature is derived.

    >>> [round(softmax_loss_gap([[20, 3], [20, 0]], [0, 1], 0, 0.0075**0.5, lam), 6) for lam in (1, 0.99)]
    [0.010023, 0.010272]
    """
    mean, spread = _margin(weights, features, label, sigma)
    lam = validate.real("lam", lam, least=0, most=1)
    clean = np.logaddexp(0, -mean)
    kinks = (mean / lam,) if lam else ()
    return _expectation(lambda margin: abs(clean - np.logaddexp(0, -lam * margin)), mean, spread, kinks)


def loss_slope(weights: ArrayLike, features: ArrayLike, label: int, sigma: float) -> float:
    """The derivative at λ = 1 of the mean cross-entropy E L(λz̃) of noisy logits z̃ = M(X + Z), scaled by λ.

    It is E⟨s(z̃) − y*, z̃⟩ with the softmax s and the true class y*. Arguments as in `softmax_loss_gap`.

    Scaling by a λ just below 1 lowers the mean cross-entropy if and only if this derivative is positive. Otherwise no λ
    < 1 helps, since E L is convex in λ.

    Source: derived.

    >>> loss_slope([[20, 3], [20, 0]], [0, 1], 0, 0.0075**0.5) < 0
    True
    """
    mean, spread = _margin(weights, features, label, sigma)
    return _expectation(lambda margin: -margin * expit(-margin), mean, spread)


def _expm1(exponent: float) -> float:
    try:
        return expm1(exponent)
    except OverflowError:
        return finite(float("inf"))


def _margin(weights: ArrayLike, features: ArrayLike, label: int, sigma: float) -> tuple[float, float]:
    """Mean and standard deviation of the margin (true minus other logit); the cross-entropy is ln(1 + e^{−margin})."""
    m, x = arrays(weights, features)
    if len(m) != 2:
        raise ValueError(f"weights must have 2 rows (two classes), got {len(m)}: simulate the loss for more")
    true = validate.whole("label", label, least=0, most=1)
    sigma = validate.real("sigma", sigma, above=0)
    with np.errstate(all="ignore"):
        contrast = m[true] - m[1 - true]
        return finite(float(contrast @ x)), finite(sigma * float(np.linalg.norm(contrast)))


def _expectation(function: Callable[[float], float], mean: float, spread: float, kinks: Sequence[float] = ()) -> float:
    """E function(X) for X ~ N(mean, spread²), by adaptive quadrature, split at 0 and at the function's kinks."""
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
