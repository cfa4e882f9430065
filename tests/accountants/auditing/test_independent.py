"""Bounds from independent canaries: coverage by simulation, power, unlike canaries, planted faults and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.stats import beta, binom, norm

from privkit.accountants.auditing.families import GAUSSIAN, Approximate, Family, Gaussian, Rates, ScaledNoise
from privkit.accountants.auditing.independent import Test, ceiling_independent, epsilon_independent
from privkit.accountants.auditing.one_run import epsilon_one_run, epsilon_one_run_curve, planned_guesses
from privkit.accountants.bounds import gaussian
from privkit.accountants.region import Region, region
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import EveryRound, Noise, WithoutReplacement
from privkit.accountants.spec.sensitivity import Known
from privkit.shared.array import Array

DRAWS, CANARIES, DELTA = 1_000, 200, 1e-5
Draw = Callable[[np.random.Generator, Array], Array]


def claimed(law: Any, sigma: float, norm_: Any = "l2", clients: int = 0) -> SplitMechanism:
    """One release of sensitivity 1; with clients, of one that is drawn among them."""
    taking = WithoutReplacement(chosen=1, clients=clients) if clients else EveryRound()
    one = Known(value=1, relation="replace_one", norm=norm_)
    return SplitMechanism(
        smashed=one, noise=Noise(law=law, smashed=sigma), lower_model="frozen", participation=taking, unit="client"
    )


@dataclass(frozen=True, kw_only=True)
class Truth(Family):
    """The curve of a mechanism from strength 1 on and nothing below, so that a bound above 1 is one above the truth."""

    curve: Rates
    assumption = ""
    precision = 0.1

    def at(self, strength: float) -> Rates:
        return self.curve if strength >= 1 else Region(epsilons=np.zeros(1), deltas=np.zeros(1))

    def epsilon(self, strength: float, delta: float) -> float:
        return strength

    def said(self, strength: float) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """Rates that are computed once each: many draws ask for the same ones."""

    rates: Rates
    known: dict[float, Array] = field(default_factory=dict)
    advantage = 0.0

    def true_positives(self, false_positives: ArrayLike) -> Array:
        return self.rates.true_positives(false_positives)

    def false_positives(self, true_positives: ArrayLike) -> Array:
        at = float(np.asarray(true_positives))
        if at not in self.known:
            self.known[at] = self.rates.false_positives(at)
        return self.known[at]


def shifted(mu: float) -> Draw:
    return lambda rng, coins: rng.standard_normal(coins.shape) + mu * (coins - 0.5)


def alike_in_nothing(mu: float) -> Draw:
    """Half of the canaries reach the sensitivity, the others a third of it."""

    def draw(rng: np.random.Generator, coins: Array) -> Array:
        own = np.where(np.arange(coins.shape[-1]) % 2, mu, mu / 3)
        return rng.standard_normal(coins.shape) + own * (coins - 0.5)

    return draw


def laplace(scale: float) -> Draw:
    return lambda rng, coins: coins - 0.5 + rng.laplace(scale=scale, size=coins.shape)


def one_of(clients: int, mu: float) -> Draw:
    """A record that is drawn now and then, and others' zeros otherwise; the threshold lies high."""
    return lambda rng, coins: (
        rng.standard_normal(coins.shape) + mu * coins * (rng.random(coins.shape) < 1 / clients) - 3
    )


CASES: dict[str, tuple[Rates, Draw, Test]] = {
    "gaussian": (GAUSSIAN.at(1.666), shifted(1.666), "errors"),
    "gaussian, both rates": (GAUSSIAN.at(1.666), lambda rng, coins: shifted(1.666)(rng, coins) - 0.5, "rates"),
    "unlike canaries": (GAUSSIAN.at(2.0), alike_in_nothing(2.0), "errors"),
    "unlike canaries, both rates": (GAUSSIAN.at(2.0), alike_in_nothing(2.0), "rates"),
    "laplace": (region(claimed("laplace", 0.5, "l1")), laplace(0.5), "errors"),
    "sampled": (region(claimed("gaussian", 0.2, clients=5)), one_of(5, 5.0), "rates"),
}


