"""Denoising theory against Monte Carlo, exact enumeration of masks, grids, and the reference values."""

import subprocess
import sys
import warnings
from itertools import product
from math import exp, inf, isfinite, log, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privkit.papers.accurate_sl import denoising as theory
from privkit.papers.accurate_sl import denoising_simulation as simulation
from privkit.papers.accurate_sl import denoising_softmax
from privkit.papers.accurate_sl.denoising import LinearLayer, Noise
from privkit.papers.accurate_sl.denoising_simulation import Settings

Array = NDArray[np.float64]

COUNTER = [[20.0, 3.0], [20.0, 0.0]], [0.0, 1.0], 0
"""M, X and label of the counter-example to Theorem 3.4; σ² = .0075."""

entry = st.floats(-3, 3)
noises = st.builds(Noise, law=st.sampled_from(["gaussian", "laplace"]), scale=st.floats(0.01, 5))
shares = st.floats(0, 1)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[list[list[float]], list[float]]:
    """M [m, n] and X [n], small; one entry of M is not tiny, so that its norm is no underflow."""
    m, n = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    weights = [[draw(entry) for _ in range(n)] for _ in range(m)]
    weights[0][0] = draw(st.floats(0.1, 3))
    return weights, [draw(entry) for _ in range(n)]


layers = matrices().map(lambda made: LinearLayer.of(*made))


def layer_of(seed: int, rows: int, columns: int) -> tuple[Array, Array]:
    """The reference tables' layer: M first, then X."""
    generator = np.random.default_rng(seed)
    return generator.uniform(-1, 1, (rows, columns)), generator.uniform(-1, 1, columns)


def drawn(generator: np.random.Generator, law: str, scale: float, shape: tuple[int, ...]) -> Array:
    """Noise, by the definition of its law: Laplace as a difference of exponentials."""
    if law == "gaussian":
        return scale * generator.standard_normal(shape)
    return scale * (generator.exponential(size=shape) - generator.exponential(size=shape))


def z_score(sample: Array, expected: float) -> float:
    """Standard errors between a sample's mean and what it should be."""
    return float((sample.mean() - expected) / (sample.std(ddof=1) / sqrt(len(sample))))


# Reference values


def test_masks_of_their_own_for_each_row_give_another_second_moment() -> None:
    weights, features = layer_of(11, 3, 4)
    half = Noise(law="gaussian", scale=0.5)
    shared_mask = exp(denoising_softmax.log_exp_sum_squared(weights, features, 0.5, half))
    own_masks = exp(denoising_softmax.log_exp_sum_squared(weights, features, 0.5, half, mask="per_row"))
    assert round(shared_mask, 5) == 10.55961
    assert round(own_masks, 4) == 10.5715


@pytest.mark.parametrize(
    ("seed", "rows", "columns", "sigma", "p", "first", "second"),
    [(10, 4, 6, 0.3, 0.8, 4.61340, 22.8496), (11, 3, 4, 0.5, 0.5, 3.06878, 10.5596)],
)
def test_lemma_a_2_reference(
    seed: int, rows: int, columns: int, sigma: float, p: float, first: float, second: float
) -> None:
    weights, features = layer_of(seed, rows, columns)
    noise = Noise(law="gaussian", scale=sigma)
    assert exp(denoising_softmax.log_exp_sum(weights, features, p, noise)) == pytest.approx(first, abs=5e-6)
    assert exp(denoising_softmax.log_exp_sum_squared(weights, features, p, noise)) == pytest.approx(second, abs=5e-5)


