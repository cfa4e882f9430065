"""Values of the paper's theorems and of the theory of denoising that were recomputed from its text."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt

from privkit.accountants.golden import read_cases
from privkit.papers.accurate_sl import claims, composition, denoising, denoising_softmax
from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer
from tests.papers import lemma_a2
from tests.papers.layers import layer_at

Matrix = Sequence[Sequence[float]]
Vector = Sequence[float]


def _noise(sigma: float) -> CutNoise:
    """Gaussian noise."""
    return CutNoise(law="gaussian", scale=sigma)


def signal(weights: Matrix, features: Vector) -> float:
    """A = ‖MX‖²."""
    return layer_at(weights, features).signal


def mask_mse(weights: Matrix, features: Vector, p: float, sigma: float) -> float:
    """Mean squared error of masking."""
    return denoising.mask_mse(layer_at(weights, features), p, _noise(sigma))


def scale_mse(weights: Matrix, features: Vector, lam: float, sigma: float) -> float:
    """Mean squared error of scaling."""
    return denoising.scale_mse(layer_at(weights, features), lam, _noise(sigma))


def best_alpha(weights: Matrix, features: Vector, sigma: float) -> float:
    """Best α of one layer."""
    return lemma_a2.best_alpha(layer_at(weights, features), _noise(sigma))


def best_mean_scale(sigma: float) -> float:
    """Best λ of the mean error over U[−1, 1]."""
    return denoising.least_mse_scale(LinearLayer.average(rows=10, columns=16), _noise(sigma))


def least_mean_sigma(p: float) -> float:
    """σ from which masking helps on the average over U[−1, 1]."""
    return sqrt(denoising.least_variance_for_masking(LinearLayer.average(rows=10, columns=16), p))


def exp_sum(weights: Matrix, features: Vector, p: float, sigma: float) -> float:
    """E S of the softmax denominator."""
    return exp(lemma_a2.log_exp_sum(weights, features, p, _noise(sigma)))


def exp_sum_squared(weights: Matrix, features: Vector, p: float, sigma: float) -> float:
    """E S², one mask for all rows."""
    return exp(lemma_a2.log_exp_sum_squared(weights, features, p, _noise(sigma)))


def theorem_3_5_limit_mu(delta: float) -> float:
    """μ at which Theorem 3.5 stops being a bound."""
    return claims.theorem_3_5_limit(delta)[1]


# Evaluators that lie elsewhere, by the names that the cases have for them.
laplace_epsilon = claims.laplace_epsilon
lognormal_error = denoising_softmax.lognormal_error
softmax_loss_gap = denoising_softmax.softmax_loss_gap
theorem_3_5_epsilon = claims.theorem_3_5_epsilon
theorem_3_7_mu = claims.theorem_3_7_mu
theorem_a7_epsilon = composition.theorem_a7_epsilon

CASES = read_cases(__package__, "accurate_sl_reference.jsonl", globals())
