"""Sums of exponentials and the loss behind a softmax against Monte Carlo and every mask."""

import warnings
from itertools import product
from math import exp, isfinite, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.papers.accurate_sl import denoising_softmax
from privkit.papers.accurate_sl.denoising import CutNoise
from tests.papers import lemma_a2
from tests.papers.layers import COUNTER, Array, drawn, layer_of, matrices, noises, shares, z_score


@pytest.mark.parametrize(("law", "scale"), [("gaussian", 0.5), ("laplace", 0.2)])
@pytest.mark.parametrize("mask", ["shared", "per_row"])
@pytest.mark.parametrize("seed", [10, 11, 12])
def test_exp_sums_against_monte_carlo(law: str, scale: float, mask: str, seed: int) -> None:
    weights, features = layer_of(seed, 3, 4)
    generator, count, p = np.random.default_rng(seed), 200_000, 0.5
    noisy = features + drawn(generator, law, scale, (count, 4))
    kept = generator.random((count, 1 if mask == "shared" else 3, 4)) < p
    total = np.exp(np.einsum("mn,kmn->km", weights, kept * noisy[:, None, :])).sum(axis=1)
    noise = CutNoise(law=law, scale=scale)  # type: ignore[arg-type]
    first = exp(lemma_a2.log_exp_sum(weights, features, p, noise))
    second = exp(lemma_a2.log_exp_sum_squared(weights, features, p, noise, mask=mask))  # type: ignore[arg-type]
    assert abs(z_score(total, first)) < 4
    assert abs(z_score(total**2, second)) < 4


@given(made=matrices(), p=shares, noise=noises, mask=st.sampled_from(["shared", "per_row"]))
def test_exp_sums_are_the_mean_over_every_mask(
    made: tuple[list[list[float]], list[float]], p: float, noise: CutNoise, mask: str
) -> None:
    weights, features = np.array(made[0])[:2, :2], np.array(made[1])[:2]
    biggest = 2 * float(np.abs(weights).max()) * noise.scale
    if noise.law == "laplace" and biggest >= 0.99:
        noise = CutNoise(law="laplace", scale=0.5 * noise.scale / biggest)
    columns, rows = weights.shape[1], len(weights)
    first = second = 0.0
    for bits in product([0, 1], repeat=columns * (1 if mask == "shared" else rows)):
        kept = np.broadcast_to(np.reshape(bits, (-1, columns)), (rows, columns)) * weights
        probability = float(np.prod([p if one else 1 - p for one in bits]))
        first += probability * sum(mgf(row, features, noise) for row in kept)
        second += probability * sum(mgf(a + b, features, noise) for a in kept for b in kept)
    found = lemma_a2.log_exp_sum(weights, features, p, noise)
    assert found == pytest.approx(log(first), rel=1e-9, abs=1e-9)
    found = lemma_a2.log_exp_sum_squared(weights, features, p, noise, mask=mask)  # type: ignore[arg-type]
    assert found == pytest.approx(log(second), rel=1e-9, abs=1e-9)


def mgf(row: Array, features: Array, noise: CutNoise) -> float:
    """E e^{⟨row, X + Z⟩} by its definition."""
    if noise.law == "gaussian":
        return exp(float(row @ features + noise.scale**2 * (row @ row) / 2))
    return float(np.prod(np.exp(row * features) / (1 - (noise.scale * row) ** 2)))


def test_scaling_of_section_a_3_2_is_a_layer_of_scaled_weights() -> None:
    weights, features = layer_of(11, 3, 4)
    lam, sigma = 0.6, 0.5
    expected = sum(exp(lam * row @ features + lam**2 * sigma**2 * (row @ row) / 2) for row in weights)
    found = lemma_a2.log_exp_sum(lam * weights, features, 1.0, CutNoise(law="gaussian", scale=sigma))
    assert exp(found) == pytest.approx(expected, rel=1e-12)


def test_exp_sums_do_not_overflow() -> None:
    noise = CutNoise(law="gaussian", scale=10)
    first = lemma_a2.log_exp_sum([[100.0, 0.0], [0.0, 1.0]], [1.0, 1.0], 1.0, noise)
    assert first == pytest.approx(100 + 100**2 * 100 / 2, rel=1e-12)
    second = lemma_a2.log_exp_sum_squared([[100.0, 0.0]], [1.0, 1.0], 1.0, noise)
    assert second == pytest.approx(200 + 200**2 * 100 / 2, rel=1e-12)


@pytest.mark.parametrize("mask", ["shared", "per_row"])
def test_laplace_sums_are_refused_where_they_are_infinite(mask: str) -> None:
    weights, features = [[1.0, -0.5], [0.25, 0.0]], [0.1, 0.2]
    assert isfinite(lemma_a2.log_exp_sum(weights, features, 0.5, CutNoise(law="laplace", scale=0.999)))
    for scale in (1.0, 1.5, 1e300):
        with pytest.raises(ValueError, match=r"b\|t\| < 1"):
            lemma_a2.log_exp_sum(weights, features, 0.5, CutNoise(law="laplace", scale=scale))
    # The square needs twice the reach: b·2·max|m| < 1.
    edge = CutNoise(law="laplace", scale=0.5)
    with pytest.raises(ValueError, match=r"b\|t\| < 1"):
        lemma_a2.log_exp_sum_squared(weights, features, 0.5, edge, mask=mask)  # type: ignore[arg-type]
    below = CutNoise(law="laplace", scale=0.499)
    assert isfinite(lemma_a2.log_exp_sum_squared(weights, features, 0.5, below, mask=mask))  # type: ignore[arg-type]
    # Nothing is kept, nothing is infinite: S = m.
    assert lemma_a2.log_exp_sum(weights, features, 0.0, CutNoise(law="laplace", scale=5)) == pytest.approx(log(2))