# Mean squared errors


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize(("seed", "rows", "columns", "scale"), [(0, 10, 16, 0.3), (2, 3, 5, 1.0), (3, 1, 4, 0.5)])
@pytest.mark.parametrize("p", [0.9, 0.5, 0.2])
@pytest.mark.parametrize("mask", ["shared", "per_row"])
def test_mse_against_monte_carlo(
    law: str, seed: int, rows: int, columns: int, scale: float, p: float, mask: str
) -> None:
    weights, features = layer_of(seed, rows, columns)
    layer, noise = LinearLayer.of(weights, features), Noise(law=law, scale=scale)  # type: ignore[arg-type]
    generator, count = np.random.default_rng(100 + seed), 60_000
    noisy = features + drawn(generator, law, scale, (count, columns))
    clean = weights @ features
    shape = (count, columns) if mask == "shared" else (count, rows, columns)
    kept = generator.random(shape) < p
    if mask == "shared":
        output = (kept * noisy) @ weights.T
    else:
        output = np.einsum("mn,kmn,kn->km", weights, kept, noisy, optimize=True)
    assert abs(z_score(((output - clean) ** 2).sum(axis=1), theory.mask_mse(layer, p, noise))) < 4
    scaled = (((p * noisy) @ weights.T - clean) ** 2).sum(axis=1)
    assert abs(z_score(scaled, theory.scale_mse(layer, p, noise))) < 4


@given(made=matrices(), noise=noises, p=shares)
def test_mask_mse_is_the_mean_over_every_mask(
    made: tuple[list[list[float]], list[float]], noise: Noise, p: float
) -> None:
    weights, features = np.array(made[0]), np.array(made[1])
    total = 0.0
    for kept in product([0, 1], repeat=len(features)):
        probability = np.prod([p if one else 1 - p for one in kept])
        bias = weights @ features - weights @ (np.array(kept) * features)
        spread = noise.variance * np.sum((weights * np.array(kept)) ** 2)
        total += probability * (bias @ bias + spread)
    assert theory.mask_mse(LinearLayer.of(*made), p, noise) == pytest.approx(total, rel=1e-9, abs=1e-12)


@given(layer=layers, noise=noises, p=shares)
def test_scaling_is_never_worse_than_masking(layer: LinearLayer, noise: Noise, p: float) -> None:
    mask, scale = theory.mask_mse(layer, p, noise), theory.scale_mse(layer, p, noise)
    gap = theory.mask_scale_gap(layer, p, noise)
    assert gap >= 0
    assert mask - scale == pytest.approx(gap, rel=1e-9, abs=1e-11 * (mask + scale))
    best = theory.scale_mse(layer, theory.best_scale(layer, noise), noise)
    assert best <= theory.mask_mse(layer, theory.best_keep(layer, noise), noise) * (1 + 1e-12)


@given(layer=layers, noise=noises)
def test_best_scale_is_the_lowest_point(layer: LinearLayer, noise: Noise) -> None:
    star = theory.best_scale(layer, noise)
    lowest = theory.scale_mse(layer, star, noise)
    assert 0 <= star < 1  # whatever the noise, some scaling helps
    assert all(lowest <= theory.scale_mse(layer, lam, noise) * (1 + 1e-12) for lam in np.linspace(0, 1, 201))
    if star > 1e-300:
        assert theory.best_alpha(layer, noise) == pytest.approx(1 / star, rel=1e-12)


@given(layer=layers, noise=noises)
def test_best_keep_is_the_lowest_point(layer: LinearLayer, noise: Noise) -> None:
    star = theory.best_keep(layer, noise)
    lowest = theory.mask_mse(layer, star, noise)
    assert all(lowest <= theory.mask_mse(layer, p, noise) * (1 + 1e-12) for p in np.linspace(0, 1, 201))


def test_best_keep_inside_clipped_and_at_the_ends() -> None:
    unit = Noise(law="gaussian", scale=1)

    def star(signal: float, diagonal: float, weight: float) -> float:
        return theory.best_keep(LinearLayer(signal=signal, diagonal=diagonal, weight=weight), unit)

    assert star(4, 2, 4) == 0.5  # (8 − 2 − 4)/4
    assert star(4, 2, 1) == 1.0  # 1.25, clipped
    assert star(4, 2, 9) == 0.0  # −.75, clipped
    assert star(1, 3, 2) == 0.0  # concave: A < σ²F
    assert star(3, 4, 2) == 1.0  # concave: A > σ²F
    assert star(2, 2, 1) == 1.0  # a straight line that falls
    assert star(1, 1, 2) == 0.0  # a straight line that rises
    assert star(2, 3, 2) == 1.0  # both ends are equal: do not mask


