"""A Gaussian shift in one of t secret places, against tensor quadrature, enumeration of subsets and simulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb, exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import trapezoid
from scipy.special import ndtr

from privkit.accountants import answer
from privkit.accountants.bounds import allocation, gaussian
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.randomized_response import pure_epsilon
from privkit.accountants.calibration import calibrate
from privkit.accountants.ledger import Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson
from privkit.accountants.spec.secrets import RandomAllocation
from privkit.accountants.spec.sensitivity import Categories, Known

Array = NDArray[np.float64]


def lattice(mu: float, places: int, orders: tuple[float, ...] = (2.0,)) -> tuple[Array, list[Array]]:
    """Weights of a trapezoidal rule on [places] dimensions, and the likelihood ratio of every place."""
    reach = max(orders) * mu
    x = np.arange(-9 - reach, 9 + reach, 0.2 if places > 2 else 0.05)
    weight = np.exp(-x * x / 2) / sqrt(2 * np.pi) * (x[1] - x[0])
    one, weights = np.exp(mu * x - mu * mu / 2), np.ones((1,) * places)
    ratios = []
    for place in range(places):
        shape = [1] * places
        shape[place] = x.size
        ratios.append(one.reshape(shape))
        weights = weights * weight.reshape(shape)
    return weights, ratios


def subset_ratio(ratios: list[Array], chosen: int) -> Array:
    """L of a shift in a uniform subset: the mean over all subsets of the product."""
    subsets = list(combinations(ratios, chosen))
    total: Any = sum(np.prod(np.broadcast_arrays(*subset), axis=0) for subset in subsets)
    return np.asarray(total / len(subsets))


def half(strike: Array, mu: float, *, call: bool) -> Array:
    """E(X − c)₊ or E(c − X)₊ of the lognormal."""
    inside = np.maximum(strike, 1e-300)
    d = np.log(inside) / mu
    if call:
        return np.where(strike > 0, ndtr(mu / 2 - d) - inside * ndtr(-d - mu / 2), 1 - strike)
    return np.where(strike > 0, inside * ndtr(d + mu / 2) - ndtr(d - mu / 2), 0.0)


def two_places(epsilon: float, mu: float, *, removed: bool) -> float:
    """δ of one of two places: the inner integral in closed form, the outer on both sides of its kink."""
    strike = 2 * exp(epsilon if removed else -epsilon)
    kink = (log(strike) + mu * mu / 2) / mu
    total = 0.0
    for low, high in ((-12.0, kink), (kink, kink + 14 + mu)):
        x = np.linspace(low, max(high, low), 100_001)
        inner = half(strike - np.exp(mu * x - mu * mu / 2), mu, call=removed)
        total += float(trapezoid(np.exp(-x * x / 2) / sqrt(2 * np.pi) * inner, x))
    return total / (2 if removed else strike)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 3.0])
def test_profile_of_two_places(mu: float, epsilon: float) -> None:
    removed, added = allocation.profile(2, mu)
    for profile, true in (
        (removed, two_places(epsilon, mu, removed=True)),
        (added, two_places(epsilon, mu, removed=False)),
    ):
        found = float(profile(np.array(epsilon)))
        assert true * (1 - 1e-8) - 1e-15 <= found <= true * (1 + 1e-3) + 1e-10


@pytest.mark.parametrize(("places", "mu"), [(10, 1.0), (100, 1.0), (1000, 2.0)])
def test_profile_against_simulation(places: int, mu: float) -> None:
    generator = np.random.default_rng(7)
    ratio = np.exp(mu * generator.standard_normal((200_000 // places + 4_000, places)) - mu * mu / 2).mean(1)
    for epsilon in (0.05, 0.2):
        removed, added = (float(one(np.array(epsilon))) for one in allocation.profile(places, mu))
        for found, losses in (
            (removed, np.maximum(ratio - exp(epsilon), 0)),
            (added, np.maximum(1 - exp(epsilon) * ratio, 0)),
        ):
            assert abs(found - losses.mean()) <= 5 * losses.std() / sqrt(losses.size)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(places=st.integers(1, 300), mu=st.floats(0.05, 4.5), epsilon=st.floats(0, 5))
def test_profile_is_between_more_places_and_a_place_that_is_told(places: int, mu: float, epsilon: float) -> None:
    told = gaussian.delta(epsilon, mu)
    fewer, more = allocation.profile(places, mu), allocation.profile(2 * places, mu)
    for one, other in zip(fewer, more, strict=True):
        assert float(one(np.array(epsilon))) <= told * (1 + 1e-12)
        assert float(other(np.array(epsilon))) <= float(one(np.array(epsilon))) * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize(("places", "mu"), [(2, 0.1), (2, 1.0), (3, 0.7)])
def test_renyi_curve_is_exact_in_both_directions(places: int, mu: float) -> None:
    orders = (2.0, 3.0, 4.5)
    weights, ratios = lattice(mu, places, orders)
    ratio = subset_ratio(ratios, 1)
    with_shift = [log(float((weights * ratio**a).sum())) / (a - 1) for a in orders]
    without = [log(float((weights * ratio ** (1 - a)).sum())) / (a - 1) for a in orders]
    found = allocation.rdp(list(orders), places, mu)
    assert found[:2] == pytest.approx(with_shift[:2], rel=1e-6)
    assert found[2] >= with_shift[2] * (1 - 1e-9)
    assert [allocation.reverse_rdp(a, places, mu) for a in orders] == pytest.approx(without, rel=1e-6)
    assert np.all(found >= np.array(without) * (1 - 1e-9))


@pytest.mark.parametrize(("chosen", "places"), [(2, 3), (2, 4), (3, 4)])
def test_subsets_are_bounded_and_their_overlaps_exact(chosen: int, places: int) -> None:
    mu, orders = 0.6, (2.0, 3.0)
    subsets = list(combinations(range(places), chosen))
    for order in (2, 3):
        grid = np.array(np.meshgrid(*[range(len(subsets))] * order)).reshape(order, -1).T
        overlaps = [
            sum(len(set(subsets[a]) & set(subsets[b])) for a, b in combinations(row, 2)) for row in grid.tolist()
        ]
        assert allocation.log_overlap(order, chosen, places, mu) == pytest.approx(
            log(np.mean(np.exp(mu * mu * np.array(overlaps)))), rel=1e-12
        )
    weights, ratios = lattice(mu, places, orders) if places < 4 else (np.ones(1), [])
    part = RandomAllocation(participations=chosen, epoch_rounds=places)
    mechanism = allocated(part, mu, places)
    curve = answer.rdp(mechanism, [2.0, 3.0, 5.0]).values
    assert 1 - 1e-9 <= curve[0] / allocation.log_overlap(2, chosen, places, mu) < 1.01
    if places == 3:
        ratio = subset_ratio(ratios, chosen)
        true = log(float((weights * ratio**3).sum())) / 2
        assert curve[1] == pytest.approx(true, rel=1e-5)
        for epsilon in (0.1, 0.5, 1.0):
            exact = max(
                float((weights * np.maximum(ratio - exp(epsilon), 0)).sum()),
                float((weights * np.maximum(1 - exp(epsilon) * ratio, 0)).sum()),
            )
            claimed = answer.delta(mechanism, epsilon).delta
            assert claimed is not None
            assert exact * (1 - 1e-3) <= claimed
            assert claimed <= gaussian.delta(epsilon, mu * sqrt(chosen)) * (1 + 1e-9)
    assert comb(places, chosen) == len(subsets)


def allocated(part: RandomAllocation, mu: float, rounds: int) -> SplitMechanism:
    return SplitMechanism(
        smashed=Known(value=mu, relation="add_or_remove_one", norm="l2"),
        noise=Noise(smashed=1.0),
        lower_model="frozen",
        relation="add_or_remove_one",
        participation=part,
        rounds=rounds,
    )


def test_epsilon_is_that_of_the_profile_and_near_poisson_sampling() -> None:
    one = allocated(RandomAllocation(participations=1, epoch_rounds=100), 1.0, 100)
    found = answer.epsilon(one, 1e-5)
    assert found.lower is None
    removed, added = allocation.profile(100, 1.0)
    worst = max(float(removed(np.array(found.epsilon))), float(added(np.array(found.epsilon))))
    assert 0.99e-5 <= worst <= 1.0001e-5
    poisson = pld.composed_bounds([(gaussian.poisson_profiles(0.01, 1.0), 100)], 1e-5)[1]
    assert 0.5 * poisson < found.epsilon < 1.1 * poisson
    assert found.epsilon <= answer.epsilon(one, 1e-5, tight=False).epsilon
    assert answer.epsilon(one, 1e-5, tight=False).epsilon <= gaussian.epsilon(1e-5, 1.0)


def test_taking_part_in_every_round_hides_nothing_and_epochs_compose() -> None:
    every = allocated(RandomAllocation(participations=10, epoch_rounds=10), 0.4, 30)
    assert answer.epsilon(every, 1e-5).epsilon == pytest.approx(gaussian.epsilon(1e-5, 0.4 * sqrt(30)), rel=1e-9)
    first = answer.rdp(allocated(RandomAllocation(participations=3, epoch_rounds=10), 0.4, 10), [4.0]).values[0]
    third = answer.rdp(allocated(RandomAllocation(participations=3, epoch_rounds=10), 0.4, 30), [4.0]).values[0]
    assert third == pytest.approx(3 * first, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(chosen=st.integers(1, 5), more=st.integers(0, 40), mu=st.floats(0.2, 2), epochs=st.integers(1, 4))
def test_claims_never_exceed_those_without_secrecy(chosen: int, more: int, mu: float, epochs: int) -> None:
    part = RandomAllocation(participations=chosen, epoch_rounds=chosen + more)
    mechanism = allocated(part, mu, epochs * part.epoch_rounds)
    told = gaussian.epsilon(1e-5, mu * sqrt(chosen * epochs))
    assert 0 < answer.epsilon(mechanism, 1e-5).epsilon <= told * (1 + 1e-9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"relation": "replace_one", "smashed": Known(value=1, relation="replace_one", norm="l2")}, "relation"),
        ({"rounds": 15}, "multiple of epoch_rounds"),
        ({"lower_model": "trained", "unit": "client"}, "learns"),
        ({"noise": Noise(law="laplace", smashed=1.0)}, "gaussian"),
        ({"unit": "client", "releases": 2}, "releases=1"),
    ],
)
def test_what_is_not_derived_is_refused(change: dict[str, Any], sentence: str) -> None:
    given_: dict[str, Any] = {
        "smashed": Known(value=1, relation="add_or_remove_one", norm="l2"),
        "noise": Noise(smashed=1.0),
        "lower_model": "frozen",
        "relation": "add_or_remove_one",
        "participation": RandomAllocation(participations=1, epoch_rounds=10),
        "rounds": 10,
    }
    SplitMechanism(**given_)
    with pytest.raises(ValueError, match=f"(?i){sentence}"):
        SplitMechanism(**given_ | change)


def test_sampling_twice_is_no_option() -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        RandomAllocation(participations=11, epoch_rounds=10)
    assert Poisson(rate=0.1).kind != RandomAllocation(participations=1, epoch_rounds=10).kind


def test_rounds_are_calibrated_in_whole_epochs() -> None:
    one = allocated(RandomAllocation(participations=1, epoch_rounds=10), 0.5, 10)
    found = calibrate(one, "rounds", epsilon=4.0, delta=1e-5, tight=False)
    assert found.value % 10 == 0
    assert found.certificate.epsilon <= 4.0
    more = allocated(RandomAllocation(participations=1, epoch_rounds=10), 0.5, int(found.value) + 10)
    assert answer.epsilon(more, 1e-5, tight=False).epsilon > 4.0
    with pytest.raises(ValueError, match="a single epoch of 10 rounds"):
        calibrate(one, "rounds", epsilon=0.1, delta=1e-5, tight=False)


def test_a_ledger_composes_randomized_responses(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as book:
        one = SplitMechanism(
            smashed=Categories(classes=3, answers=2),
            noise=Noise(law="randomized_response", smashed=0.5),
            lower_model="frozen",
        )
        book.charge(one, rounds=3)
        book.charge(replace(one, smashed=Categories(classes=2)), rounds=4)
        pure = 6 * pure_epsilon(0.5, 3) + 4 * pure_epsilon(0.5, 2)
        assert 0.5 * pure < book.epsilon(1e-5).epsilon <= pure * (1 + 1e-3)
