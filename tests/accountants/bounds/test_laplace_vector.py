"""Sampled vectors with Laplace noise: against pairs of data sets whose losses are rounded down, and against draws."""

from math import exp, log
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

from privkit.accountants import answer
from privkit.accountants.bounds import laplace
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.sensitivity import Known
from tests.accountants.laplace_pairs import Drawn, base_losses, delta_of, drawn, rounds_below

Array = NDArray[np.float64]


def claim(one: Drawn, epsilon: float) -> float:
    """δ at ε; 1 if nothing is proven."""
    found = answer.delta(one.mechanism, epsilon).delta
    return 1.0 if found is None else found


def violations_at_the_ends(seed: int) -> list[tuple[Any, ...]]:
    """Answers below what a pair gives away, for one drawn specification at several ε."""
    random = np.random.default_rng([3, seed])
    one = drawn(random, 40)
    shifts = one.shifts if random.random() < 0.7 else one.shifts * random.random(one.shifts.size)
    first = int(random.choice([one.rounds, 0, one.rounds // 2]))
    masses, losses = rounds_below(one, shifts, first)
    found = []
    for _ in range(3):
        rare = np.cumsum(masses[::-1])[::-1] < 10 ** random.uniform(-9, -0.3)
        epsilon = max(0.0, float(losses[int(np.argmax(rare)) - 1]) * random.uniform(0.5, 1))
        least = delta_of(masses, losses, epsilon) - 1e-12  # what the transform may have rounded
        claimed = claim(one, epsilon)
        if claimed < least * (1 - 1e-9):
            found.append((seed, one, epsilon, claimed, least))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_no_pair_at_the_ends_gives_away_more(block: int) -> None:
    assert [fault for seed in range(10 * block, 10 * block + 10) for fault in violations_at_the_ends(seed)] == []


# Any pair, any data of others: by draws -------------------------------------------------------------------------------


def violations_by_draws(seed: int, runs: int = 20_000) -> list[tuple[Any, ...]]:
    """The same with neighbors and other clients anywhere in the clip, anew in every round; five standard errors."""
    random = np.random.default_rng([4, seed])
    one = drawn(random, 4)
    one = Drawn(
        one.smashed, one.labels if one.labels and one.labels[1] > 2 else None, 1, one.clients, one.rounds % 12 + 1
    )
    g, shifts = 1 / one.clients, one.shifts
    total = np.zeros(runs)

    def place() -> Array:
        anywhere = random.random(shifts.size)
        return shifts * np.where(random.random(shifts.size) < 0.6, np.round(anywhere), anywhere)

    far = random.random() < 0.7
    ours = np.zeros(shifts.size) if far else place()
    theirs = shifts if far else place()
    for _ in range(one.rounds):
        others = [[ours, theirs, place()][int(random.integers(3))] for _ in range(int(random.integers(1, 3)))]
        means = np.array([ours, *others])
        weight = np.array([g, *[(1 - g) / len(others)] * len(others)])
        x = means[random.choice(len(weight), runs, p=weight)] + random.laplace(size=(runs, shifts.size))

        def log_density(means: Array, x: Array = x, weight: Array = weight) -> Array:
            logs = -np.abs(x[:, None] - means).sum(-1) + np.log(weight)
            return np.asarray(np.logaddexp.reduce(logs, axis=1))

        total += log_density(means) - log_density(np.array([theirs, *others]))
    found = []
    for share in (0.5, 0.95, 0.999):
        epsilon = max(0.0, float(np.quantile(total, share)))
        gains = np.maximum(0, -np.expm1(np.minimum(epsilon - total, 0)))
        least = float(gains.mean() - 5 * gains.std() / runs**0.5) - 1e-12  # the largest loss, rounded
        claimed = claim(one, epsilon)
        if claimed < least:
            found.append((seed, one, epsilon, claimed, least))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4))
def test_no_draw_of_any_pair_gives_away_more(block: int) -> None:
    assert [fault for seed in range(10 * block, 10 * block + 10) for fault in violations_by_draws(seed)] == []


# Rényi curves --------------------------------------------------------------------------------------------------------


def violations_of_curves(seed: int) -> list[tuple[Any, ...]]:
    """Orders at which a pair at the ends, with losses rounded down, exceeds the Rényi curve."""
    random = np.random.default_rng([8, seed])
    one = drawn(random, 30)
    orders = (1.05, 1.5, 2.0, 3.7, 8.0, 30.0)
    claimed = answer.rdp(one.mechanism, orders).values
    found = []
    for first in (one.rounds, 0, one.rounds // 2):
        masses, losses = rounds_below(one, one.shifts, first)
        with np.errstate(divide="ignore"):
            log_masses = np.log(np.maximum(masses - 1e-14, 0))  # less than the transform may have added
        for order, most in zip(orders, claimed, strict=True):
            least = float(logsumexp((order - 1) * losses + log_masses)) / (order - 1)
            if least > most * (1 + 1e-9) + 1e-9:
                found.append((seed, one, order, most, least))
    return found


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("block", range(4))
def test_no_pair_at_the_ends_has_a_larger_renyi_divergence(block: int) -> None:
    assert [fault for seed in range(10 * block, 10 * block + 10) for fault in violations_of_curves(seed)] == []


def test_the_curve_is_that_of_the_profile() -> None:
    """Against quadrature of δ(ε) for one variable: the moment is ∫ f''(e^ε)·δ(ε) d(e^ε)."""
    shift, rate, order = 1.3, 0.2, 3.5
    ratio = np.linspace(1, 1 + rate * (exp(shift) - 1), 200_001)
    base = np.log(1 + (ratio - 1) / rate)
    profile = rate * np.maximum(0, -np.expm1((base - shift) / 2))
    # E f(L) for f(1) = f'(1) = 0 is the integral of f'' times E(L − x)₊.
    curved = order * (order - 1) * (ratio ** (order - 2) + ratio ** (-order - 1))
    moment = float((curved * profile).sum() * (ratio[1] - ratio[0]))
    found = answer.rdp(Drawn((shift, 1), None, 1, 5, 1).mechanism, [order]).values[0]
    assert found == pytest.approx(np.log1p(moment) / (order - 1), rel=2e-3)
    assert found >= np.log1p(moment) / (order - 1) * (1 - 1e-5)


# What it is worth ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts", [((0.025, 64),), ((0.3, 7), (1.1, 2)), ((2.0, 3),), ((0.05, 200), (1e-4, 30)), ((6.0, 1), (0.2, 9))]
)
def test_the_sum_lies_between_losses_rounded_down_and_up(parts: tuple[tuple[float, int], ...]) -> None:
    found = laplace.vector_profile(parts)
    assert found is not None
    shifts = np.concatenate([np.full(many, shift) for shift, many in parts])
    d = float(shifts.min()) / 20 if shifts.min() > 0.01 else 5e-4
    masses, _, losses = base_losses(shifts, d)
    for epsilon in np.linspace(0, 0.9, 7) * float(shifts.sum()):
        least, most = delta_of(masses, losses, epsilon), delta_of(masses, losses + d * shifts.size, epsilon)
        assert least * (1 - 1e-9) <= float(found(np.array(epsilon))) <= most * (1 + 1e-9)


def test_a_thousand_small_moves_keep_a_tiny_delta() -> None:
    """Against the exact law of one variable, and a δ of 1e-200 of many by Chernoff's bound."""
    alone = laplace.vector_profile(((0.7, 1),))
    assert alone is not None
    at = np.linspace(0, 0.7, 9)
    exact = np.array([laplace.delta(e, 0.7) for e in at.tolist()])
    assert alone(at) == pytest.approx(exact, abs=2e-4)
    assert np.all(alone(at) >= exact - 1e-15)
    many = laplace.vector_profile(((0.1, 1000),))
    assert many is not None
    for epsilon in (20.0, 60.0, 90.0):
        orders = np.linspace(1.01, 80, 2000)
        chernoff = float(((orders - 1) * (1000 * laplace.rdp(orders, 0.1) - epsilon)).min())
        assert chernoff - 12 < log(float(many(np.array(epsilon)))) < chernoff


def test_losses_that_no_number_holds_have_no_profile() -> None:
    assert laplace.vector_profile(((800.0, 1),)) is None
    assert laplace.vector_profile(((30.0, 100),)) is None
    assert answer.epsilon(Drawn((30.0, 100), None, 1, 10, 3).mechanism, 1e-5).epsilon > 100


def test_sixty_four_coordinates_of_five_in_a_hundred() -> None:
    """The best known pair loses .3546; by the coordinates' own curves alone, ε would be 1.519."""
    one = Drawn((1 / 40, 64), None, 5, 100, 100).mechanism
    found = answer.epsilon(one, 1e-5)
    assert found.epsilon == pytest.approx(0.37122, abs=2e-5)
    assert found.lower is None
    assert found.epsilon < answer.epsilon(one, 1e-5, tight=False).epsilon < 1.02 * found.epsilon


def test_a_sum_of_moves_stays_in_one_coordinate() -> None:
    """Where only the sum is bounded, one coordinate holds all of it, and costs more than any split."""
    known = Known(value=1.0, relation="replace_one", norm="l1")
    for split in (2, 8):
        whole = Drawn((1 / split, split), None, 1, 10, 20).mechanism
        summed = SplitMechanism(
            smashed=known,
            noise=whole.noise,
            participation=whole.participation,
            lower_model="frozen",
            rounds=whole.rounds,
        )
        assert answer.epsilon(summed, 1e-5).epsilon > answer.epsilon(whole, 1e-5).epsilon
