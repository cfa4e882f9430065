"""The floor of reconstruction: equal to the exact error of affine maps, below it for every other map."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from privkit.accountants import van_trees
from privkit.accountants.spec import Noise
from privkit.accountants.van_trees import GaussianPrior, error_floor

Array = NDArray[np.float64]
Map = Callable[[Array], Array]

# Each map of one number with its derivative.
MAPS: dict[str, tuple[Map, Map]] = {
    "tanh": (np.tanh, lambda t: 1 - np.tanh(t) ** 2),
    "clip": (lambda t: np.clip(t, -1, 1), lambda t: (np.abs(t) < 1).astype(float)),
    "cubic": (lambda t: t**3, lambda t: 3 * t**2),
}


def of_matrix(matrix: Array) -> van_trees.Along:
    return lambda record, directions: matrix @ directions


def of_number(derivative: Map, weights: Array) -> van_trees.Along:
    """Of g(weights·x)."""
    return lambda x, directions: derivative(weights @ x) * (weights @ directions)[None]


def any_prior(size: int, rank: int, generator: np.random.Generator) -> GaussianPrior:
    return GaussianPrior(mean=generator.normal(size=size), directions=generator.normal(size=(size, rank)))


def posterior_error(matrix: Array, prior: GaussianPrior, sigma: float, releases: int) -> float:
    """Of the exact posterior mean, from the covariance of release and record: no information matrix is formed."""
    covariance = prior.directions @ prior.directions.T
    seen = matrix @ covariance @ matrix.T + sigma**2 / releases * np.eye(len(matrix))
    gain = np.linalg.solve(seen, matrix @ covariance).T
    return float(np.trace(covariance - gain @ matrix @ covariance)) / len(covariance)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("affine", [True, False])
def test_an_affine_map_has_the_error_of_the_posterior_mean(seed: int, affine: bool) -> None:
    generator = np.random.default_rng(seed)
    size, released = (int(n) for n in generator.integers(1, 9, 2))
    prior = any_prior(size, int(generator.integers(1, size + 1)), generator)
    matrix, sigma, releases = generator.normal(size=(released, size)), generator.uniform(0.1, 3), 1 + seed % 3
    floor = error_floor(
        prior, of_matrix(matrix), Noise(smashed=sigma), releases=releases, affine=affine, draws=6, seed=seed
    )
    exact = posterior_error(matrix, prior, sigma, releases)
    assert floor.low == pytest.approx(exact, rel=1e-9, abs=1e-12)
    assert floor.prior == pytest.approx(np.sum(prior.directions**2) / size)
    assert floor.sentence.startswith("proven" if affine else "estimated")


def exact_error(matrix: Array, directions: Array, sigma: float) -> float:
    """tr[LᵀL (I + B)⁻¹]/d of an affine map by elimination in rational numbers."""
    ways, moved = ([[Fraction(x) for x in row] for row in one.tolist()] for one in (directions, matrix @ directions))
    width, scale = len(ways[0]), 1 / Fraction(sigma) ** 2
    each = range(width)

    def product(rows: list[list[Fraction]], i: int, j: int) -> Fraction:
        return sum((row[i] * row[j] for row in rows), start=Fraction(0))

    table = [[scale * product(moved, i, j) + (i == j) for j in each] for i in each]
    table = [row + [product(ways, i, j) for j in each] for i, row in enumerate(table)]
    for i in each:
        table[i] = [x / table[i][i] for x in table[i]]
        for other in [j for j in each if j != i]:
            table[other] = [x - table[other][i] * y for x, y in zip(table[other], table[i], strict=True)]
    return float(sum(table[i][width + i] for i in each)) / len(ways)


@pytest.mark.parametrize(("scale", "sigma"), [(255.0, 1e-5), (1.0, 1e-8), (1.0, 1e-14), (1.0, 1e155)])
def test_tiny_noise_does_not_raise_the_floor(scale: float, sigma: float) -> None:
    """An inverse of the information loses the directions that are not released: floors were up to 7 times too high."""
    for seed in range(10):
        generator = np.random.default_rng(seed)
        directions, matrix = scale * generator.normal(size=(6, 6)) / 3, generator.normal(size=(4, 6))
        prior = GaussianPrior(mean=np.zeros(6), directions=directions)
        low = error_floor(prior, of_matrix(matrix), Noise(smashed=sigma), affine=True).low
        assert low <= exact_error(matrix, directions, sigma) * (1 + 1e-12)
        assert sigma < 1e-9 or low >= 0.999 * exact_error(matrix, directions, sigma)


def least_error(function: Map, weights: Array, prior: GaussianPrior, sigma: float, releases: int) -> float:
    """The posterior mean's error by quadrature over a grid of records and releases; releases act by their mean.

    A rotation of u makes the released number a function of its first coordinate; the others keep their variance.
    """
    slope = prior.directions.T @ weights
    scale = float(np.linalg.norm(slope))
    first = prior.directions @ slope / scale
    noise = sigma / np.sqrt(releases)
    t = np.linspace(-8, 8, 1601)
    chance = norm.pdf(t)
    chance /= chance.sum()
    means = function(weights @ prior.mean + scale * t)
    true = slice(None, None, 8)  # the error is a smooth function of the true record, so few of them do
    # Releases are placed around each mean, so that small noise is resolved: Hermite nodes of the noise.
    nodes, node_chance = np.polynomial.hermite_e.hermegauss(24)
    node_chance = node_chance / node_chance.sum()
    error = 0.0
    for node, share in zip(nodes, node_chance, strict=True):
        away = (means[true, None] + noise * node - means) / noise
        weight = np.exp(-0.5 * away**2 + 0.5 * node**2) * chance
        total = weight.sum(1)
        center = weight @ t / total
        # The expected squared error of the posterior mean at the true record.
        error += share * 8 * float(chance[true] @ (t[true] - center) ** 2)
    rest = float(np.sum(prior.directions**2) - first @ first)
    return (error * float(first @ first) + rest) / len(prior.mean)


@pytest.mark.parametrize("count", [8, pytest.param(70, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MAPS)
def test_no_map_has_a_smaller_error_than_its_floor(name: str, count: int) -> None:
    """Specifications of one and two numbers, several releases, noise small and large."""
    function, derivative = MAPS[name]
    generator = np.random.default_rng(list(MAPS).index(name))
    ratios = []
    for seed in range(count):
        size = 1 + seed % 2
        prior = any_prior(size, size, generator)
        weights = generator.normal(size=size)
        sigma, releases = float(np.exp(generator.uniform(np.log(0.15), np.log(5)))), int(generator.integers(1, 6))
        along, noise = of_number(derivative, weights), Noise(smashed=sigma)
        try:
            floor = error_floor(prior, along, noise, releases=releases, draws=400, seed=seed)
        except ValueError:  # a clip that no draw lies within: the release never moves
            continue
        exact = least_error(function, weights, prior, sigma, releases)
        assert exact <= floor.prior * 1.001  # the quadrature's own check
        ratios.append(floor.low / exact)
    assert len(ratios) > 0.9 * count
    assert max(ratios) <= 1.002, ratios
    assert np.median(ratios) > 0.5, ratios  # a floor of zero would pass the line above


def test_the_value_is_the_mean_tangent_of_the_trace() -> None:
    """The slope is taken by a difference quotient, from the same draws."""
    generator = np.random.default_rng(0)
    prior, matrix = any_prior(4, 3, generator), generator.normal(size=(5, 4))

    def along(x: Array, ways: Array) -> Array:
        slopes: Array = (1 - np.tanh(matrix @ x) ** 2)[:, None] * (matrix @ ways)
        return slopes

    def trace(information: Array) -> float:
        left = np.linalg.inv(np.eye(3) + information)
        return float(np.trace(prior.directions @ left @ prior.directions.T)) / 4

    seen = [along(x, prior.directions) for x in prior.draw(6, np.random.default_rng(3))]
    terms = [2 / 0.5**2 * one.T @ one for one in seen]
    point, mean = np.mean(terms[:3], axis=0), np.mean(terms[3:], axis=0)
    step = 1e-5
    slope = (trace(point + step * (mean - point)) - trace(point - step * (mean - point))) / (2 * step)
    found = error_floor(prior, along, Noise(smashed=0.5), releases=2, draws=6, seed=3)
    assert found.value == pytest.approx(trace(point) + slope, rel=1e-6)
    assert abs(slope) > 0.05 * trace(point)


def test_few_draws_do_not_raise_the_estimate_as_a_sample_mean_does() -> None:
    """For x³ and a standard prior, E J² = 27; Jensen's inequality puts the plug-in above the trace."""
    prior, along = GaussianPrior(mean=np.zeros(1), directions=np.eye(1)), of_number(MAPS["cubic"][1], np.ones(1))
    sigma = 5.0
    exact = 1 / (1 + 27 / sigma**2)
    found = np.array(
        [error_floor(prior, along, Noise(smashed=sigma), draws=4, seed=seed).value for seed in range(2000)]
    )
    spread = found.std() / np.sqrt(len(found))
    assert found.mean() < exact + 4 * spread
    plugged = [
        1 / (1 + np.mean(9 * prior.draw(4, np.random.default_rng(seed)) ** 4) / sigma**2) for seed in range(2000)
    ]
    assert np.mean(plugged) > exact + 4 * np.std(plugged) / np.sqrt(2000)
    assert np.mean(plugged) > found.mean() + 4 * spread