# Theorem 3.1


def clear(difference: float, *terms: float) -> bool:
    """Whether a difference is more than rounding."""
    return abs(difference) > 1e-9 * sum(terms)


@given(layer=layers, noise=noises, p=shares)
def test_condition_i_says_when_masking_is_no_worse(layer: LinearLayer, noise: Noise, p: float) -> None:
    masked, bare = theory.mask_mse(layer, p, noise), theory.mask_mse(layer, 1, noise)
    threshold = theory.least_variance_for_masking(layer, p)
    # Near p = 1 and near the threshold rounding decides; both sides must be clear of it.
    if clear(masked - bare, masked, bare) and clear(threshold - noise.variance, threshold, noise.variance):
        assert theory.masking_no_worse(layer, p, noise) == (masked <= bare)


def test_condition_i_as_printed_is_wrong_at_p_1() -> None:
    layer, noise = LinearLayer(signal=1, diagonal=5, weight=1), Noise(law="gaussian", scale=1)
    assert theory.least_variance_for_masking(layer, 1) > noise.variance  # the printed condition fails
    assert theory.mask_mse(layer, 1, noise) == theory.scale_mse(layer, 1, noise)  # yet nothing was changed
    assert theory.masking_no_worse(layer, 1, noise)
    assert not theory.masking_no_worse(layer, 0.999, noise)


@given(layer=layers, noise=noises, alpha=st.floats(1.0001, 1e6))
def test_condition_ii_says_when_scaling_is_no_worse(layer: LinearLayer, noise: Noise, alpha: float) -> None:
    scaled, bare = theory.scale_mse(layer, 1 / alpha, noise), theory.scale_mse(layer, 1, noise)
    if clear(scaled - bare, scaled, bare):
        assert theory.scaling_no_worse(layer, alpha, noise) == (scaled <= bare)


# Averages over U[−1, 1]


@pytest.mark.parametrize(("rows", "columns"), [(10, 16), (3, 5), (1, 1)])
def test_averages_against_monte_carlo(rows: int, columns: int) -> None:
    generator = np.random.default_rng(rows)
    found = [
        LinearLayer.of(generator.uniform(-1, 1, (rows, columns)), generator.uniform(-1, 1, columns))
        for _ in range(20_000)
    ]
    average = LinearLayer.average(rows=rows, columns=columns)
    for name in ("signal", "diagonal", "weight"):
        assert abs(z_score(np.array([getattr(one, name) for one in found]), getattr(average, name))) < 4, name


@given(rows=st.integers(1, 500), columns=st.integers(1, 500), sigma=st.floats(0.01, 5), p=shares)
def test_on_the_average_masking_is_a_straight_line_and_the_best_scale_is_the_same_for_every_size(
    rows: int, columns: int, sigma: float, p: float
) -> None:
    layer, noise = LinearLayer.average(rows=rows, columns=columns), Noise(law="gaussian", scale=sigma)
    assert theory.best_scale(layer, noise) == pytest.approx(1 / (1 + 3 * sigma**2), rel=1e-12)
    line = (1 - p) * rows * columns / 9 + p * sigma**2 * rows * columns / 3
    assert theory.mask_mse(layer, p, noise) == pytest.approx(line, rel=1e-12)
    if abs(sigma - 1 / sqrt(3)) > 1e-6 and p < 1:
        assert theory.masking_no_worse(layer, p, noise) == (sigma > 1 / sqrt(3))


