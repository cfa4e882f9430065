"""Laplace noise on vectors: composed coordinate by coordinate, against enumeration, brute force and dp_accounting."""

from dataclasses import replace
from math import comb, exp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants import answer
from privkit.accountants.bounds import laplace
from privkit.accountants.ledger import Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import BoxLabels, Clamp, Known, OneHot


def vector(dimensions: int, shift: float, **changes: Any) -> SplitMechanism:
    """D coordinates that each move by `shift` scales."""
    given: dict[str, Any] = {
        "smashed": Clamp(low=0, high=shift, dimensions=dimensions),
        "noise": Noise(law="laplace", smashed=1.0),
        "lower_model": "frozen",
    }
    return SplitMechanism(**(given | changes))


def brute_force(shifts: list[float], epsilon: float, draws: int = 400_000) -> tuple[float, float]:
    """δ(ε) of independent Laplace variables by Monte Carlo, and its standard error."""
    x = np.random.default_rng(0).laplace(size=(draws, len(shifts)))
    loss = (np.abs(x - np.array(shifts)) - np.abs(x)).sum(1)  # under the law around zero
    gains = np.maximum(0, -np.expm1(np.minimum(epsilon - loss, 700)))
    return float(gains.mean()), float(gains.std() / draws**0.5)


def test_a_thousand_coordinates() -> None:
    """17.4 where the sum of the shifts is 100, and 583 where it is 731."""
    many = answer.epsilon(vector(1000, 0.1), 1e-5)
    assert many.epsilon == pytest.approx(17.4239, abs=1e-3)
    assert many.lower is not None
    assert many.epsilon * 0.99 < many.lower <= many.epsilon
    tanh = SplitMechanism(
        smashed=Clamp(low=-1, high=1, dimensions=256), noise=Noise(law="laplace", smashed=0.7), lower_model="frozen"
    )
    assert answer.epsilon(tanh, 1e-5).epsilon == pytest.approx(582.85, abs=0.01)
    assert answer.epsilon(tanh, 1e-5, tight=False).epsilon < 600  # the curves of the coordinates are added, too


def test_rounds_and_coordinates_are_the_same_thing() -> None:
    whole = answer.epsilon(vector(1000, 0.1), 1e-5).epsilon
    assert answer.epsilon(vector(10, 0.1, rounds=100), 1e-5).epsilon == whole
    split = vector(5, 0.1, rounds=100, releases=2, unit="client")
    assert answer.epsilon(split, 1e-5).epsilon == whole


@pytest.mark.parametrize(("dimensions", "shift"), [(2, 1.0), (7, 0.5), (40, 0.2)])
def test_agrees_with_dp_accounting(dimensions: int, shift: float) -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    theirs = library.from_laplace_mechanism(1 / shift, value_discretization_interval=1e-4).self_compose(dimensions)
    for delta in (1e-2, 1e-5, 1e-8):
        found = answer.epsilon(vector(dimensions, shift), delta)
        assert found.epsilon == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-4)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    dimensions=st.integers(1, 6),
    shift=st.floats(0.05, 1.5),
    label=st.floats(0.1, 1.0),
    part=st.floats(0.0, 0.9),
    kind=st.sampled_from(["alone", "one_hot", "box", "mixup", "cutmix"]),
)
def test_every_specification_against_monte_carlo(
    dimensions: int, shift: float, label: float, part: float, kind: str
) -> None:
    changes: dict[str, Any] = {}
    shifts = [shift] * dimensions
    if kind in ("one_hot", "box"):
        changes = {
            "labels": OneHot() if kind == "one_hot" else BoxLabels(classes=3),
            "noise": Noise(law="laplace", smashed=1.0, labels=1 / label),
        }
        shifts += [label] * (2 if kind == "one_hot" else 3)
    elif kind == "mixup":
        changes = {"mixing": Mixup(ratio=FixedRatio(ratios=(0.75, 0.25)))}
        shifts = [0.75 * shift] * dimensions
    elif kind == "cutmix":
        changes = {
            "smashed": Clamp(low=0, high=shift, dimensions=4 * dimensions),
            "mixing": CutMix(ratio=FixedCounts(counts=(3, 1)), patches=4),
        }
        shifts = [shift] * (3 * dimensions)
    epsilon = part * sum(shifts)
    expected, error = brute_force(shifts, epsilon)
    found = answer.delta(vector(dimensions, shift, **changes), epsilon)
    assert found.delta is not None
    assert found.delta >= expected - 5 * error - 1e-9
    assert found.delta <= expected + 5 * error + 2e-3 * expected + 1e-4


