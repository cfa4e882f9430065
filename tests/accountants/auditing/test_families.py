"""No auditor claims more than is true: without a claim on any mechanism, with the mechanism's own curve on that one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from privkit.accountants.auditing.families import GAUSSIAN, Approximate, Family, ScaledNoise
from privkit.accountants.auditing.independent import ceiling_independent, epsilon_independent
from privkit.accountants.auditing.many_runs import ceiling_many_runs, epsilon_clopper_pearson
from privkit.accountants.auditing.one_run import ceiling_one_run_curve, epsilon_one_run, epsilon_one_run_curve
from privkit.accountants.region import Region
from privkit.shared.empirical_bound import EmpiricalBound
from tests.accountants.auditing.mechanisms import MECHANISMS, Array, Known, known

SURE, CANARIES, SEEDS = 0.95, 600, 20
Auditor = Callable[..., EmpiricalBound]


def errors(members: Array, others: Array, **how: Any) -> EmpiricalBound:
    return epsilon_independent(members, others, threshold=0, **how)


def rates(members: Array, others: Array, **how: Any) -> EmpiricalBound:
    return epsilon_independent(members, others, threshold=0, test="rates", **how)


def many_runs_at_one_threshold(members: Array, others: Array, **how: Any) -> EmpiricalBound:
    return epsilon_clopper_pearson(members, others, threshold=0, **how)


def curve(members: Array, others: Array, **how: Any) -> EmpiricalBound:
    """The order of scores that tie is drawn, and says nothing of coins."""
    draws = np.random.default_rng(members.size)
    members, others = (side + 1e-6 * draws.random(side.size) for side in (members, others))
    return epsilon_one_run_curve(members, others, guesses=(15, 15), **how)


FAMILIES: list[Auditor] = [errors, rates, epsilon_clopper_pearson, many_runs_at_one_threshold, curve]
"""Auditors that take a family."""


class Remembered(ScaledNoise):
    """The accountant's curves, each computed once: the search of every draw asks for the same strengths first."""

    precision = 0.1

    def at(self, strength: float) -> Region:
        return remembered(self, "at", strength)

    def epsilon(self, strength: float, delta: float) -> float:
        return remembered(self, "epsilon", strength, delta)

    def lower(self, strength: float, delta: float) -> float:
        return remembered(self, "lower", strength, delta)


class RememberedFinely(Remembered):
    """The same, and the search goes on."""

    precision = 0.01


@cache
def remembered(family: ScaledNoise, question: str, *given: float) -> Any:
    return getattr(ScaledNoise, question)(family, *given)


OWN = ("gaussian", "laplace", "sampled", "mixed by public ratios", "tells all now and then")
"""Mechanisms whose curves are of a family."""


@cache
def own_family(name: str, searched: type[ScaledNoise] = Remembered) -> Family:
    """The curves that a mechanism is truly of."""
    one = known(name)
    if one.mechanism is None:
        return Approximate(delta=one.delta)
    return GAUSSIAN if name == "gaussian" else searched(mechanism=one.mechanism)


def found(
    one: Known, auditor: Auditor, seeds: int, family: Family | None = None, canaries: int = CANARIES
) -> list[EmpiricalBound]:
    """Bounds of so many draws of fair coins and of the mechanism."""
    bounds = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        coins: NDArray[np.bool_] = rng.random(canaries) < 0.5
        scores = one.draw(rng, coins)
        given = {} if family is None else {"family": family}
        bounds.append(auditor(scores[coins], scores[~coins], confidence=SURE, delta=one.delta, **given))
    return bounds


def too_many(bounds: list[EmpiricalBound], truth: float) -> bool:
    """Whether more bounds lie above the truth than one in twenty explains, by a test of size 1 %."""
    above = sum(bound.epsilon > truth * (1 + 1e-9) for bound in bounds)
    return bool(binom.sf(above - 1, len(bounds), 1 - SURE) < 0.01)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("auditor", [*FAMILIES, epsilon_one_run])