@pytest.mark.parametrize(("sigma", "expected"), [(0.3, 0.787), (0.5, 0.571), (0.7, 0.405)])
def test_best_scales_of_fig_2(sigma: float, expected: float) -> None:
    layer = LinearLayer.average(rows=10, columns=16)
    assert round(theory.best_scale(layer, Noise(law="gaussian", scale=sigma)), 3) == expected


# Lemmas A.2 and A.4


@pytest.mark.parametrize(("law", "scale"), [("gaussian", 0.5), ("laplace", 0.2)])
@pytest.mark.parametrize("mask", ["shared", "per_row"])
@pytest.mark.parametrize("seed", [10, 11, 12])
def test_exp_sums_against_monte_carlo(law: str, scale: float, mask: str, seed: int) -> None:
    weights, features = layer_of(seed, 3, 4)
    generator, count, p = np.random.default_rng(seed), 200_000, 0.5
    noisy = features + drawn(generator, law, scale, (count, 4))
    kept = generator.random((count, 1 if mask == "shared" else 3, 4)) < p
    total = np.exp(np.einsum("mn,kmn->km", weights, kept * noisy[:, None, :])).sum(axis=1)
    noise = Noise(law=law, scale=scale)  # type: ignore[arg-type]
    first = exp(denoising_softmax.log_exp_sum(weights, features, p, noise))
    second = exp(denoising_softmax.log_exp_sum_squared(weights, features, p, noise, mask=mask))  # type: ignore[arg-type]
    assert abs(z_score(total, first)) < 4
    assert abs(z_score(total**2, second)) < 4


@given(made=matrices(), p=shares, noise=noises, mask=st.sampled_from(["shared", "per_row"]))
def test_exp_sums_are_the_mean_over_every_mask(
    made: tuple[list[list[float]], list[float]], p: float, noise: Noise, mask: str
) -> None:
    weights, features = np.array(made[0])[:2, :2], np.array(made[1])[:2]
    biggest = 2 * float(np.abs(weights).max()) * noise.scale
    if noise.law == "laplace" and biggest >= 0.99:
        noise = Noise(law="laplace", scale=0.5 * noise.scale / biggest)
    columns, rows = weights.shape[1], len(weights)
    first = second = 0.0
    for bits in product([0, 1], repeat=columns * (1 if mask == "shared" else rows)):
        kept = np.broadcast_to(np.reshape(bits, (-1, columns)), (rows, columns)) * weights
        probability = float(np.prod([p if one else 1 - p for one in bits]))
        first += probability * sum(mgf(row, features, noise) for row in kept)
        second += probability * sum(mgf(a + b, features, noise) for a in kept for b in kept)
    found = denoising_softmax.log_exp_sum(weights, features, p, noise)
    assert found == pytest.approx(log(first), rel=1e-9, abs=1e-9)
    found = denoising_softmax.log_exp_sum_squared(weights, features, p, noise, mask=mask)  # type: ignore[arg-type]
    assert found == pytest.approx(log(second), rel=1e-9, abs=1e-9)


def mgf(row: Array, features: Array, noise: Noise) -> float:
    """E e^{⟨row, X + Z⟩} by its definition."""
    if noise.law == "gaussian":
        return exp(float(row @ features + noise.scale**2 * (row @ row) / 2))
    return float(np.prod(np.exp(row * features) / (1 - (noise.scale * row) ** 2)))


def test_scaling_of_section_a_3_2_is_a_layer_of_scaled_weights() -> None:
    weights, features = layer_of(11, 3, 4)
    lam, sigma = 0.6, 0.5
    expected = sum(exp(lam * row @ features + lam**2 * sigma**2 * (row @ row) / 2) for row in weights)
    found = denoising_softmax.log_exp_sum(lam * weights, features, 1.0, Noise(law="gaussian", scale=sigma))
    assert exp(found) == pytest.approx(expected, rel=1e-12)