@pytest.mark.slow
@given(shift=st.floats(0.05, 4), part=st.floats(0.05, 0.95), epsilon=st.floats(0, 4))
def test_one_coordinate_is_worse_than_the_same_distance_in_two(shift: float, part: float, epsilon: float) -> None:
    """By enumeration of the losses of two coordinates on a fine grid of both."""
    x = np.linspace(-14, 14 + shift, 1401)
    moves = [part * shift, (1 - part) * shift]
    p, q = (np.exp(-np.abs(x)) / 2 for _ in moves), (np.exp(-np.abs(x - move)) / 2 for move in moves)
    both_p, both_q = np.multiply.outer(*p), np.multiply.outer(*q)
    found = np.maximum(both_p - exp(epsilon) * both_q, 0).sum() * (x[1] - x[0]) ** 2
    assert found <= laplace.delta(epsilon, shift) + 2e-3


def test_a_known_distance_is_charged_in_one_coordinate() -> None:
    known = vector(1, 1.0, smashed=Known(value=1.0, relation="replace_one", norm="l1"))
    assert answer.epsilon(known, 1e-2).epsilon == pytest.approx(laplace.epsilon(1e-2, 1.0), rel=1e-4)
    assert answer.epsilon(known, 1e-2).lower is None  # no coordinate need move by all of it
    assert answer.epsilon(replace(known, rounds=1000), 1e-5).epsilon < 1000


def test_one_bit_of_each_round_is_a_binomial() -> None:
    """Far apart, a Laplace variable tells a bit: its loss is ±t but for a little in between."""
    rounds, shift = 30, 0.02
    found = answer.delta(vector(1, shift, rounds=rounds), 0.0).delta
    bit = exp(shift) / (1 + exp(shift))  # the randomized response of the same pure ε is worse
    odds = np.array([comb(rounds, k) * bit**k * (1 - bit) ** (rounds - k) for k in range(rounds + 1)])
    losses = (2 * np.arange(rounds + 1) - rounds) * shift
    assert found is not None
    assert 0.5 * found < float(odds @ np.maximum(0, -np.expm1(-losses))) * 1.0001
    assert found <= float(odds @ np.maximum(0, -np.expm1(-losses))) * 1.0001


def test_sampled_laplace_rounds_are_composed() -> None:
    sampled = vector(1, 1.0, rounds=100, participation=WithoutReplacement(chosen=1, clients=10))
    composed, fast = answer.epsilon(sampled, 1e-5).epsilon, answer.epsilon(sampled, 1e-5, tight=False).epsilon
    assert composed < fast < 1.15 * composed
    assert answer.epsilon(sampled, 1e-5).epsilon < answer.epsilon(vector(1, 1.0, rounds=100), 1e-5).epsilon


def test_a_ledger_charges_every_coordinate(tmp_path: Any) -> None:
    """Smashed data and labels are two steps of a history, and each counts all of its coordinates."""
    one = vector(9, 0.1, labels=OneHot(), noise=Noise(law="laplace", smashed=1.0, labels=10.0))
    other = replace(one, lower_model=PrivateUpdates(noise_multiplier=50.0, steps=1))
    with Ledger(tmp_path / "ledger", tight=True) as book:
        for mechanism in (one, other):
            book.charge(mechanism, rounds=20)
        spent = book.epsilon(1e-5)
    whole = answer.epsilon(vector(11, 0.1, rounds=40), 1e-5)
    assert whole.lower is not None
    assert spent.method == "numerical composition of privacy loss distributions"
    assert whole.lower <= spent.epsilon < 1.1 * whole.epsilon
