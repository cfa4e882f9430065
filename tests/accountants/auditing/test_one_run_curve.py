"""The one-run auditor of Gaussian curves against linear programming, its own theorem and repeated runs."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import coo_array
from scipy.stats import norm

from privkit.accountants.auditing.families import GAUSSIAN, Approximate, Family, ScaledNoise
from privkit.accountants.auditing.one_run import (
    ceiling_one_run_curve,
    epsilon_one_run,
    epsilon_one_run_curve,
    planned_guesses,
    rejected,
)
from privkit.accountants.bounds import gaussian
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson
from privkit.accountants.spec.sensitivity import Known


def most_likely(mu: float, right: int, asked: int, canaries: int) -> float:
    """Largest P[at least so many right] that the theorem allows: a linear program over tangents of the curve."""
    z = np.linspace(-4, 4, 1_500)
    points, height, slope = norm.cdf(z), norm.cdf(z + mu), np.exp(-mu * z - mu**2 / 2)
    j = np.arange(asked + 1)
    rows, limits = [], []
    for i in range(1, asked + 1):
        tail = np.where(j >= i, j, 0) / canaries
        before = np.where(j >= i - 1, asked - j, 0) / canaries
        rows.append(tail - slope[:, None] * before)
        limits.append(height - slope * points)
    found = linprog(
        -(j >= right).astype(float),
        A_ub=np.concatenate(rows),
        b_ub=np.concatenate(limits),
        A_eq=np.ones((1, asked + 1)),
        b_eq=[1.0],
        bounds=(0, 1),
    )
    return float(-found.fun)


@pytest.mark.parametrize(("mu", "right", "asked", "canaries"), [(0.0, 4, 4, 6), (0.5, 5, 6, 6), (1.0, 7, 8, 20)])
def test_the_greedy_filling_is_the_worst_case(mu: float, right: int, asked: int, canaries: int) -> None:
    worst = most_likely(mu, right, asked, canaries)
    assert worst < 0.99
    assert rejected(GAUSSIAN.at(mu), right, asked, canaries, worst + 1e-3)
    assert not rejected(GAUSSIAN.at(mu), right, asked, canaries, worst - 1e-3)


def most_likely_of_all(canaries: int, asked: int, right: int, epsilon: float, delta: float) -> float:
    """Largest P[at least so many right "member" guesses] of any (ε, δ)-DP mechanism that names canaries: brute force.

    Variables are the probability of every answer for every row of coins, and its excess over e^ε times that of each
    neighbor; the excesses of a pair of neighbors sum to at most δ.
    """
    coins, answers = list(product((0, 1), repeat=canaries)), list(combinations(range(canaries), asked))
    pairs = [(a, b) for a, x in enumerate(coins) for b, y in enumerate(coins) if np.abs(np.subtract(x, y)).sum() == 1]
    many, rows = len(answers), []
    for k, (a, b) in enumerate(pairs):
        for g in range(many):
            row, excess = k * (many + 1) + g, (len(coins) + k) * many + g
            rows += [(row, a * many + g, 1.0), (row, b * many + g, -np.exp(epsilon)), (row, excess, -1.0)]
            rows.append((k * (many + 1) + many, excess, 1.0))
    at, variable, weight = zip(*rows, strict=True)
    shape = len(pairs) * (many + 1), (len(coins) + len(pairs)) * many
    wins = [sum(x[i] for i in answer) >= right for x in coins for answer in answers]
    whole = np.repeat(np.arange(len(coins)), many), np.arange(len(coins) * many)
    found = linprog(
        -np.pad(np.array(wins, float), (0, shape[1] - len(wins))) / len(coins),
        A_ub=coo_array((weight, (at, variable)), shape=shape).tocsr(),
        b_ub=np.tile(np.append(np.zeros(many), delta), len(pairs)),
        A_eq=coo_array((np.ones(len(wins)), whole), shape=(len(coins), shape[1])).tocsr(),
        b_eq=np.ones(len(coins)),
        bounds=(0, 1),
    )
    return float(-found.fun)


@pytest.mark.parametrize(("canaries", "asked", "right", "epsilon", "delta"), [(4, 4, 3, 1, 0.05), (5, 2, 2, 0.3, 0.02)])
def test_guesses_of_one_kind_hold_for_every_mechanism(
    canaries: int, asked: int, right: int, epsilon: float, delta: float
) -> None:
    """Half the canaries are members, so m/2 takes the place of m: five are within 1 % of that, and 5 % away from m."""
    worst = most_likely_of_all(canaries, asked, right, epsilon, delta)
    rates = Approximate(delta=delta).at(epsilon)
    assert not rejected(rates, right, asked, canaries / 2, worst - 1e-6)
    if asked == 2:
        assert rejected(rates, right, asked, canaries / 2, 1.01 * worst)
        assert not rejected(rates, right, asked, canaries, 1.05 * worst)


@pytest.mark.slow
def test_sampled_rounds_are_asked_for_members_only() -> None:
    """A canary that no coin drew looks like one that was left out, so "non-member" guesses are worth little."""
    sampled = SplitMechanism(
        smashed=Known(value=1, relation="add_or_remove_one", norm="l2"),
        noise=Noise(smashed=0.3),
        relation="add_or_remove_one",
        participation=Poisson(rate=0.1),
        lower_model="frozen",
    )
    top, bottom = planned_guesses(2_000, 1.0, confidence=0.95, family=ScaledNoise(mechanism=sampled))
    assert top > 0
    assert bottom == 0
    assert all(planned_guesses(2_000, 1.0, confidence=0.95, family=GAUSSIAN))


def test_a_curve_that_protects_perfectly_leaves_a_fair_coin() -> None:
    """One guess is right with probability Φ(μ/2) at most, and with 1/2 at μ = 0."""
    for mu in (0.0, 0.7, 2.0):
        assert not rejected(GAUSSIAN.at(mu), 1, 1, 1, norm.cdf(mu / 2) - 1e-6)
        assert rejected(GAUSSIAN.at(mu), 1, 1, 1, norm.cdf(mu / 2) + 1e-6)


@pytest.mark.parametrize("guesses", [(60, 60), (20, 0), (0, 40)])
def test_bounds_hold_and_beat_those_of_one_epsilon(guesses: tuple[int, int]) -> None:
    generator, mu = np.random.default_rng(0), 1.0
    truth = gaussian.epsilon(1e-5, mu)
    ours, theirs = [], []
    for _ in range(40):
        coins = generator.random(400) < 0.5
        scores = generator.normal(size=400) + mu * coins
        given = {"confidence": 0.95, "delta": 1e-5, "guesses": guesses}
        ours.append(epsilon_one_run_curve(scores[coins], scores[~coins], family=GAUSSIAN, **given).epsilon)  # type: ignore[arg-type]
        theirs.append(epsilon_one_run(scores[coins], scores[~coins], **given).epsilon)  # type: ignore[arg-type]
    assert sum(found > truth for found in ours) <= 5
    assert np.mean(ours) > np.mean(theirs)


def test_scores_that_tell_nothing_bound_nothing() -> None:
    generator = np.random.default_rng(1)
    coins = generator.random(400) < 0.5
    scores = generator.normal(size=400)
    found = epsilon_one_run_curve(
        scores[coins], scores[~coins], confidence=0.999, delta=1e-5, guesses=(100, 100), family=GAUSSIAN
    )
    assert (found.epsilon, found.threshold, found.guesses) == (0.0, None, None)


def test_everything_right_is_a_finite_bound_and_more_canaries_say_more() -> None:
    given: dict[str, Any] = {"confidence": 0.95, "delta": 1e-5, "family": GAUSSIAN}
    found = [
        epsilon_one_run_curve(np.arange(m, 2 * m), np.arange(m), guesses=(m, m), **given).epsilon
        for m in (20, 200, 2_000)
    ]
    assert 0 < found[0] < found[1] < found[2] < np.inf


@pytest.mark.parametrize(
    ("members", "others", "guesses", "message"),
    [
        ([1.0, 1.0], [1.0, 0.0], (1, 1), "scores tie at 1"),
        ([1.0, 2.0], [0.0], (2, 2), r"1\.\.3"),
        ([1.0, 2.0], [0.0], (0, 0), r"1\.\.3"),
        ([1.0, 2.0], [0.0], [1, 1], "two whole numbers"),
        (list(range(60)), [-1.0], (1, 1), "fair coins"),
        ([1.0, float("nan")], [0.0], (1, 1), "finite"),
    ],
)
def test_bad_input_is_refused(
    members: list[float], others: list[float], guesses: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        epsilon_one_run_curve(members, others, confidence=0.95, delta=1e-5, guesses=guesses)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("family", [None, GAUSSIAN])
@pytest.mark.parametrize("guesses", [(10, 10), (50, 50), (0, 30)])
def test_no_scores_show_more_of_a_curve_than_the_ceiling(guesses: tuple[int, int], family: Family | None) -> None:
    draws = np.random.default_rng(0)
    given: dict[str, Any] = {"confidence": 0.95, "delta": 1e-5, "guesses": guesses, "family": family}
    for trial in range(10):
        coins = draws.random(100) < 0.5
        scores = 4 * coins + draws.normal(size=100) * trial / 4 + 1e-6 * draws.random(100)
        found = epsilon_one_run_curve(scores[coins], scores[~coins], **given)
        most = ceiling_one_run_curve(int(coins.sum()), int((~coins).sum()), **given)
        assert found.epsilon <= most
        if trial == 0:
            assert found.epsilon == most
