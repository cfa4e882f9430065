"""Empirical lower bounds are sound where ε is known, and find a planted leak."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from privkit.accountants.auditing import many_runs, one_run, score_cuts
from privkit.accountants.auditing.score_cuts import Cuts
from privkit.accountants.bounds import gaussian
from tests.accountants.auditing import published
from tests.accountants.auditing.mechanisms import (
    BOUNDS,
    Array,
    Draw,
    laplace,
    name_and_shame,
    normal,
    randomized_response,
)

REPETITIONS = 500


MECHANISMS = [
    pytest.param(randomized_response(1e-9), 1e-9, 0.0, id="no leak, ties"),
    pytest.param(laplace(1e-9), 1e-9, 0.0, id="no leak"),
    pytest.param(randomized_response(1.0), 1.0, 0.0, id="randomized response"),
    pytest.param(randomized_response(3.0), 3.0, 0.0, id="randomized response, large"),
    pytest.param(laplace(1.0), 1.0, 0.0, id="laplace"),
    pytest.param(normal(1.0), gaussian.epsilon(0.1, 1.0), 0.1, id="gaussian, large delta"),
    pytest.param(normal(1.0), gaussian.epsilon(1e-3, 1.0), 1e-3, id="gaussian"),
    pytest.param(name_and_shame(0.5, 0.02), 0.5, 0.02, id="name and shame"),
]


def exceeds(count: int, confidence: float) -> bool:
    """Whether so many failures refute the confidence (a test of size 1e-4)."""
    return bool(binomtest(count, REPETITIONS, 1 - confidence, alternative="greater").pvalue < 1e-4)


def failures(draw: Draw, epsilon: float, size: int, bound: Callable[[Array, Array], float], *, one_run: bool) -> int:
    """How often a bound lies above the truth; coins are fair, or half of them each way."""
    rng, count = np.random.default_rng(size), 0
    for _ in range(REPETITIONS):
        coins = rng.random(size) < 0.5 if one_run else np.arange(size) % 2 == 0
        scores = draw(rng, coins)
        count += bound(scores[coins], scores[~coins]) > epsilon + 1e-9
    return count


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("size", [40, 600])
@pytest.mark.parametrize(("draw", "epsilon", "delta"), MECHANISMS)
@pytest.mark.parametrize("threshold", [None, 0.5, 1.5])
def test_error_rates_are_sound(draw: Draw, epsilon: float, delta: float, threshold: float | None, size: int) -> None:
    def bound(members: Array, others: Array) -> float:
        return many_runs.epsilon_clopper_pearson(
            members, others, confidence=0.6, delta=delta, threshold=threshold
        ).epsilon

    assert not exceeds(failures(draw, epsilon, size, bound, one_run=False), 0.6)


@pytest.mark.slow(but=3)
@pytest.mark.parametrize(("draw", "epsilon", "delta"), MECHANISMS)
@pytest.mark.parametrize(("guesses", "size"), [(None, 40), (None, 300), ((5, 5), 300), ((20, 20), 40), ((10, 0), 300)])
def test_one_run_is_sound(draw: Draw, epsilon: float, delta: float, guesses: tuple[int, int] | None, size: int) -> None:
    def bound(members: Array, others: Array) -> float:
        return one_run.epsilon_one_run(members, others, confidence=0.6, delta=delta, guesses=guesses).epsilon

    assert not exceeds(failures(draw, epsilon, size, bound, one_run=True), 0.6)


def test_one_run_spends_nearly_the_whole_error_probability() -> None:
    """Randomized response reaches the binomial law exactly, so that the bound fails about as often as allowed."""

    def bound(members: Array, others: Array) -> float:
        half = (members.size + others.size) // 2
        return one_run.epsilon_one_run(members, others, confidence=0.6, delta=0.0, guesses=(half, half)).epsilon

    def scores(rng: np.random.Generator, coins: NDArray[np.bool_]) -> Array:
        right = rng.random(coins.size) < 1 / (1 + np.exp(-1.0))
        return np.where(coins == right, 1.0, -1.0) + rng.random(coins.size)

    found = failures(scores, 1.0, 400, bound, one_run=True)
    assert not exceeds(found, 0.6)
    assert found > 0.2 * REPETITIONS


def test_the_simulation_would_catch_a_missing_correction() -> None:
    """The best of all fixed thresholds, each at full confidence, fails the same test."""

    def greedy(members: Array, others: Array) -> float:
        return max(
            many_runs.epsilon_clopper_pearson(members, others, confidence=0.6, delta=0.0, threshold=t).epsilon
            for t in np.quantile(np.concatenate([members, others]), np.linspace(0.01, 0.99, 16))
        )

    assert exceeds(failures(laplace(1e-9), 1e-9, 600, greedy, one_run=False), 0.6)


def test_the_simulation_would_catch_a_missing_delta() -> None:
    def no_delta(members: Array, others: Array) -> float:
        return one_run.epsilon_one_run(members, others, confidence=0.6, delta=0.0, guesses=(5, 5)).epsilon

    assert exceeds(failures(name_and_shame(0.5, 0.02), 0.5, 600, no_delta, one_run=True), 0.6)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_limits_at_ranks_are_exact(size: int) -> None:
    """The rate beyond an order statistic of continuous scores exceeds its limit exactly as often as allowed."""
    from scipy.stats import beta

    cuts = Cuts.at_ranks(np.arange(size, dtype=np.float64), np.arange(size, dtype=np.float64))
    for alarms in cuts.alarms[: cuts.alarms.size // 2].tolist():
        limit = float(score_cuts.upper(alarms, size, 0.1))
        assert beta.sf(limit, alarms + 1, size - alarms) == pytest.approx(0.1, rel=1e-9)


# Power


@pytest.mark.parametrize(("leak", "share"), [(0.5, 0.75), (2.0, 0.9), (4.0, 0.9)])
def test_error_rates_find_a_planted_leak(leak: float, share: float) -> None:
    rng = np.random.default_rng(0)
    coins = np.arange(40_000) % 2 == 0
    for draw in (randomized_response(leak), laplace(leak)):
        scores = draw(rng, coins)
        found = many_runs.epsilon_clopper_pearson(scores[coins], scores[~coins], confidence=0.95, delta=1e-6)
        assert share * leak < found.epsilon < leak
        assert found.threshold is not None


@pytest.mark.parametrize(("leak", "share"), [(0.5, 0.75), (2.0, 0.9), (4.0, 0.9)])
def test_one_run_finds_a_planted_leak(leak: float, share: float) -> None:
    """Half tell their coin with noise, half are silent: abstaining on these finds the whole ε."""
    rng = np.random.default_rng(0)
    coins = rng.random(40_000) < 0.5
    speaks = rng.random(coins.size) < 0.5
    told = np.where(randomized_response(leak)(rng, coins) > 0, 1.0, -1.0)
    scores = np.where(speaks, told, 0.0) + 0.01 * rng.random(coins.size)
    found = one_run.epsilon_one_run(scores[coins], scores[~coins], confidence=0.95, delta=1e-7)
    assert share * leak < found.epsilon < leak
    assert found.guesses is not None
    assert sum(found.guesses) < 25_000


def test_proven_corrections_are_no_weaker_than_the_published_one_on_the_reference_scores() -> None:
    from scipy.special import ndtri

    out = ndtri((np.arange(1000) + 0.5) / 1000)
    for bound in BOUNDS:
        proven = bound(out + 1, out, confidence=0.95, delta=1e-5)
        as_published = getattr(published, bound.__name__)(out + 1, out, confidence=0.95, delta=1e-5)
        assert proven.sound
        assert proven.epsilon > as_published