def test_exp_sums_do_not_overflow() -> None:
    noise = Noise(law="gaussian", scale=10)
    first = denoising_softmax.log_exp_sum([[100.0, 0.0], [0.0, 1.0]], [1.0, 1.0], 1.0, noise)
    assert first == pytest.approx(100 + 100**2 * 100 / 2, rel=1e-12)
    second = denoising_softmax.log_exp_sum_squared([[100.0, 0.0]], [1.0, 1.0], 1.0, noise)
    assert second == pytest.approx(200 + 200**2 * 100 / 2, rel=1e-12)


@pytest.mark.parametrize("mask", ["shared", "per_row"])
def test_laplace_sums_are_refused_where_they_are_infinite(mask: str) -> None:
    weights, features = [[1.0, -0.5], [0.25, 0.0]], [0.1, 0.2]
    assert isfinite(denoising_softmax.log_exp_sum(weights, features, 0.5, Noise(law="laplace", scale=0.999)))
    for scale in (1.0, 1.5, 1e300):
        with pytest.raises(ValueError, match=r"b\|t\| < 1"):
            denoising_softmax.log_exp_sum(weights, features, 0.5, Noise(law="laplace", scale=scale))
    # The square needs twice the reach: b·2·max|m| < 1.
    edge = Noise(law="laplace", scale=0.5)
    with pytest.raises(ValueError, match=r"b\|t\| < 1"):
        denoising_softmax.log_exp_sum_squared(weights, features, 0.5, edge, mask=mask)  # type: ignore[arg-type]
    below = Noise(law="laplace", scale=0.499)
    assert isfinite(denoising_softmax.log_exp_sum_squared(weights, features, 0.5, below, mask=mask))  # type: ignore[arg-type]
    # Nothing is kept, nothing is infinite: S = m.
    assert denoising_softmax.log_exp_sum(weights, features, 0.0, Noise(law="laplace", scale=5)) == pytest.approx(log(2))


@given(s2=st.floats(0, 700))
def test_lemma_a_4_misses_the_lognormal_mean_log_by_more_and_more(s2: float) -> None:
    assert denoising_softmax.lognormal_error(s2) == pytest.approx(s2 / 2 - np.expm1(s2) / 2, rel=1e-12, abs=1e-12)
    assert denoising_softmax.lognormal_error(s2) <= 0


def test_lemma_a_4_is_close_where_the_noise_is_small() -> None:
    weights, features = layer_of(11, 3, 4)
    noise = Noise(law="gaussian", scale=0.05)
    first = denoising_softmax.log_exp_sum(weights, features, 1.0, noise)
    second = denoising_softmax.log_exp_sum_squared(weights, features, 1.0, noise)
    noisy = features + drawn(np.random.default_rng(0), "gaussian", 0.05, (400_000, 4))
    logs = np.log(np.exp(noisy @ weights.T).sum(axis=1))
    assert abs(z_score(logs, denoising_softmax.approximate_mean_log(first, second))) < 4


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


# Simulation


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_linear_curves_lie_on_the_closed_form(law: str) -> None:
    setting = Settings(law=law, rows=4, columns=6, draws=20_000, points=6, seed=3)  # type: ignore[arg-type]
    average = LinearLayer.average(rows=4, columns=6)
    for curves in simulation.simulate(setting, ("linear",)):
        mse = theory.scale_mse if curves.operator == "scaling" else theory.mask_mse
        for level, scale in enumerate(curves.scale):
            noise = Noise(law=law, scale=scale)  # type: ignore[arg-type]
            expected = np.array([mse(average, value, noise) for value in curves.factor])
            assert np.all(np.abs(curves.mse[level] - expected) < 4 * curves.error[level])


