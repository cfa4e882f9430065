"""Randomized response: closed forms against enumeration of answers, thirty digits and the library."""

from __future__ import annotations

from itertools import product
from math import exp, log
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants import answer
from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds import randomized_response
from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, PrivateUpdates
from privkit.accountants.spec.sensitivity import Categories, Clamp
from privkit.accountants.table import mechanism_of


def pair(noise: float, classes: int) -> tuple[list[float], list[float]]:
    """Laws of one answer whose true category is 0, and 1."""
    truth, lie = 1 - noise + noise / classes, noise / classes
    first = [truth if answer == 0 else lie for answer in range(classes)]
    return first, [truth if answer == 1 else lie for answer in range(classes)]


def enumerated(epsilon: float, noise: float, classes: int, answers: int) -> float:
    """δ from every possible list of answers."""
    first, second = pair(noise, classes)
    total = 0.0
    for given_ in product(range(classes), repeat=answers):
        p, q = (float(np.prod([law[answer] for answer in given_])) for law in (first, second))
        total += max(0.0, p - exp(epsilon) * q)
    return total


def responses(noise: float, classes: int, answers: int = 1, rounds: int = 1, **more: Any) -> SplitMechanism:
    return SplitMechanism(
        smashed=Categories(classes=classes, answers=answers),
        noise=Noise(law="randomized_response", smashed=noise),
        lower_model="frozen",
        rounds=rounds,
        **more,
    )


@settings(max_examples=60, deadline=None)
@given(noise=st.floats(1e-9, 1), classes=st.integers(2, 100), order=st.floats(1.0001, 500))
def test_renyi_curve_is_the_definition(noise: float, classes: int, order: float) -> None:
    with mp.workdps(60):
        k, p, a = mp.mpf(classes), mp.mpf(noise), mp.mpf(order)
        truth, lie = 1 - p + p / k, p / k
        moment = truth**a * lie ** (1 - a) + lie**a * truth ** (1 - a) + (k - 2) * lie
        true = float(mp.log(moment) / (a - 1))
    assert float(randomized_response.rdp(order, noise, classes)) == pytest.approx(true, rel=1e-9, abs=1e-15)


def test_renyi_curve_is_the_library() -> None:
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.rdp import RdpAccountant

    orders = [1.5, 2.0, 8.0]
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_event.RandomizedResponseDpEvent(0.3, 10))
    assert randomized_response.rdp(orders, 0.3, 10) == pytest.approx(list(accountant.rdp), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(noise=st.floats(0.01, 1), classes=st.integers(2, 4), answers=st.integers(1, 4), epsilon=st.floats(0, 9))
def test_profile_is_that_of_all_lists_of_answers(noise: float, classes: int, answers: int, epsilon: float) -> None:
    found = float(randomized_response.delta(epsilon, noise, classes, answers))
    assert found == pytest.approx(enumerated(epsilon, noise, classes, answers), abs=1e-13)


@settings(max_examples=60, deadline=None)
@given(
    noise=st.floats(0.01, 0.999),
    classes=st.integers(2, 50),
    answers=st.integers(1, 60),
    log_delta=st.floats(-25, -0.5),
)
def test_epsilon_is_the_inverse(noise: float, classes: int, answers: int, log_delta: float) -> None:
    delta = exp(log_delta)
    found = randomized_response.epsilon(delta, noise, classes, answers)
    at = float(randomized_response.delta(found, noise, classes, answers))
    assert at <= delta * (1 + 1e-9) + 1e-13
    if found > 0:
        assert at == pytest.approx(delta, rel=1e-6, abs=1e-10)


def test_many_answers_agree_with_numerical_composition() -> None:
    exact = randomized_response.epsilon(1e-5, 0.5, 10, 1000)
    profile = randomized_response.profile(0.5, 10)
    composed = pld.composed_epsilon(profile, 1000, 1e-5, randomized_response.pure_epsilon(0.5, 10))
    assert exact * (1 - 1e-12) <= composed <= exact * (1 + 1e-8)  # both are rounded up
    beyond = answer.epsilon(responses(0.9, 10, rounds=2000), 1e-5)
    within = answer.epsilon(responses(0.9, 10, rounds=1000), 1e-5)
    assert within.epsilon < beyond.epsilon < 2 * within.epsilon
    assert within.lower == within.epsilon


def test_a_mechanism_is_accounted_for_exactly() -> None:
    mechanism = responses(0.5, 2, answers=4, rounds=2)
    found = answer.epsilon(mechanism, 1e-3)
    assert found.epsilon == found.lower == pytest.approx(randomized_response.epsilon(1e-3, 0.5, 2, 8))
    assert enumerated(found.epsilon, 0.5, 2, 8) == pytest.approx(1e-3, rel=1e-9)
    assert answer.delta(mechanism, 2.0).delta == pytest.approx(enumerated(2.0, 0.5, 2, 8))
    assert answer.rdp(mechanism, [2.0]).values[0] == pytest.approx(8 * float(randomized_response.rdp(2.0, 0.5, 2)))
    assert answer.epsilon(responses(0.5, 2), 1e-300).epsilon == pytest.approx(log(3))
    assert answer.epsilon(responses(1.0, 2), 1e-5).epsilon == 0
    assert records.from_json(records.to_json(mechanism)) == mechanism
    assert "replaced by a uniform draw" in " ".join(found.assumptions)


def test_a_row_of_a_table() -> None:
    row = {"mechanism": "randomized_response", "classes": "10", "noise_parameter": "1/2", "rounds": "3"}
    assert mechanism_of(row) == responses(0.5, 10, rounds=3)
    for wrong, sentence in (
        ({"sigma": 1}, "sigma would be ignored"),
        ({"noise_parameter": ""}, "noise_parameter is empty"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mechanism_of(row | wrong)
    assert randomized_response.noise_for(log(3), 2) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"relation": "add_or_remove_one"}, "replace_one"),
        ({"labels": Categories(classes=2)}, "labels"),
        ({"noise": Noise(smashed=1.0)}, "randomized response is for categories"),
        ({"smashed": Clamp(low=0, high=1, dimensions=1)}, "randomized response is for categories"),
        ({"lower_model": PrivateUpdates(noise_multiplier=1.0, steps=1)}, "answers only"),
    ],
)
def test_what_is_not_derived_is_refused(change: dict[str, Any], sentence: str) -> None:
    given_: dict[str, Any] = {
        "smashed": Categories(classes=10),
        "noise": Noise(law="randomized_response", smashed=0.5),
        "lower_model": "frozen",
    }
    with pytest.raises(ValueError, match=sentence):
        SplitMechanism(**given_ | change)
    with pytest.raises(ValueError, match="noise_parameter must be"):
        Noise(law="randomized_response", smashed=1.5)
