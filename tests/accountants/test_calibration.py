"""Calibration: the answer reaches the target, and the next better value does not."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants import answer
from privkit.accountants.bounds.randomized_response import noise_for
from privkit.accountants.calibration import calibrate, calibrate_advantage
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.sensitivity import Categories
from privkit.papers.dp_cutmixsl.mechanisms import specification as table_1
from tests.accountants.one_release import one_release

DELTA = 1e-5


KINDS: dict[str, SplitMechanism] = {
    "plain": one_release(),
    "labels": table_1(),
    "sampled": one_release(participation=WithoutReplacement(chosen=2, clients=10), rounds=20),
    "poisson": one_release(relation="add_or_remove_one", participation=Poisson(rate=0.05), rounds=30),
    "dirichlet": one_release(mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=3))),
    "laplace": one_release(noise=Noise(law="laplace", smashed=1.0)),
}


def reaches_with_the_least_noise(kind: str, epsilon: float, start: float) -> None:
    mechanism = KINDS[kind]
    noise = replace(mechanism.noise, smashed=start, labels=mechanism.noise.labels and 2 * start)
    found = calibrate(replace(mechanism, noise=noise), "sigma", epsilon=epsilon, delta=DELTA, tight=False)
    assert found.certificate.epsilon <= epsilon
    assert found.value == found.mechanism.noise.smashed
    if found.mechanism.noise.labels is not None:
        assert found.mechanism.noise.labels == pytest.approx(2 * found.value, rel=1e-12)
    less = replace(found.mechanism.noise, smashed=found.value * (1 - 1e-4))
    if less.labels is not None:
        less = replace(less, labels=less.labels * (1 - 1e-4))
    assert answer.epsilon(replace(found.mechanism, noise=less), DELTA, tight=False).epsilon > epsilon


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), epsilon=st.floats(0.1, 30), start=st.floats(0.01, 100))
def test_the_smallest_noise_that_reaches_the_target(kind: str, epsilon: float, start: float) -> None:
    reaches_with_the_least_noise(kind, epsilon, start)


@pytest.mark.parametrize("kind", ["plain", "labels"])
def test_the_smallest_noise_of_closed_forms(kind: str) -> None:
    reaches_with_the_least_noise(kind, 2.0, 0.5)


def stays_within_with_the_most_rounds(kind: str, epsilon: float, sigma: float) -> None:
    mechanism = KINDS[kind]
    mechanism = replace(mechanism, noise=replace(mechanism.noise, smashed=sigma))
    one = answer.epsilon(replace(mechanism, rounds=1), DELTA, tight=False).epsilon
    if one > epsilon:
        with pytest.raises(ValueError, match="a single round already costs"):
            calibrate(mechanism, "rounds", epsilon=epsilon, delta=DELTA, tight=False)
        return
    found = calibrate(mechanism, "rounds", epsilon=epsilon, delta=DELTA, tight=False)
    rounds = found.mechanism.rounds
    assert found.value == rounds
    assert found.certificate.epsilon <= epsilon
    assert answer.epsilon(replace(mechanism, rounds=rounds + 1), DELTA, tight=False).epsilon > epsilon


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), epsilon=st.floats(1, 200), sigma=st.floats(1, 20))
def test_the_largest_number_of_rounds_within_the_target(kind: str, epsilon: float, sigma: float) -> None:
    stays_within_with_the_most_rounds(kind, epsilon, sigma)


@pytest.mark.parametrize("sigma", [1.0, 20.0])
def test_the_largest_number_of_rounds_of_a_closed_form(sigma: float) -> None:
    """The first costs too much alone."""
    stays_within_with_the_most_rounds("plain", 4.0, sigma)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("epsilon", [20.0, 60.0, 200.0])
def test_the_smallest_group(sampled: bool, epsilon: float) -> None:
    start = table_1(CutMix(ratio=FixedRatio.equal(2), patches=10), chosen=2 if sampled else None)
    found = calibrate(start, "group", epsilon=epsilon, delta=DELTA)
    sizes = []
    for group in range(1, 11):
        mixing = CutMix(ratio=FixedRatio.equal(group), patches=10)
        sizes.append(answer.epsilon(table_1(mixing, chosen=group if sampled else None), DELTA).epsilon)
    assert found.value == 1 + [value <= epsilon for value in sizes].index(True)
    assert found.certificate.epsilon == sizes[int(found.value) - 1]


def test_a_tiny_target_takes_much_noise() -> None:
    found = calibrate(one_release(), "sigma", epsilon=1e-12, delta=1e-30)
    assert found.certificate.epsilon <= 1e-12
    less = replace(found.mechanism.noise, smashed=found.value * (1 - 1e-3))
    assert answer.epsilon(replace(found.mechanism, noise=less), 1e-30).epsilon > 1e-12


@pytest.mark.slow
def test_numerical_composition_needs_less_noise() -> None:
    quick, tight = (
        calibrate(KINDS["sampled"], "sigma", epsilon=2, delta=DELTA, tight=tight) for tight in (False, True)
    )
    assert tight.value < quick.value
    assert tight.certificate.epsilon <= 2


@pytest.mark.parametrize(
    ("start", "parameter", "epsilon", "match"),
    [
        (one_release(), "noise", 1, "parameter must be one of sigma, noise_parameter, rounds, group"),
        (one_release(), "sigma", 0, "epsilon must be a finite number > 0"),
        (one_release(), "sigma", nan, "epsilon must be"),
        (one_release(), "sigma", inf, "epsilon must be"),
        (one_release(), "sigma", True, "epsilon must be"),
        (one_release(), "group", 1, "group needs mixing"),
        (one_release(), "noise_parameter", 1, "for other noise calibrate sigma"),
        (one_release(), "rounds", 1, "a single round already costs epsilon=4.377"),
        (table_1(CutMix(ratio=FixedRatio.equal(2), patches=10), chosen=2), "group", 1, "10 give 18.77"),
        (one_release(mixing=Mixup(ratio=FixedRatio(ratios=(0.7, 0.3)))), "group", 1, "use equal or Dirichlet"),
        (
            one_release(lower_model=PrivateUpdates(noise_multiplier=0.1, chosen=9, records=10, steps=100)),
            "sigma",
            1,
            "something other than the noisy releases exceeds the target",
        ),
    ],
)
def test_what_cannot_be_reached_is_said(start: SplitMechanism, parameter: Any, epsilon: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        calibrate(start, parameter, epsilon=epsilon, delta=DELTA, tight=False)


RARELY = one_release(relation="add_or_remove_one", participation=Poisson(rate=0.01))


def test_noise_that_nothing_asks_for_is_no_answer() -> None:
    """Every σ meets the advantage, since it is at most the rate; the end of the search was returned."""
    with pytest.raises(
        ValueError, match=r"even very little noise, sigma=.*, meets advantage=0.5.*give a smaller target"
    ):
        calibrate_advantage(RARELY, "sigma", advantage=0.5, tight=False)
    found = calibrate_advantage(RARELY, "sigma", advantage=0.009, tight=False)
    assert found.certificate.delta == pytest.approx(0.009, rel=1e-3)


def test_numerical_composition_finds_soon_that_any_noise_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds where there is hardly any noise; all 40 halvings were composed."""
    tried: list[float] = []

    def certified(mechanism: SplitMechanism, delta: float, *, tight: bool) -> Any:
        tried.append(mechanism.noise.smashed)
        return replace(epsilon(mechanism, delta, tight=False), epsilon=0.0)

    epsilon = answer.epsilon
    monkeypatch.setattr(answer, "epsilon", certified)
    with pytest.raises(ValueError, match=r"even very little noise, sigma=.*, meets epsilon=5"):
        calibrate(RARELY, "sigma", epsilon=5, delta=0.3)
    assert sum(sigma < 1e-3 for sigma in tried) == 1
    assert len(tried) < 12