def test_simulation_equals_a_loop_over_draws() -> None:
    setting = Settings(law="laplace", scales=(0.4, 0.9), rows=3, columns=2, draws=40, points=3, seed=5)
    generator = np.random.default_rng(5)
    weights, features = generator.uniform(-1, 1, (40, 3, 2)), generator.uniform(-1, 1, (40, 2))
    noise, uniform = generator.laplace(size=(40, 2)), generator.random((40, 2))
    labels = generator.integers(3, size=40)

    def f(quantity: str, m: Array, u: Array, label: int) -> Array:
        z = m @ u
        if quantity == "linear":
            return z
        soft = np.exp(z) / np.exp(z).sum()
        return np.asarray(-np.log(soft[label : label + 1]) if quantity == "loss" else m.T @ (soft - np.eye(3)[label]))

    for curves in simulation.simulate(setting):
        for level, point in product(range(2), range(3)):
            value, found = curves.factor[point], []
            for k in range(40):
                noisy = features[k] + curves.scale[level] * noise[k]
                seen = value * noisy if curves.operator == "scaling" else noisy * (uniform[k] < value)
                clean = f(curves.quantity, weights[k], features[k], labels[k])
                found.append(np.sum((f(curves.quantity, weights[k], seen, labels[k]) - clean) ** 2))
            assert curves.mse[level, point] == pytest.approx(np.mean(found), rel=1e-10)
            assert curves.error[level, point] == pytest.approx(np.std(found, ddof=1) / sqrt(40), rel=1e-8)


def test_gradient_is_the_derivative_of_the_loss() -> None:
    batch = next(simulation._batches(Settings(rows=3, columns=2, draws=5)))
    base = batch.results(batch.features)
    for column in range(2):
        step = np.zeros((5, 2))
        step[:, column] = 1e-6
        slope = (batch.results(batch.features + step)["loss"] - batch.results(batch.features - step)["loss"]) / 2e-6
        assert base["gradient"][:, column] == pytest.approx(slope[:, 0], rel=1e-6, abs=1e-8)