@pytest.mark.parametrize("name", CASES)
def test_at_most_one_bound_in_twenty_exceeds_the_truth(name: str) -> None:
    curve, draw, test = CASES[name]
    rng = np.random.default_rng(1)
    coins = rng.random((DRAWS, CANARIES)) < 0.5
    scores, family = draw(rng, coins.astype(float)), Truth(curve=curve)
    above = sum(
        epsilon_independent(s[c], s[~c], threshold=0, confidence=0.95, delta=DELTA, family=family, test=test).epsilon
        > 1
        for s, c in zip(scores, coins, strict=True)
    )
    assert binom.sf(above - 1, DRAWS, 0.05) > 0.01  # the errors of an exact test come close to one in twenty


def bounds(mu: float, canaries: int, draws: int, **options: Any) -> Array:
    rng, found = np.random.default_rng(3), []
    for _ in range(draws):
        coins = rng.random(canaries) < 0.5
        scores = shifted(mu)(rng, coins.astype(float))
        given: dict[str, Any] = {"threshold": 0.0, "confidence": 0.95, "delta": DELTA, "family": GAUSSIAN} | options
        found.append(epsilon_independent(scores[coins], scores[~coins], **given).epsilon)
    return np.array(found)


@pytest.mark.parametrize(
    ("epsilon", "canaries", "least"),
    [(8, 200, 5.1), (8, 2_000, 7.1), (8, 20_000, 7.7), (20, 200, 13.5), (20, 2_000, 17.7), (20, 20_000, 19.5)],
)
def test_independent_canaries_come_close_to_the_truth(epsilon: float, canaries: int, least: float) -> None:
    found = bounds(GAUSSIAN.strength(epsilon, DELTA), canaries, 30)
    assert found.mean() >= least
    assert np.median(found) < epsilon


def test_a_fifth_less_noise_than_claimed_is_caught() -> None:
    """σ × .8 at a claimed ε of 8, 2,000 canaries."""
    found = bounds(GAUSSIAN.strength(8, DELTA) / 0.8, 2_000, 40)
    assert np.mean(found > 8) > 0.95


def test_less_laplace_noise_than_claimed_is_caught_by_the_claimed_curve() -> None:
    claim, rng = claimed("laplace", 0.5, "l1"), np.random.default_rng(0)
    coins = rng.random(5_000) < 0.5
    for scale, caught in ((0.5, False), (0.4, True)):
        scores = laplace(scale)(rng, coins.astype(float))
        given: dict[str, Any] = {"threshold": 0, "confidence": 0.95, "delta": DELTA}
        found = epsilon_independent(scores[coins], scores[~coins], family=ScaledNoise(mechanism=claim), **given)
        assert (found.epsilon > 2) == caught
        assert found.mu is None


def test_any_mechanism_of_one_epsilon_is_bounded_by_its_errors() -> None:
    """Randomized response reaches the curve of (ε, 0); nothing is assumed of it."""
    rng = np.random.default_rng(1)
    coins = rng.random(20_000) < 0.5
    told = np.where(rng.random(coins.size) < 1 / (1 + np.exp(-2.0)), coins, ~coins) - 0.5
    for delta in (0.0, DELTA):
        found = epsilon_independent(told[coins], told[~coins], threshold=0, confidence=0.95, delta=delta)
        assert 1.9 < found.epsilon < 2
        assert found.assumed == ""


def test_a_family_of_another_delta_is_refused() -> None:
    with pytest.raises(ValueError, match="one δ: got delta=1e-05"):
        epsilon_independent(
            [1.0] * 9, [-1.0] * 9, threshold=0, confidence=0.95, delta=DELTA, family=Approximate(delta=0.1)
        )


