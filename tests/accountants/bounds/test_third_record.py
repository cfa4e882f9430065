"""k of n, composed with a third record that is chosen before each round: against integrals and adaptive adversaries."""

import tracemalloc
from math import exp, sqrt

import numpy as np
import pytest

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.numerical_composition import composed_bound, third_record_bound, tight_bounds
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.bounds.step import Steps
from privkit.accountants.bounds.third_record import hockey_stick, rounds_profile, triples
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, WithoutReplacement
from privkit.accountants.spec.sensitivity import Clamp
from privkit.shared.array import Array
from tests.accountants.adaptive_adversary import lower

DELTA = 1e-5


def k_of_n(rate: float, mu: float) -> GaussianRelease:
    return GaussianRelease(mu=mu, rate=rate, sampling="without_replacement")


def epsilon(run: Steps) -> float:
    bound = third_record_bound(run)
    assert bound is not None
    return bound.epsilon(DELTA).value


def outcomes(points: Array, rate: float, step: float) -> tuple[Array, Array]:
    """[J] probabilities of a fine grid of outputs under either neighbor, of the record, the neighbor and the third."""
    axis = np.arange(-6.5, 6.5 + np.abs(points).max(), step)
    near = [np.exp(-((axis - point[:, None]) ** 2) / 2) * step / sqrt(2 * np.pi) for point in points]
    x, neighbor, third = (np.outer(one[0], one[1]).ravel() for one in near)
    return rate * x + (1 - rate) * third, rate * neighbor + (1 - rate) * third


def triangle(xy: float, other_y: float, between: float) -> Array:
    """[3, 2] the record, its neighbor and a third with these distances, the third at 0."""
    angle = (xy**2 + other_y**2 - between**2) / (2 * xy * max(other_y, 1e-300))
    return np.array([[xy, 0.0], [other_y * angle, other_y * sqrt(max(1 - angle**2, 0.0))], [0.0, 0.0]])


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("sides", [(1.0, 0.4, 1.0), (0.7, 1.2, 1.2), (1.5, 1.5, 0.5), (2.0, 0.2, 2.0)])
def test_the_divergence_of_a_round_is_that_of_a_fine_grid(rate: float, sides: tuple[float, float, float]) -> None:
    points = triangle(*sides)
    p, q = outcomes(points, rate, 0.02)
    a, b, c = points[0] @ points[0], points[1] @ points[1], points[0] @ points[1]
    at = np.array([0.0, 0.05, 0.5])
    found = hockey_stick(at, float(a), float(b), float(c), rate)
    np.testing.assert_allclose(found, [np.maximum(p - exp(e) * q, 0).sum() for e in at], atol=2e-6)


def test_some_matrix_exceeds_that_of_any_triple() -> None:
    """Larger in all directions means: the triple is a projection of another one, and noise is added to it."""
    random = np.random.default_rng(0)
    several = triples() + [(b, a, c) for a, b, c in triples()]
    upper = np.array([[[a, c], [c, b]] for a, b, c in several])
    for _ in range(500):
        points = random.standard_normal((3, 3)) * random.uniform(0.02, 1, 3)[:, None]
        sides = [np.linalg.norm(points[i] - points[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
        differences = (points[:2] - points[2]) / max(sides)
        assert (np.linalg.eigvalsh(upper - differences @ differences.T).min(1) > -1e-12).any()


@pytest.mark.parametrize(("rate", "mu", "rounds"), [(0.1, 1.0, 20), (1 / 3, 0.5, 8), (0.02, 0.7, 200)])
def test_it_is_close_to_what_an_adaptive_adversary_attains(rate: float, mu: float, rounds: int) -> None:
    attained, bound = lower(rate, mu, rounds, DELTA), epsilon([(k_of_n(rate, mu), rounds)])
    single = composed_bound([(k_of_n(rate, mu), rounds)])
    assert single is not None
    assert attained < bound < 1.02 * attained
    assert bound < single.epsilon(DELTA).value


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 60))])
def test_never_below_an_adaptive_adversary(seed: int) -> None:
    random = np.random.default_rng(seed)
    rate, mu = float(10 ** random.uniform(-3, -0.05)), float(10 ** random.uniform(-1.3, 0.35))
    rounds, delta = int(10 ** random.uniform(0.4, 2.7)), float(10 ** random.uniform(-8, -3))
    bound = third_record_bound([(k_of_n(rate, mu), rounds)])
    assert bound is not None
    assert bound.epsilon(delta).value >= lower(rate, mu, rounds, delta)