def test_blocks_do_not_change_shapes_or_means(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Settings(rows=2, columns=3, draws=1001, points=3)
    whole = simulation.simulate(setting)
    monkeypatch.setattr(simulation, "_BLOCK", 60)
    for one, other in zip(whole, simulation.simulate(setting), strict=True):
        gap = np.abs(one.mse - other.mse)
        assert np.all(gap <= 4 * np.hypot(one.error, other.error) + 1e-12)
    assert len(simulation.best_scales(setting, 0.7)) == 1001


def test_figures_hold_the_papers_curves_and_are_reproducible() -> None:
    setting = Settings(draws=200, points=5)
    assert [(c.quantity, c.operator) for c in simulation.figure_2(setting)] == [
        ("linear", "scaling"),
        ("linear", "masking"),
        ("loss", "scaling"),
        ("loss", "masking"),
    ]
    assert [c.quantity for c in simulation.figure_6(setting)] == ["gradient", "gradient"]
    laplace = Settings(law="laplace", draws=200, points=5)
    assert len(simulation.figure_7(laplace)) == 6
    first, again = simulation.figure_7(laplace), simulation.figure_7(laplace)
    other = simulation.figure_7(Settings(law="laplace", draws=200, points=5, seed=1))
    for one, same, else_ in zip(first, again, other, strict=True):
        assert np.array_equal(one.mse, same.mse)
        assert not np.array_equal(one.mse, else_.mse)
        assert one.mse.shape == one.error.shape == (3, 5)
    with pytest.raises(ValueError, match=r"settings\.law"):
        simulation.figure_7(setting)
    with pytest.raises(ValueError, match=r"settings\.law"):
        simulation.figure_2(laplace)


def test_what_figs_2_6_and_7_show_holds() -> None:
    for curves in simulation.figure_2() + simulation.figure_6() + simulation.figure_7():
        least, bare = curves.mse.min(axis=1), curves.mse[:, -1]
        assert curves.factor[-1] == 1
        if curves.operator == "scaling":
            assert np.all(least < bare)  # whatever the noise, some λ helps
        elif curves.scale[0] == 0.3 and curves.quantity != "loss":
            assert least[0] == bare[0]  # little noise: no mask helps
            assert least[2] < bare[2]  # much noise: some mask helps


def test_single_layers_scatter_around_the_average() -> None:
    found = simulation.best_scales(Settings(draws=40_000, seed=9), 0.7)
    assert np.quantile(found, [0.05, 0.95]).round(2).tolist() == [0.2, 0.57]
    batch = next(simulation._batches(Settings(draws=3, seed=9)))
    singles = simulation.best_scales(Settings(draws=3, seed=9), 0.7)
    for weights, features, single in zip(batch.weights, batch.features, singles, strict=True):
        layer = LinearLayer.of(weights, features)
        assert theory.best_scale(layer, Noise(law="gaussian", scale=0.7)) == pytest.approx(single, rel=1e-12)


def test_settings_say_what_the_paper_leaves_open() -> None:
    assert "chosen (the paper does not say): m = 7, n = 9" in Settings(rows=7, columns=9).describe()
    assert "b = 0.3" in Settings(law="laplace").describe()


# Bad input

BAD_NUMBERS = [nan, inf, -inf, True, "1", None, 1j]
UNIT_LAYER = LinearLayer(signal=1, diagonal=1, weight=1)
UNIT_NOISE = Noise(law="gaussian", scale=1)


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, -0.01, 1.01])
def test_refuses_shares_outside_0_to_1(bad: float) -> None:
    for call in (theory.mask_mse, theory.scale_mse, theory.mask_scale_gap, theory.masking_no_worse):
        with pytest.raises(ValueError, match="must be a finite number >= 0 and <= 1"):
            call(UNIT_LAYER, bad, UNIT_NOISE)
    with pytest.raises(ValueError, match="p must be"):
        theory.least_variance_for_masking(UNIT_LAYER, bad)
    for sums in (denoising_softmax.log_exp_sum, denoising_softmax.log_exp_sum_squared):
        with pytest.raises(ValueError, match="p must be"):
            sums([[1.0]], [1.0], bad, UNIT_NOISE)
    with pytest.raises(ValueError, match="lam must be"):
        denoising_softmax.softmax_loss_gap(*COUNTER, 1.0, bad)


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, 0, -1.0])
def test_refuses_what_is_no_noise(bad: float) -> None:
    with pytest.raises(ValueError, match="scale must be a finite number > 0"):
        Noise(law="gaussian", scale=bad)
    with pytest.raises(ValueError, match="sigma must be"):
        denoising_softmax.loss_slope(*COUNTER, bad)
    with pytest.raises(ValueError, match="scale must be"):
        Settings(scales=(0.3, bad))


@pytest.mark.parametrize("bad", [*BAD_NUMBERS, 1.0, 0.5, -2.0])
def test_refuses_alpha_up_to_1(bad: float) -> None:
    with pytest.raises(ValueError, match="alpha must be a finite number > 1"):
        theory.scaling_no_worse(UNIT_LAYER, bad, UNIT_NOISE)