def test_without_a_claim_no_more_is_shown_than_is_true(auditor: Auditor, name: str) -> None:
    one = known(name)
    bounds = found(one, auditor, 5 if auditor is curve else SEEDS)
    assert not too_many(bounds, one.epsilon)
    assert {bound.assumed for bound in bounds} == {""}
    assert {bound.mu for bound in bounds} == {None}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("auditor", FAMILIES)
def test_of_its_own_family_no_more_is_shown_than_is_true(auditor: Auditor, name: str) -> None:
    one, family = known(name), own_family(name)
    bounds = found(one, auditor, 3 if auditor is curve else SEEDS, family)
    assert not too_many(bounds, one.epsilon)
    assert {bound.assumed for bound in bounds} == {family.assumed}


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("auditor", [*FAMILIES, epsilon_one_run])
def test_of_many_draws_no_more_is_shown_than_is_true(auditor: Auditor, name: str) -> None:
    one, seeds = known(name), 60 if auditor is curve else 600
    assert not too_many(found(one, auditor, seeds), one.epsilon)
    if name in OWN and auditor is not epsilon_one_run:
        assert not too_many(found(one, auditor, seeds, own_family(name, RememberedFinely)), one.epsilon)


@pytest.mark.parametrize("name", ["laplace", "randomized response"])
@pytest.mark.parametrize("auditor", FAMILIES)
def test_a_gaussian_is_taken_for_one_only_if_it_is_claimed(auditor: Auditor, name: str) -> None:
    """Read as a Gaussian, an ε of 2 looks like far more. Who says so must have claimed it, and the bound repeats it."""
    (free,), (claimed,) = found(known(name), auditor, 1), found(known(name), auditor, 1, GAUSSIAN)
    assert claimed.epsilon > (1.2 if auditor is curve else 3) * free.epsilon
    assert claimed.assumed == "a Gaussian curve"
    assert claimed.assumptions[0] == GAUSSIAN.assumption


@pytest.mark.parametrize(("name", "gaussian", "free"), [("laplace", 8.0, 1.4), ("randomized response", 11.3, 1.9)])
def test_what_the_documentation_says_of_a_wrong_family(name: str, gaussian: float, free: float) -> None:
    """docs/explanation/accounting.md: means of twenty draws; read as Gaussian, all of them lie above the truth."""
    of_any, as_gaussian = (
        [bound.epsilon for bound in found(known(name), errors, 20, family, 1_000)] for family in (None, GAUSSIAN)
    )
    assert (round(float(np.mean(as_gaussian)), 1), round(float(np.mean(of_any)), 1)) == (gaussian, free)
    assert min(as_gaussian) > 2
    assert max(of_any) < known(name).epsilon


def test_no_ceiling_is_that_of_a_family_nobody_claimed() -> None:
    how: dict[str, Any] = {"confidence": SURE, "delta": 1e-5}
    free = [
        (ceiling_independent(200, **how), ceiling_independent(200, family=GAUSSIAN, **how)),
        (ceiling_many_runs(100, 100, **how), ceiling_many_runs(100, 100, family=GAUSSIAN, **how)),
        (
            ceiling_one_run_curve(100, 100, guesses=(50, 50), **how),
            ceiling_one_run_curve(100, 100, guesses=(50, 50), family=GAUSSIAN, **how),
        ),
    ]
    assert all(2 * without < gaussian for without, gaussian in free)


def test_a_mechanism_loses_at_least_its_lower_bound_and_at_most_what_it_is_charged() -> None:
    """One sampled release has an exact profile, so that both are the same."""
    one = known("sampled")
    assert one.mechanism is not None
    family = ScaledNoise(mechanism=one.mechanism)
    lower, charged = family.lower(1.0, one.delta), family.epsilon(1.0, one.delta)
    assert lower < one.epsilon * (1 + 1e-6)
    assert one.epsilon < charged * (1 + 1e-6)
    assert lower == charged