def test_the_run_of_the_published_gap() -> None:
    """100 of 10,000 and 1,000 rounds: an adaptive adversary attains 1.867, single rounds composed prove 2.199."""
    mechanism = SplitMechanism(
        smashed=Clamp(low=0, high=1, dimensions=1),
        noise=Noise(smashed=1),
        lower_model="frozen",
        rounds=1000,
        participation=WithoutReplacement(chosen=100, clients=10_000),
    )
    found = answer.epsilon(mechanism, DELTA)
    assert 1.867 < found.epsilon < 1.1 * 1.867
    assert "third record" in found.method
    back = answer.delta(mechanism, found.epsilon).delta
    assert back == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize("seed", range(12))
def test_never_below_the_known_pair(seed: int) -> None:
    random = np.random.default_rng(seed)
    rate, mu = float(10 ** random.uniform(-3, -0.1)), float(10 ** random.uniform(-1.5, 0.35))
    rounds = int(10 ** random.uniform(0.4, 3.3))
    low = pld.composed_lower([(gaussian.poisson_profiles(rate, mu), rounds)], DELTA)
    assert epsilon([(k_of_n(rate, mu), rounds)]) >= low


def test_beside_other_releases_it_only_helps() -> None:
    run: Steps = [
        (k_of_n(0.1, 1.0), 20),
        (GaussianRelease(mu=0.2), 3),
        (GaussianRelease(mu=0.5, rate=0.05, sampling="poisson"), 10),
    ]
    alone, together = epsilon(run[:1]), epsilon(run)
    single = composed_bound(run)
    assert single is not None
    assert alone < together < single.epsilon(DELTA).value


@pytest.mark.parametrize(
    "step", [GaussianRelease(mu=1.0), k_of_n(1.0, 1.0), k_of_n(0.1, 0.0), k_of_n(0.0, 1.0), k_of_n(0.1, 4.0)]
)
def test_it_is_silent_where_it_says_nothing(step: GaussianRelease) -> None:
    assert third_record_bound([(step, 5)]) is None
    assert len(tight_bounds([(step, 5)])) == 1


def test_one_round_has_its_exact_profile() -> None:
    assert third_record_bound([(k_of_n(0.1, 1.0), 1)]) is None


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("rate", "mu", "rounds"),
    [(1e-6, 2.5, 1000), (1e-9, 2.5, 10), (1e-300, 1.0, 10), (0.5, 1e-100, 10), (1e-5, 0.05, 500), (3e-5, 2.5, 50)],
)
def test_rare_losses_cost_little_memory_and_never_an_error(rate: float, mu: float, rounds: int) -> None:
    tracemalloc.start()
    found = [bound.epsilon(1e-9) for bound in tight_bounds([(k_of_n(rate, mu), rounds)])]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found
    assert peak < 400e6


def test_a_profile_falls_and_is_convex_in_exp_epsilon() -> None:
    several = rounds_profile(0.05, 1.0, 40)
    assert several is not None
    values = several[0](np.log(np.linspace(1, 50, 400)))
    assert (np.diff(values) <= 0).all()
    assert (np.diff(values, 2) >= -1e-12).all()
    assert float(several[0](np.array(800.0))) < 1e-9


def test_many_rounds_are_composed_of_profiles_of_at_least_as_many() -> None:
    several = rounds_profile(0.001, 1.0, 2000)
    assert several is not None
    assert several[1] == 8
