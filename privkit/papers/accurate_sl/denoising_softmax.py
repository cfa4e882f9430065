"""Denoising theory for a softmax: the lemma of Theorem 3.3, and a correct condition that replaces Theorem 3.4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, expm1, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit


def lognormal_error(s2: float) -> float:
    """Error s²/2 − (e^{s²} − 1)/2 of Lemma A.4, E ln S ≈ ln E S − Var S/(2(E S)²), for ln S ~ N(0, s²).

    The error is ≤ 0, and unbounded in s². Theorem 3.3 of Xu et al. uses the lemma for strong noise, where the error is
    large, so its proof is not valid.

    Source: derived.
    """
    return s2 / 2 - expm1(s2) / 2


def least_variance_by_theorem_3_4(weights: ArrayLike, features: ArrayLike) -> float:
    """The noise variance σ² above which some scaling helps, as Theorem 3.4 claims: max over i of (m_i* − m_i)·X/‖m_i‖².

    m_i are the rows of the layer M = `weights` [m, n], X = `features` [n] are the smashed data, and i* is the row with
    the largest logit.

    **The theorem is false**: it overlooks that noise common to all logits cancels in the softmax. At M = [[20, 3], [20,
    0]], X = (0, 1), i* = 0 and σ² = .0075 the theorem's condition holds, but the error `softmax_loss_gap` grows as λ
    falls below 1. For the mean loss, the correct condition is `loss_slope` > 0.

    Source: Xu et al., Theorem 3.4.
    """
    m = np.asarray(weights, float)
    logits = m @ np.asarray(features, float)
    return float(np.max((logits.max() - logits) / np.sum(m * m, axis=1)))


def softmax_loss_gap(weights: ArrayLike, features: ArrayLike, label: int, sigma: float, lam: float = 1.0) -> float:
    """E|L(MX) − L(λM(X + Z))|: the mean absolute change of the softmax cross-entropy L by noise Z and scaling by λ.

    There are two classes: M is `weights` [2, n], X is `features` [n], and `label` is the true class. Z is Gaussian with
    standard deviation σ, and λ = `lam` lies in [0, 1]. L depends on one Gaussian number, the difference of the logits,
    so the mean is computed by quadrature.

    Source: Xu et al., both sides of Theorem 3.4's inequality; the quadrature is derived.
    """
    mean, spread = _margin(weights, features, label, sigma)
    clean = np.logaddexp(0, -mean)
    kinks = (mean / lam,) if lam else ()
    return _expectation(lambda margin: abs(clean - np.logaddexp(0, -lam * margin)), mean, spread, kinks)


def loss_slope(weights: ArrayLike, features: ArrayLike, label: int, sigma: float) -> float:
    """The derivative E⟨s(z̃) − y*, z̃⟩, at λ = 1, of the mean cross-entropy E L(λz̃) of noisy logits z̃ = M(X + Z).

    s is the softmax and y* the true class; arguments as in `softmax_loss_gap`. Scaling by a λ just below 1 lowers the
    mean cross-entropy if and only if this derivative is positive. Otherwise no λ < 1 helps, since E L is convex in λ.

    Source: derived.
    """
    mean, spread = _margin(weights, features, label, sigma)
    return _expectation(lambda margin: -margin * expit(-margin), mean, spread)


def _margin(weights: ArrayLike, features: ArrayLike, label: int, sigma: float) -> tuple[float, float]:
    """Mean and standard deviation of the margin (true minus other logit); the cross-entropy is ln(1 + e^{−margin})."""
    m = np.asarray(weights, float)
    contrast = m[label] - m[1 - label]
    return float(contrast @ np.asarray(features, float)), sigma * float(np.linalg.norm(contrast))


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
    return float(sum(value for value, _ in pieces)) / sqrt(2 * pi)