@pytest.mark.parametrize(
    ("weights", "features"),
    [
        ([[1.0, nan]], [1.0, 1.0]),
        ([[1.0, 1.0]], [1.0, inf]),
        ([[1.0, 1.0]], [1.0]),
        ([1.0, 1.0], [1.0, 1.0]),
        ([[1.0], [1.0, 2.0]], [1.0]),
        ([[]], []),
        ([], []),
        ([["a"]], [1.0]),
        ([[1j]], [1.0]),
        ([[0.0, 0.0]], [1.0, 1.0]),
        ([[1e200, 0.0]], [1e200, 1.0]),
        (None, None),
    ],
)
def test_refuses_what_is_no_layer(weights: list[list[float]], features: list[float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        LinearLayer.of(weights, features)


def test_refuses_the_rest_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="law must be one of gaussian, laplace"):
        Noise(law="normal", scale=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="MX = 0"):
        theory.best_alpha(LinearLayer(signal=0, diagonal=1, weight=1), UNIT_NOISE)
    assert theory.best_scale(LinearLayer(signal=0, diagonal=1, weight=1), UNIT_NOISE) == 0
    with pytest.raises(ValueError, match="no row of zeros, got one in row 1"):
        denoising_softmax.least_variance_by_theorem_3_4([[1.0, 0.0], [0.0, 0.0]], [1.0, 1.0])
    with pytest.raises(ValueError, match="two classes"):
        denoising_softmax.softmax_loss_gap([[1.0], [2.0], [3.0]], [1.0], 0, 1.0)
    with pytest.raises(ValueError, match="label must be"):
        denoising_softmax.softmax_loss_gap([[1.0], [2.0]], [1.0], 2, 1.0)
    with pytest.raises(ValueError, match="mask must be one of"):
        denoising_softmax.log_exp_sum_squared([[1.0]], [1.0], 0.5, UNIT_NOISE, mask="rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="log_mean_square must be >="):
        denoising_softmax.approximate_mean_log(1.0, 1.0)
    with pytest.raises(ValueError, match="too large for a float"):
        denoising_softmax.lognormal_error(800)
    with pytest.raises(ValueError, match="quantity must be one of"):
        simulation.simulate(Settings(), ("f_1",))
    with pytest.raises(ValueError, match="scales must hold"):
        Settings(scales=())
    for field, bad in [("rows", 1), ("columns", 0), ("draws", 1), ("points", 1), ("seed", -1), ("draws", 10.0)]:
        with pytest.raises(ValueError, match=f"{field} must be a whole number"):
            Settings(**{field: bad})  # type: ignore[arg-type]


wild = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=300)
@given(a=wild, b=wild, f=wild, scale=wild, p=wild, law=st.sampled_from(["gaussian", "laplace"]))
def test_any_number_gives_a_sound_answer_or_a_sentence(
    a: float, b: float, f: float, scale: float, p: float, law: str
) -> None:
    calls, found, reason = (theory.mask_mse, theory.scale_mse, theory.mask_scale_gap), [], ""
    try:
        layer, noise = LinearLayer(signal=a, diagonal=b, weight=f), Noise(law=law, scale=scale)  # type: ignore[arg-type]
        found = [call(layer, p, noise) for call in calls]
        found += [theory.best_scale(layer, noise), theory.best_keep(layer, noise)]
        theory.masking_no_worse(layer, p, noise)
        theory.scaling_no_worse(layer, 1 + abs(p), noise)
    except ValueError as error:
        reason = str(error)
    if reason:
        assert "must be" in reason
    else:
        assert all(isfinite(value) and value >= 0 for value in found)
        assert max(found[-2:]) <= 1


@given(m=st.lists(wild, min_size=4, max_size=4), x=st.lists(wild, min_size=2, max_size=2), scale=wild, p=wild)
def test_any_layer_gives_a_finite_logarithm_or_a_sentence(
    m: list[float], x: list[float], scale: float, p: float
) -> None:
    weights = [m[:2], m[2:]]
    for law in ("gaussian", "laplace"):
        for mask in ("shared", "per_row"):
            first, second, reason = nan, nan, ""
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    noise = Noise(law=law, scale=scale)
                    first = denoising_softmax.log_exp_sum(weights, x, p, noise)
                    second = denoising_softmax.log_exp_sum_squared(weights, x, p, noise, mask=mask)
                    denoising_softmax.least_variance_by_theorem_3_4(weights, x)
                except ValueError as error:
                    reason = str(error)
            assert "must" in reason or "finite only" in reason or (isfinite(first) and isfinite(second))


def test_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, privkit.papers.accurate_sl.denoising_simulation, privkit.papers.accurate_sl.reference;"
        "print(sorted({'torch', 'matplotlib', 'scipy.integrate', 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
