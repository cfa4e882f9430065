"""A statement says no more than its numbers: δ is 0 only where it is, digits are rounded up, and trust is named."""

from math import log1p

import pytest

from privkit.accountants import answer
from privkit.accountants.ledger import Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedRatio
from privkit.accountants.spec.parts import Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Categories, Clamp, Known
from privkit.accountants.terms import terms
from privkit.shared.rounding import rounded_down, rounded_up

CLIP = Clamp(low=0, high=1, dimensions=1)


def one(**given: object) -> SplitMechanism:
    usual: dict[str, object] = {"smashed": CLIP, "noise": Noise(smashed=1), "lower_model": "frozen"}
    return SplitMechanism(**{**usual, **given})  # type: ignore[arg-type]


def test_delta_is_zero_only_at_the_pure_epsilon() -> None:
    drawn = WithoutReplacement(chosen=1, clients=100)
    laplace = one(noise=Noise(law="laplace", smashed=1), rounds=1000, participation=drawn)
    pure = 1000 * log1p(0.01 * 1.718281828459045)
    below, above = (answer.delta(laplace, epsilon) for epsilon in (0.9 * pure, 1.01 * pure))
    assert below.delta is not None
    assert below.delta > 0
    assert "δ = 0)" not in below.statement
    assert above.delta == 0
    answers = one(smashed=Categories(classes=10), noise=Noise(law="randomized_response", smashed=0.9), rounds=1000)
    some = answer.delta(answers, 600.0)
    assert some.delta is not None
    assert some.delta > 0
    assert some.lower is None


def test_a_ledger_of_gaussians_never_has_delta_zero(tmp_path: object) -> None:
    with Ledger(f"{tmp_path}/book.jsonl") as book:
        book.charge(one())
        found = book.delta(60.0)
    assert found.delta is not None
    assert found.delta > 0
    assert "δ = 1e-300)" in found.statement


def test_digits_are_rounded_away_from_a_stronger_claim() -> None:
    found = answer.epsilon(one(), 1e-5)
    assert found.epsilon == pytest.approx(4.37718, abs=1e-5)
    assert found.statement.startswith("(ε = 4.378, δ = 1e-05)")
    assert terms(one(), found)["privacy parameters"].startswith("ε = 4.37718, δ = 1e-05;")
    for value in (1e-5, 0.1, 3.0, 5.00006e14, 0.0309458):
        assert float(rounded_up(value, 3)) >= value >= float(rounded_down(value, 3))


def test_digits_of_an_assumption_are_rounded_away_from_a_stronger_claim() -> None:
    """A sensitivity and a rate are said to be no larger than those that were charged, and noise no smaller."""
    near = Known(value=1.2345678, relation="add_or_remove_one", norm="l2")
    said = answer.epsilon(one(smashed=near, relation=near.relation, participation=Poisson(rate=0.45678951)), 1e-5)
    assert "at most 1.23456 apart in L2" in said.assumptions[0]
    assert any("secret coin of probability 0.456789, tossed afresh in every round" in line for line in said.assumptions)
    updates = PrivateUpdates(noise_multiplier=1.2345612, steps=1)
    assert any(
        "carry noise of 1.23457 times" in line for line in answer.epsilon(one(lower_model=updates), 0.1).assumptions
    )


def test_a_stated_sensitivity_is_no_clip() -> None:
    said = answer.epsilon(one(smashed=Known(value=1.0, relation="replace_one", norm="l2")), 1e-5).assumptions[0]
    assert said.startswith("neighbors' smashed data are at most 1 apart in L2 under replace-one, as stated by the user")
    assert "clipped" not in said


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "local: the client clips"),
        ({"participation": WithoutReplacement(chosen=1, clients=10)}, "is trusted to keep the draw secret"),
        ({"smashed": Categories(classes=4), "noise": Noise(law="randomized_response", smashed=0.5)}, "randomizes each"),
        (
            {"mixing": Mixup(ratio=FixedRatio(ratios=(0.5, 0.5))), "noise": Noise(smashed=1, site="client")},
            "the mixer is trusted",
        ),
    ],
)
def test_the_trust_model_names_who_is_trusted(given: dict[str, object], words: str) -> None:
    mechanism = one(**given)
    assert words in terms(mechanism, answer.epsilon(mechanism, 1e-5))["trust model"]
