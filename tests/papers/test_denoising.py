"""Masking and scaling of a linear layer against Monte Carlo and every mask."""

from itertools import product
from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privkit.papers.accurate_sl import denoising as theory
from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer
from tests.papers import lemma_a2
from tests.papers.layers import drawn, layer_at, layer_of, layers, matrices, noises, shares, z_score


def test_masks_of_their_own_for_each_row_give_another_second_moment() -> None:
    weights, features = layer_of(11, 3, 4)
    half = CutNoise(law="gaussian", scale=0.5)
    shared_mask = exp(lemma_a2.log_exp_sum_squared(weights, features, 0.5, half))
    own_masks = exp(lemma_a2.log_exp_sum_squared(weights, features, 0.5, half, mask="per_row"))
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
    noise = CutNoise(law="gaussian", scale=sigma)
    assert exp(lemma_a2.log_exp_sum(weights, features, p, noise)) == pytest.approx(first, abs=5e-6)
    assert exp(lemma_a2.log_exp_sum_squared(weights, features, p, noise)) == pytest.approx(second, abs=5e-5)


# Mean squared errors


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize(("seed", "rows", "columns", "scale"), [(0, 10, 16, 0.3), (2, 3, 5, 1.0), (3, 1, 4, 0.5)])
@pytest.mark.parametrize("p", [0.9, 0.5, 0.2])
@pytest.mark.parametrize("mask", ["shared", "per_row"])
def test_mse_against_monte_carlo(
    law: str, seed: int, rows: int, columns: int, scale: float, p: float, mask: str
) -> None:
    weights, features = layer_of(seed, rows, columns)
    layer, noise = layer_at(weights, features), CutNoise(law=law, scale=scale)  # type: ignore[arg-type]
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
    made: tuple[list[list[float]], list[float]], noise: CutNoise, p: float
) -> None:
    weights, features = np.array(made[0]), np.array(made[1])
    total = 0.0
    for kept in product([0, 1], repeat=len(features)):
        probability = np.prod([p if one else 1 - p for one in kept])
        bias = weights @ features - weights @ (np.array(kept) * features)
        spread = noise.variance * np.sum((weights * np.array(kept)) ** 2)
        total += probability * (bias @ bias + spread)
    assert theory.mask_mse(layer_at(*made), p, noise) == pytest.approx(total, rel=1e-9, abs=1e-12)


@given(layer=layers, noise=noises, p=shares)
def test_scaling_is_never_worse_than_masking(layer: LinearLayer, noise: CutNoise, p: float) -> None:
    mask, scale = theory.mask_mse(layer, p, noise), theory.scale_mse(layer, p, noise)
    gap = theory.mask_scale_gap(layer, p, noise)
    assert gap >= 0
    assert mask - scale == pytest.approx(gap, rel=1e-9, abs=1e-11 * (mask + scale))
    best = theory.scale_mse(layer, theory.least_mse_scale(layer, noise), noise)
    assert best <= theory.mask_mse(layer, theory.least_mse_keep(layer, noise), noise) * (1 + 1e-12)


@given(layer=layers, noise=noises)
def test_best_scale_is_the_lowest_point(layer: LinearLayer, noise: CutNoise) -> None:
    star = theory.least_mse_scale(layer, noise)
    lowest = theory.scale_mse(layer, star, noise)
    assert 0 <= star < 1  # whatever the noise, some scaling helps
    assert all(lowest <= theory.scale_mse(layer, lam, noise) * (1 + 1e-12) for lam in np.linspace(0, 1, 201))
    if star > 1e-300:
        assert lemma_a2.best_alpha(layer, noise) == pytest.approx(1 / star, rel=1e-12)


@given(layer=layers, noise=noises)
def test_best_keep_is_the_lowest_point(layer: LinearLayer, noise: CutNoise) -> None:
    star = theory.least_mse_keep(layer, noise)
    lowest = theory.mask_mse(layer, star, noise)
    assert all(lowest <= theory.mask_mse(layer, p, noise) * (1 + 1e-12) for p in np.linspace(0, 1, 201))