@pytest.mark.parametrize("sigma", [1.0, 1e20])
def test_the_search_may_start_anywhere(sigma: float) -> None:
    """From 1e20 it ended at 2⁻⁴⁰ of that, and called this the smallest noise."""
    start = one_release(noise=Noise(smashed=sigma))
    assert calibrate(start, "sigma", epsilon=1, delta=DELTA).value == pytest.approx(3.7306316, rel=1e-4)


def test_rounds_without_end_are_no_answer() -> None:
    with pytest.raises(ValueError, match="every number of rounds up to 1,099,511,627,776 meets epsilon=1"):
        calibrate(one_release(noise=Noise(smashed=1e9)), "rounds", epsilon=1, delta=0.5)


@pytest.mark.parametrize("rounds", [1, 20])
def test_the_smallest_noise_parameter(rounds: int) -> None:
    start = SplitMechanism(
        smashed=Categories(classes=4),
        noise=Noise(law="randomized_response", smashed=0.5),
        lower_model="frozen",
        rounds=rounds,
    )
    found = calibrate(start, "noise_parameter", epsilon=2, delta=DELTA)
    assert found.certificate.epsilon <= 2
    less = replace(found.mechanism.noise, smashed=found.value * (1 - 1e-5))
    assert answer.epsilon(replace(found.mechanism, noise=less), DELTA).epsilon > 2
    if rounds == 1:
        assert found.value == pytest.approx(noise_for(2, 4), rel=1e-3)
    with pytest.raises(ValueError, match=r"randomized response has no sigma: .* calibrate noise_parameter"):
        calibrate(start, "sigma", epsilon=2, delta=DELTA)
