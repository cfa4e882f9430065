"""Unusual parameters: enormous numbers of rounds, tiny noise, uneven mixing, bad input."""

from math import inf
from typing import Any

import pytest
from scipy.stats import norm

from privkit.accountants import answer
from privkit.accountants.bounds.renyi_composition import renyi_bound
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.compile import curve
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Known
from privkit.papers.dp_cutmixsl.mechanisms import specification as table_1
from tests.accountants.one_release import one_release


@pytest.mark.parametrize("sigma", [1e-3, 1e-2, 16 / 255])
def test_epsilon_in_the_thousands_and_beyond_stays_a_number(sigma: float) -> None:
    mu = 10 / sigma
    value = answer.epsilon(one_release(10.0, noise=Noise(smashed=sigma)), 1e-5).epsilon
    # δ = 1e-5 lies between the two one-sided quantiles of the loss N(μ²/2, μ²)
    assert mu**2 / 2 + mu * norm.isf(2e-5) < value < mu**2 / 2 + mu * norm.isf(1e-5)
    back = answer.delta(one_release(10.0, noise=Noise(smashed=sigma)), value).delta
    assert back == pytest.approx(1e-5, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"participation": WithoutReplacement(chosen=1, clients=1000)},
        {"relation": "add_or_remove_one", "participation": Poisson(rate=0.001)},
        {"mixing": Mixup(ratio=DirichletRatio(concentration=0.5, clients=3))},
        {"mixing": CutMix(ratio=DirichletCounts(concentration=2, clients=2), patches=16)},
    ],
)
@pytest.mark.parametrize("tight", [False, True])
def test_a_million_rounds(changes: dict[str, Any], tight: bool) -> None:
    mechanism = one_release(0.05, rounds=10**6, **changes)
    value = answer.epsilon(mechanism, 1e-6, tight=tight).epsilon
    whole = answer.epsilon(one_release(0.05, rounds=10**6), 1e-6).epsilon
    assert 0 < value <= whole * (1 + 1e-9)


def test_delta_above_the_total_variation_costs_nothing() -> None:
    variation = 2 * norm.cdf(0.5) - 1
    assert answer.epsilon(one_release(1.0), variation * 1.001).epsilon == 0
    assert 0 < answer.epsilon(one_release(1.0), variation * 0.999).epsilon < 0.01
    sampled = one_release(30.0, participation=WithoutReplacement(chosen=1, clients=4))
    assert answer.epsilon(sampled, 0.25).epsilon == 0
    assert answer.epsilon(sampled, 0.249).epsilon > 0
    mixed = one_release(1.0, mixing=Mixup(ratio=DirichletRatio(concentration=0.5, clients=2)))
    assert answer.epsilon(mixed, 0.39).epsilon == 0


@pytest.mark.parametrize("concentration", [0.01, 0.05, 0.3, 1.0, 50.0, 1e4])
def test_any_concentration_lies_between_no_mixing_and_equal_ratios(concentration: float) -> None:
    law = DirichletRatio(concentration=concentration, clients=2)
    found = answer.epsilon(one_release(2.0, mixing=Mixup(ratio=law)), 1e-5)
    assert found.lower == found.epsilon
    assert (
        answer.epsilon(one_release(1.0), 1e-5).epsilon < found.epsilon < answer.epsilon(one_release(2.0), 1e-5).epsilon
    )


def test_updates_of_the_lower_model_are_added() -> None:
    updates = PrivateUpdates(noise_multiplier=2.0, chosen=10, records=100, steps=50)
    alone, charged = one_release(0.5), one_release(0.5, lower_model=updates)
    steps = one_release(0.5, participation=WithoutReplacement(chosen=10, clients=100), rounds=50)
    both = curve(alone, [4]) + curve(steps, [4])
    assert curve(charged, [4]) == pytest.approx(both, rel=1e-12)
    assert answer.epsilon(charged, 1e-5).epsilon > answer.epsilon(alone, 1e-5).epsilon


def test_a_client_with_a_batch_pays_for_each_release() -> None:
    client = one_release(0.5, unit="client", lower_model="trained", releases=16, rounds=4)
    assert answer.epsilon(client, 1e-5).epsilon == answer.epsilon(one_release(4.0), 1e-5).epsilon


def test_certificates_say_what_they_rest_on() -> None:
    found = answer.epsilon(table_1(CutMix(ratio=FixedRatio.equal(2), patches=64), chosen=2), 0.5)
    assert any("0.5 is large" in sentence for sentence in found.assumptions)
    assert any("drawn uniformly and secretly" in sentence for sentence in found.assumptions)
    assert (found.relation, found.unit, found.sound, found.objection) == ("replace_one", "record", True, "")
    assert {"numpy", "scipy"} <= set(found.versions)
    assert found.source
    edge = renyi_bound([(GaussianRelease(mu=1e-4, sampling="without_replacement", rate=0.5), 5)]).epsilon(1e-5)
    assert edge.at_edge


@pytest.mark.parametrize("bad", [0, 1, -1e-5, float("nan"), inf, True, "1e-5", None])
def test_refuses_what_is_no_delta(bad: Any) -> None:
    for call in (lambda: answer.epsilon(one_release(), bad), lambda: list(answer.epsilons([one_release()], [bad]))):
        with pytest.raises(ValueError, match="delta must be a finite number > 0 and < 1"):
            call()


@pytest.mark.parametrize("bad", [-1, float("nan"), inf, True, "1", None])
def test_refuses_what_is_no_epsilon(bad: Any) -> None:
    with pytest.raises(ValueError, match="epsilon must be a finite number >= 0"):
        answer.delta(one_release(), bad)


@pytest.mark.parametrize("bad", [[], [1], [0.5], [float("nan")], [inf], [True]])
def test_refuses_what_is_no_order(bad: Any) -> None:
    with pytest.raises(ValueError, match="order"):
        answer.rdp(one_release(), bad)


def test_a_known_sensitivity_answers_for_its_relation_only() -> None:
    known = Known(value=1.0, relation="add_or_remove_one", norm="l2")
    with pytest.raises(ValueError, match="a replacement can move a release twice as far"):
        answer.epsilon(one_release(smashed=known), 1e-5)