@pytest.mark.slow
def test_the_limit_keeps_its_confidence_where_derivatives_are_bounded() -> None:
    """At most 7 % of 400 limits at 95 % were above the trace in sixteen cases of tanh and clip; of bare means, half."""
    prior, (_, derivative) = GaussianPrior(mean=np.zeros(1), directions=np.eye(1)), MAPS["tanh"]
    t = np.linspace(-10, 10, 20001)
    information = float(np.average(derivative(t) ** 2, weights=norm.pdf(t)))
    for sigma in (0.3, 2.0):
        exact = 1 / (1 + information / sigma**2)
        floors = [
            error_floor(prior, of_number(derivative, np.ones(1)), Noise(smashed=sigma), seed=seed)
            for seed in range(400)
        ]
        assert np.mean([one.low > exact for one in floors]) < 0.1
        assert all(one.low < one.value for one in floors)


def test_releases_of_one_record_act_as_less_noise() -> None:
    generator = np.random.default_rng(0)
    prior, along = any_prior(4, 4, generator), of_matrix(generator.normal(size=(3, 4)))
    many = error_floor(prior, along, Noise(smashed=2.0), releases=16, affine=True)
    assert many.low == pytest.approx(error_floor(prior, along, Noise(smashed=0.5), affine=True).low)
    assert many.low < error_floor(prior, along, Noise(smashed=2.0), affine=True).low < many.prior