def test_a_planned_number_of_guesses_beats_a_quarter() -> None:
    """One run without independence: the number depends on the canaries and on the claim alone."""
    rng, strength = np.random.default_rng(0), GAUSSIAN.strength(8, DELTA)
    planned = planned_guesses(2_000, strength, confidence=0.95, family=GAUSSIAN)
    ours, quarter = [], []
    for _ in range(5):
        coins = rng.random(2_000) < 0.5
        scores = shifted(strength)(rng, coins.astype(float))
        given: dict[str, Any] = {"confidence": 0.95, "delta": DELTA, "family": GAUSSIAN}
        ours.append(epsilon_one_run_curve(scores[coins], scores[~coins], guesses=planned, **given).epsilon)
        quarter.append(epsilon_one_run_curve(scores[coins], scores[~coins], guesses=(500, 500), **given).epsilon)
    assert np.mean(ours) > 1.2 * np.mean(quarter)
    assert max(ours) < 8


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("curve", ["gaussian", "laplace"])
def test_one_run_with_a_planned_number_of_guesses_covers(curve: str) -> None:
    truth, draw, _ = CASES[curve]
    family = Gaussian() if curve == "gaussian" else ScaledNoise(mechanism=claimed("laplace", 0.5, "l1"))
    planned = planned_guesses(CANARIES, 1.666 if curve == "gaussian" else 1.0, confidence=0.95, family=family)
    guesses = (min(planned[0], 40), min(planned[1], 40))
    rng = np.random.default_rng(1)
    coins = rng.random((DRAWS, CANARIES)) < 0.5
    scores, known = draw(rng, coins.astype(float)), Truth(curve=Remembered(rates=truth))
    given: dict[str, Any] = {"confidence": 0.95, "delta": DELTA, "guesses": guesses, "family": known}
    above = sum(epsilon_one_run_curve(s[c], s[~c], **given).epsilon > 1 for s, c in zip(scores, coins, strict=True))
    assert above <= 0.05 * DRAWS


def test_perfect_guesses_reach_the_ceiling_and_more_canaries_raise_it() -> None:
    given: dict[str, Any] = {"confidence": 0.95, "delta": DELTA, "family": GAUSSIAN}
    most = [ceiling_independent(m, **given) for m in (20, 200, 2_000)]
    assert most == sorted(most)
    perfect = epsilon_independent(np.ones(100), -np.ones(100), threshold=0, **given)
    assert perfect.epsilon == most[1]
    assert most[1] > epsilon_one_run(np.arange(100, 200), np.arange(100), confidence=0.95, delta=DELTA).epsilon
    assert perfect.mu is not None
    error = 1 - norm.cdf(perfect.mu / 2)
    assert (1 - error) ** 200 == pytest.approx(0.05, rel=1e-6)
    assert perfect.epsilon == gaussian.epsilon(DELTA, perfect.mu)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confidence": 0.4}, "confidence must"),
        ({"threshold": float("nan")}, "threshold must"),
        ({"test": "best"}, "test must"),
        ({"delta": 0.0}, "delta must"),
        ({"out_scores": list(range(60))}, "fair coins"),
        ({"in_scores": []}, "at least one score"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "in_scores": [1.0],
        "out_scores": [0.0],
        "threshold": 0,
        "confidence": 0.95,
        "delta": DELTA,
        "family": GAUSSIAN,
    }
    given |= change
    with pytest.raises(ValueError, match=message):
        epsilon_independent(given.pop("in_scores"), given.pop("out_scores"), **given)


@pytest.mark.parametrize(("missed", "alarms"), [(5, 5), (0, 20), (30, 1)])
def test_rates_against_clopper_and_pearson(missed: int, alarms: int) -> None:
    """Pure ε lets ln((1 − lost)/accused) or ln((1 − accused)/lost) be; both limits hold at once."""
    found = epsilon_independent(
        *([1] * (100 - missed) + [-1] * missed, [1] * alarms + [-1] * (100 - alarms)),
        threshold=0,
        confidence=0.9,
        delta=0,
        test="rates",
    )
    lost, accused = (2 * beta.ppf(1 - 0.1 / 2, count + 1, 200 - count) for count in (missed, alarms))
    assert found.epsilon == pytest.approx(np.log([(1 - lost) / accused, (1 - accused) / lost]).max(), abs=1e-3)