def test_best_keep_inside_clipped_and_at_the_ends() -> None:
    unit = CutNoise(law="gaussian", scale=1)

    def star(signal: float, diagonal: float, weight: float) -> float:
        return theory.least_mse_keep(LinearLayer(signal=signal, diagonal=diagonal, weight=weight), unit)

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
def test_condition_i_says_when_masking_is_no_worse(layer: LinearLayer, noise: CutNoise, p: float) -> None:
    masked, bare = theory.mask_mse(layer, p, noise), theory.mask_mse(layer, 1, noise)
    threshold = theory.least_variance_for_masking(layer, p)
    # Near p = 1 and near the threshold rounding decides; both sides must be clear of it.
    if clear(masked - bare, masked, bare) and clear(threshold - noise.variance, threshold, noise.variance):
        assert theory.masking_no_worse(layer, p, noise) == (masked <= bare)


def test_condition_i_as_printed_is_wrong_at_p_1() -> None:
    layer, noise = LinearLayer(signal=1, diagonal=5, weight=1), CutNoise(law="gaussian", scale=1)
    assert theory.least_variance_for_masking(layer, 1) > noise.variance  # the printed condition fails
    assert theory.mask_mse(layer, 1, noise) == theory.scale_mse(layer, 1, noise)  # yet nothing was changed
    assert theory.masking_no_worse(layer, 1, noise)
    assert not theory.masking_no_worse(layer, 0.999, noise)


@given(layer=layers, noise=noises, alpha=st.floats(1.0001, 1e6))
def test_condition_ii_says_when_scaling_is_no_worse(layer: LinearLayer, noise: CutNoise, alpha: float) -> None:
    scaled, bare = theory.scale_mse(layer, 1 / alpha, noise), theory.scale_mse(layer, 1, noise)
    if clear(scaled - bare, scaled, bare):
        assert theory.scaling_no_worse(layer, alpha, noise) == (scaled <= bare)


# Averages over U[−1, 1]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("rows", "columns"), [(10, 16), (3, 5), (1, 1)])
def test_averages_against_monte_carlo(rows: int, columns: int) -> None:
    generator = np.random.default_rng(rows)
    found = [
        layer_at(generator.uniform(-1, 1, (rows, columns)), generator.uniform(-1, 1, columns)) for _ in range(20_000)
    ]
    average = LinearLayer.average(rows=rows, columns=columns)
    for name in ("signal", "diagonal", "weight"):
        assert abs(z_score(np.array([getattr(one, name) for one in found]), getattr(average, name))) < 4, name


@given(rows=st.integers(1, 500), columns=st.integers(1, 500), sigma=st.floats(0.01, 5), p=shares)
def test_on_the_average_masking_is_a_straight_line_and_the_best_scale_is_the_same_for_every_size(
    rows: int, columns: int, sigma: float, p: float
) -> None:
    layer, noise = LinearLayer.average(rows=rows, columns=columns), CutNoise(law="gaussian", scale=sigma)
    assert theory.least_mse_scale(layer, noise) == pytest.approx(1 / (1 + 3 * sigma**2), rel=1e-12)
    line = (1 - p) * rows * columns / 9 + p * sigma**2 * rows * columns / 3
    assert theory.mask_mse(layer, p, noise) == pytest.approx(line, rel=1e-12)
    if abs(sigma - 1 / sqrt(3)) > 1e-6 and p < 1:
        assert theory.masking_no_worse(layer, p, noise) == (sigma > 1 / sqrt(3))


@pytest.mark.parametrize(("sigma", "expected"), [(0.3, 0.787), (0.5, 0.571), (0.7, 0.405)])
def test_best_scales_of_fig_2(sigma: float, expected: float) -> None:
    layer = LinearLayer.average(rows=10, columns=16)
    assert round(theory.least_mse_scale(layer, CutNoise(law="gaussian", scale=sigma)), 3) == expected
