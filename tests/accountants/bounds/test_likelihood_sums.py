"""Sums of likelihood ratios: whatever the rows hold, the bound lies above, and it is tight if all are alike."""

from __future__ import annotations

from itertools import product
from math import exp, pi, sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from privkit.accountants.bounds import likelihood_sums
from privkit.accountants.bounds.likelihood_sums import COARSE_KINDS, FINE_KINDS, excess, hidden_delta
from privkit.accountants.bounds.third_record import Gram, triples

Array = NDArray[np.float64]
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, sqrt(0.75)]])
"""Three records that are 1 apart."""


@pytest.mark.parametrize(("a", "b", "c"), [(1.0, 0.8, 0.4), (0.09, 0.09, 0.045), (2.0, 0.01, 0.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.4])
def test_the_excess_of_a_term_is_its_mean(a: float, b: float, c: float, epsilon: float) -> None:
    normal = np.random.default_rng(1).multivariate_normal([-a / 2, -b / 2], [[a, c], [c, b]], 400_000)
    drawn = np.exp(normal[:, 0]) - exp(epsilon) * np.exp(normal[:, 1])
    for strike in (-1.5, -0.2, 0.0, 0.7, 2.0):
        gains = np.maximum(drawn - strike, 0.0)
        found = float(excess(np.array([strike]), epsilon, a, b, c)[0])
        assert abs(found - gains.mean()) <= 5 * gains.std() / sqrt(gains.size) + 1e-6


def test_the_excess_far_below_the_mean_keeps_its_digits() -> None:
    """E(V − k)₊ = E V − k + E(k − V)₊; the last was integrated to 40 digits for this triple and strike."""
    found = excess(np.array([-31.92]), 0.0, 1.0354, 0.5061, 0.2354)[0] - 31.92
    assert found == pytest.approx(1.825e-7, rel=2e-3)


@pytest.mark.parametrize("places", [1, 4, 30, 150])
@pytest.mark.parametrize("mu", [0.3, 1.0, 1.5])
def test_rows_with_any_triples_lie_below_the_sum(places: int, mu: float) -> None:
    """Equilateral triples, other records at x or at x', and all of these mixed over the rows."""
    random, samples = np.random.default_rng([places, int(10 * mu)]), max(600_000 // places, 5_000)
    seen = random.normal(size=(samples, places, 2))
    kinds = [np.full(places, kind) for kind in range(3)] + [np.arange(places) % 3, np.arange(places) % 2]
    for rest in kinds:
        x, other = (seen * (mu * (CORNERS[one] - CORNERS[rest])) for one in (0, 1))
        squares = [(mu**2 * (rest != one)) / 2 for one in (0, 1)]
        ratios = [np.exp(one.sum(-1) - square).mean(1) for one, square in zip((x, other), squares, strict=True)]
        for epsilon in (0.0, 0.05, 0.3):
            gains = np.maximum(ratios[0] - exp(epsilon) * ratios[1], 0.0)
            assert gains.mean() - 5 * gains.std() / sqrt(samples) <= hidden_delta(epsilon, mu, ((1, places),)) + 1e-12


def test_a_sum_with_one_triple_is_tight() -> None:
    """The credit is not an artifact of a loose grid: with the equilateral triple alone, δ is that of a sample."""
    random, places, samples = np.random.default_rng(2), 50, 200_000
    variables = np.exp(random.multivariate_normal([-0.5, -0.5], [[1, 0.5], [0.5, 1]], (samples // 10, places))).mean(1)
    gains = np.maximum(variables[:, 0] - exp(0.1) * variables[:, 1], 0.0)
    found = hidden_delta(0.1, 1.0, ((1, places),), ((1.0, 1.0, 0.5),))
    assert found == pytest.approx(gains.mean(), abs=4 * gains.std() / sqrt(gains.size), rel=0.02)


def test_a_sum_of_uneven_weights_is_tight() -> None:
    random, rows, samples = np.random.default_rng(6), ((1, 20), (2, 4), (5, 1)), 100_000
    weights = np.repeat(*np.array(rows).T) / 33
    drawn = np.exp(random.multivariate_normal([-0.5, -0.5], [[1, 0.5], [0.5, 1]], (samples, 25)))
    gains = np.maximum(weights @ (drawn[..., 0] - exp(0.1) * drawn[..., 1]).T, 0.0)
    found = hidden_delta(0.1, 1.0, rows, ((1.0, 1.0, 0.5),))
    assert found == pytest.approx(gains.mean(), abs=4 * gains.std() / sqrt(samples), rel=0.02)


def test_coarser_triples_cover_finer_ones() -> None:
    """Each matrix of a fine cover lies below one of the coarse cover."""
    coarse = [np.array([[a, c], [c, b]]) for a, b, c in triples((0.0, 0.5, 1.0), (0.0, 0.5, 1.0))]
    for t in np.linspace(0, 1, 21):
        for point in (np.array([[1, t / 2], [t / 2, t]]), np.array([[1, 1 - t / 2], [1 - t / 2, 1]])):
            assert any(np.linalg.eigvalsh(matrix - point).min() > -1e-9 for matrix in coarse)


@pytest.mark.slow(but=6)
@pytest.mark.parametrize(
    ("mu", "places", "deviations"),
    [(0.1, 300, 2.0), (0.1, 300, 4.0), (0.5, 300, 4.0), (1.0, 900, 2.0)],
)
@pytest.mark.parametrize("rests", [(2,), (1,), (0,), (0, 1, 2), (1, 2)])
def test_far_tails_of_rows_lie_below_the_sum(rests: tuple[int, ...], mu: float, places: int, deviations: float) -> None:
    """δ down to 1e-7, if the others are one corner or several: samples are moved to where the sum is above 0."""
    random, samples = np.random.default_rng([places, *rests]), 4_000_000 // places
    epsilon = float(np.log1p(deviations * sqrt(2 * (exp(mu * mu) - exp(mu * mu / 2)) / places)))
    moved, toward = deviations / sqrt(places), CORNERS[0] - CORNERS[1]
    seen = random.normal(size=(samples, places, 2)) + moved * toward
    likely = np.exp(places * moved**2 / 2 - moved * np.sum(seen @ toward, axis=1))
    others = CORNERS[np.array(rests)[np.arange(places) % len(rests)]]
    ratios = [
        np.exp((seen * (mu * (one - others))).sum(-1) - mu**2 * np.sum((one - others) ** 2, axis=1) / 2).mean(1)
        for one in CORNERS[:2]
    ]
    gains = likely * np.maximum(ratios[0] - exp(epsilon) * ratios[1], 0.0)
    assert gains.std() < 0.2 * sqrt(samples) * gains.mean()
    for kinds in (COARSE_KINDS, FINE_KINDS):
        assert gains.mean() - 4 * gains.std() / sqrt(samples) <= by_contour(epsilon, mu, ((1, places),), kinds)


def both(epsilon: float, mu: float, rows: likelihood_sums.RowWeights, kinds: tuple[Gram, ...]) -> tuple[float, float]:
    """The bound by the contour, and that by convolution with the longest grid."""
    weights, counts = np.array(rows, float).T
    strikes, calls, interval = likelihood_sums._calls(epsilon, mu, kinds)
    masses, weights = likelihood_sums._masses(strikes, calls), weights / (weights @ counts)
    spread = sqrt(float(np.max(masses @ strikes**2 - (masses @ strikes) ** 2)) * float(weights**2 @ counts))
    terms, some = (strikes, masses, calls.max(0)), (weights, counts)
    _, saddle, last = likelihood_sums._saddle(terms, some, spread, float(np.expm1(epsilon)) / spread)
    contour = likelihood_sums._by_contour(terms, interval, some, spread, saddle, last)
    return contour, likelihood_sums._by_convolution(terms, interval, some, 1e-12)


def by_contour(epsilon: float, mu: float, rows: likelihood_sums.RowWeights, kinds: tuple[Gram, ...]) -> float:
    """The first of both bounds alone."""
    return both(epsilon, mu, rows, kinds)[0]


@pytest.mark.parametrize(
    ("rows", "most"),
    [
        (((1, 500),), 1.06),
        (((12, 100), (16, 300), (20, 100)), 1.06),
        (((1, 300), (2, 30), (4, 5)), 10.0),  # with a few heavy rows, the convolution is better
    ],
)
def test_the_contour_of_one_triple_is_tight_if_rows_are_alike(rows: likelihood_sums.RowWeights, most: float) -> None:
    for mu, epsilon in ((0.1, 0.0), (0.1, 0.01), (0.3, 0.03), (0.3, 0.06), (0.6, 0.1)):
        contour, exact = both(epsilon, mu, rows, ((1.0, 1.0, 0.5),))
        assert 0.99 * exact < contour < most * exact


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("mu", [0.8, 0.3])
def test_rows_of_each_weight_may_hold_another_record(mu: float) -> None:
    """Each weight has its own kind of triple: no choice of kinds exceeds one of both bounds."""
    rows: likelihood_sums.RowWeights = ((3, 40), (4, 30), (6, 10), (20, 1))
    random, samples, weights = np.random.default_rng(8), 8_000, np.repeat(*np.array(rows).T) / 320
    seen = random.normal(size=(samples, weights.size, 2))
    for held in product(range(3), repeat=3):
        rest = CORNERS[np.repeat([*held, held[0]], [count for _, count in rows])]
        ratios = [
            np.exp((seen * (mu * (one - rest))).sum(-1) - mu**2 * np.sum((one - rest) ** 2, axis=1) / 2) @ weights
            for one in CORNERS[:2]
        ]
        for epsilon in (0.0, 0.1):
            gains = np.maximum(ratios[0] - exp(epsilon) * ratios[1], 0.0)
            least = gains.mean() - 5 * gains.std() / sqrt(samples)
            assert least <= min(both(epsilon, mu, rows, COARSE_KINDS)) + 1e-12


@pytest.mark.parametrize("deviations", [0.2, 1.0, 6.0])
def test_the_rule_is_a_bound_for_sums_of_any_size(deviations: float) -> None:
    """Its sum, with signs, lies above s₊ for every s; with more nodes, a midpoint rule over angles falls below it."""
    sums = np.linspace(-40, 40, 4001)  # θ = 1
    slopes, shares = likelihood_sums._rule(deviations)
    far = np.exp(sums) / (pi * slopes[-1])
    assert np.all(weighed(sums, slopes, shares) + far >= np.maximum(sums, 0) * (1 - 1e-9))
    near = np.abs(sums) < 3
    assert np.all(weighed(sums, slopes, shares)[near] < np.maximum(sums, 0)[near] + far[near] + 0.02)
    angles = np.tan((np.arange(256) + 0.5) * (pi / 512))
    assert np.any(weighed(sums, angles, np.full(256, pi / 256)) < -np.exp(sums) * 1e-3)


def weighed(sums: Array, slopes: Array, shares: Array) -> Array:
    """Σ over nodes z = 1 ± i·slope of e^{zs}/z², each with its weight on |1/z²|, over 2π."""
    turned = np.exp(1j * (sums[:, None] * slopes - 2 * np.arctan(slopes))).real
    return np.asarray(np.exp(sums) * (turned @ shares) / (2 * pi))


def test_few_rows_of_a_large_shift_are_convolved() -> None:
    """Their sum is far from normal, and its contour far above what any records do."""
    rows, mu, epsilon = ((1, 33), (2, 27), (4, 4), (7, 1)), 1.3, 4.0
    contour, convolution = both(epsilon, mu, rows, COARSE_KINDS)
    assert hidden_delta(epsilon, mu, rows) == pytest.approx(convolution, rel=0.03)
    assert convolution < contour / 100


@pytest.mark.parametrize(
    ("epsilon", "mu", "rows"), [(1.457, 0.0038, ((1, 72136), (269, 1))), (0.597, 0.00184, ((1, 41), (278, 1)))]
)
def test_what_is_far_from_the_mean_is_a_number(epsilon: float, mu: float, rows: likelihood_sums.RowWeights) -> None:
    for kinds in (COARSE_KINDS, ((1.0, 1.0, 0.5),), ((1e-6, 1.0, 0.0),)):
        with np.errstate(all="raise", under="ignore"):
            assert 0 <= hidden_delta(epsilon, mu, rows, kinds) < 1e-11


def test_the_unit_of_the_weights_does_not_matter() -> None:
    """All terms share a grid that depends on the sum: once, weights in small units were rounded up."""
    rows = ((1, 33), (2, 27), (4, 4), (7, 1))
    for mu, epsilon in ((1.3, 1.0), (1.5, 0.3)):
        found = hidden_delta(epsilon, mu, tuple((15 * weight, count) for weight, count in rows))
        assert found == pytest.approx(hidden_delta(epsilon, mu, rows), rel=1e-6)