def test_a_prior_of_records_has_their_mean_and_about_their_covariance() -> None:
    generator = np.random.default_rng(0)
    truth = any_prior(5, 5, generator)
    prior = GaussianPrior.of_records(truth.draw(20_000, generator))
    assert np.allclose(prior.directions @ prior.directions.T, truth.directions @ truth.directions.T, atol=0.4)
    assert np.allclose(prior.mean, truth.mean, atol=0.1)
    two = GaussianPrior.of_records(truth.draw(20_000, generator), components=2)
    assert two.directions.shape == (5, 2)
    assert np.sum(two.directions**2) < np.sum(prior.directions**2)
    few = GaussianPrior.of_records(truth.draw(3, generator))  # shrunk, so that it has variance everywhere
    assert few.directions.shape == (5, 5)


ONE = GaussianPrior(mean=np.zeros(2), directions=np.eye(2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise": Noise(law="laplace", smashed=1.0)}, "derived for Gaussian noise, got laplace"),
        ({"draws": 3}, "draws"),
        ({"releases": 0}, "releases"),
        ({"confidence": 1.0}, "confidence"),
        ({"along": lambda x, ways: ways[0]}, "finite derivatives"),
        ({"along": lambda x, ways: ways * np.nan}, "not finite"),
        ({"along": lambda x, ways: x[:, None] * ways, "affine": True}, "derivatives at two records differ"),
        ({"lipschitz": 0.9}, "derivatives at a drawn record exceed it"),
        ({"noise": Noise(smashed=1e-200)}, "sigma is too small: a derivative along a direction of the prior, times"),
        ({"lipschitz": 1e200}, "sigma is too small: lipschitz, times"),
        ({"along": lambda x, ways: 0 * ways}, "all derivatives are 0 at the 100 drawn records"),
    ],
)
def test_what_is_not_covered_is_refused(change: dict[str, object], words: str) -> None:
    given = {"noise": Noise(smashed=1.0), "along": of_matrix(np.eye(2))} | change
    with pytest.raises(ValueError, match=words):
        error_floor(ONE, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mean", "directions", "words"),
    [
        (np.zeros((2, 1)), np.eye(2), "needs mean"),
        (np.zeros(2), np.eye(3), "needs mean"),
        (np.zeros(2), np.array([[1.0, 1.0], [1.0, 1.0]]), "linearly independent"),
        (np.zeros(2), np.full((2, 2), np.inf), "finite"),
    ],
)
def test_a_prior_without_a_density_is_refused(mean: Array, directions: Array, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GaussianPrior(mean=mean, directions=directions)


@pytest.mark.parametrize(("records", "components"), [(np.ones((4, 2)), None), (np.eye(2), 3), (np.ones(3), None)])
def test_records_without_a_prior_are_refused(records: Array, components: int | None) -> None:
    with pytest.raises(ValueError, match=r"records must be|components must be"):
        GaussianPrior.of_records(records, components)


def test_the_sentence_names_the_prior_and_the_word() -> None:
    exact = error_floor(ONE, of_matrix(np.eye(2)), Noise(smashed=1.0), affine=True)
    assert exact.sentence == (
        "proven: for records drawn from the stated Gaussian prior, no reconstruction has a mean squared error below "
        "0.5; the prior's mean alone has 1. Nothing is said of other records"
    )
    assert "error below 0.4999;" in replace(exact, low=0.499987).sentence
    estimated = error_floor(ONE, of_matrix(np.eye(2)), Noise(smashed=1.0))
    assert estimated.sentence.startswith("estimated from 100 draws: ")
    assert "confidence" not in estimated.sentence
    bounded = error_floor(ONE, of_matrix(np.eye(2)), Noise(smashed=1.0), lipschitz=1.0, draws=10_000)
    assert bounded.sentence.startswith("proven at 95% confidence: ")
    assert 0.49 < bounded.low < 0.5


@pytest.mark.slow
def test_a_rectifier_that_few_draws_exceed_is_proven_only_by_its_slope() -> None:
    """50·relu(x − 2): many samples of 100 show too little of its slope, so that their limits are above the bound."""
    prior, sigma = GaussianPrior(mean=np.zeros(1), directions=np.eye(1)), 1.0
    exact = 1 / (1 + 2500 * float(norm.sf(2)) / sigma**2)
    along = of_number(lambda x: np.where(x > 2, 50.0, 0.0), np.ones(1))
    too_high = 0
    for seed in range(60):
        with suppress(ValueError):  # no draw exceeded it
            too_high += error_floor(prior, along, Noise(smashed=sigma), seed=seed).low > exact
        proven = error_floor(prior, along, Noise(smashed=sigma), lipschitz=50.0, draws=2000, seed=seed)
        assert proven.proven
        assert proven.low <= exact
    assert too_high > 6