@given(s2=st.floats(0, 700))
def test_lemma_a_4_misses_the_lognormal_mean_log_by_more_and_more(s2: float) -> None:
    assert denoising_softmax.lognormal_error(s2) == pytest.approx(s2 / 2 - np.expm1(s2) / 2, rel=1e-12, abs=1e-12)
    assert denoising_softmax.lognormal_error(s2) <= 0


# Theorem 3.4


def test_theorem_3_4_is_false() -> None:
    weights, features, label = COUNTER
    needed = denoising_softmax.least_variance_by_theorem_3_4(weights, features)
    assert needed == 0.0075
    for variance in (0.0075, 0.00751, 0.008):  # at the threshold, and beyond it
        assert variance >= needed
        gaps = [
            denoising_softmax.softmax_loss_gap(weights, features, label, sqrt(variance), lam)
            for lam in (1, 0.9999, 0.999, 0.99, 0.9, 0.5, 0.1, 0.0)
        ]
        assert gaps == sorted(gaps)  # the error grows as λ falls: no δ' as promised exists
        assert gaps[1] > gaps[0] * (1 + 1e-5)
        assert denoising_softmax.loss_slope(weights, features, label, sqrt(variance)) < 0


@pytest.mark.parametrize(("lam", "expected"), [(1, 0.010023), (0.999, 0.010042), (0.99, 0.010272), (0.9, 0.019041)])
def test_counter_example_values(lam: float, expected: float) -> None:
    assert round(denoising_softmax.softmax_loss_gap(*COUNTER, sqrt(0.0075), lam), 6) == expected


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("lam", [1.0, 0.9, 0.3, 0.0])
@pytest.mark.parametrize("label", [0, 1])
def test_loss_gap_and_slope_against_monte_carlo(lam: float, label: int) -> None:
    weights, features = layer_of(7, 2, 5)
    sigma, generator = 0.8, np.random.default_rng(label)
    noisy = features + drawn(generator, "gaussian", sigma, (400_000, 5))

    def loss(logits: Array) -> Array:
        return np.asarray(np.log(np.exp(logits).sum(axis=-1)) - logits[..., label])

    gap = np.abs(loss(weights @ features) - loss(lam * noisy @ weights.T))
    expected = denoising_softmax.softmax_loss_gap(weights, features, label, sigma, lam)
    if lam == 0:
        assert gap == pytest.approx(expected, rel=1e-9)
    else:
        assert abs(z_score(gap, expected)) < 4
    logits = noisy @ weights.T
    soft = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    slope = ((soft - np.eye(2)[label]) * logits).sum(axis=1)
    assert abs(z_score(slope, denoising_softmax.loss_slope(weights, features, label, sigma))) < 4


@settings(max_examples=60, deadline=None)
@given(margin=st.floats(-6, 6), spread=st.floats(0.05, 20))
def test_slope_is_the_derivative_of_the_mean_loss(margin: float, spread: float) -> None:
    weights, features = [[margin, 1.0], [0.0, 0.0]], [1.0, 0.0]
    u = np.linspace(-12, 12, 200_001)  # an equidistant sum converges fast for a smooth function under a bell
    mass = np.exp(-(u**2) / 2) / np.exp(-(u**2) / 2).sum()
    sigma = spread / sqrt(margin**2 + 1)
    step = 1e-4
    below, above = (mass @ np.logaddexp(0, -lam * (margin + spread * u)) for lam in (1 - step, 1 + step))
    slope = denoising_softmax.loss_slope(weights, features, 0, sigma)
    assert slope == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)


@given(margin=st.floats(-30, 30), sigma=st.floats(1e-6, 1e3), lam=shares, label=st.integers(0, 1))
@settings(max_examples=100, deadline=None)
def test_quadrature_converges_without_warning(margin: float, sigma: float, lam: float, label: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gap = denoising_softmax.softmax_loss_gap([[margin, 1.0], [0.0, 0.0]], [1.0, 0.0], label, sigma, lam)
        slope = denoising_softmax.loss_slope([[margin, 1.0], [0.0, 0.0]], [1.0, 0.0], label, sigma)
    assert gap >= 0
    assert isfinite(gap)
    assert isfinite(slope)


def test_slope_decides_whether_scaling_helps_the_mean_loss() -> None:
    # A wrong prediction under noise: shrinking helps. A right one with little noise: it hurts.
    assert denoising_softmax.loss_slope([[1.0], [0.0]], [-1.0], 0, 0.5) > 0
    assert denoising_softmax.loss_slope([[1.0], [0.0]], [1.0], 0, 0.1) < 0


def test_two_equal_rows_have_no_error() -> None:
    assert denoising_softmax.softmax_loss_gap([[1.0, 2.0], [1.0, 2.0]], [1.0, 1.0], 0, 3.0, 0.5) == 0
