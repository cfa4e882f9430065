"""Families of curves from the scores of many runs: coverage by simulation, a hand computation, ties and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

from privkit.accountants.auditing.families import GAUSSIAN, Approximate, Family
from privkit.accountants.auditing.many_runs import ceiling_many_runs, epsilon_clopper_pearson
from privkit.accountants.bounds import gaussian

CONFIDENCE = 0.9
AUDITS = 2_000


def test_one_threshold_by_hand() -> None:
    missed, alarms = beta.ppf(0.975, 11, 90), beta.ppf(0.975, 11, 90)
    expected = norm.isf(alarms) - norm.ppf(missed)
    found = epsilon_clopper_pearson(
        [1] * 90 + [0] * 10, [1] * 10 + [0] * 90, confidence=0.95, delta=1e-5, threshold=0.5, family=GAUSSIAN
    )
    assert found.mu == pytest.approx(expected)
    assert found.epsilon == pytest.approx(gaussian.epsilon(1e-5, float(expected)))


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "ties"), [(None, False), (0.9, True)])
def test_coverage(threshold: float | None, ties: bool) -> None:
    """Of 2,000 audits of a mechanism of μ = 1 no more than one in ten may claim more, by a binomial test."""
    generator = np.random.default_rng(5)
    scores = generator.standard_normal((AUDITS, 2, 40)) + np.array([1.0, 0.0])[:, None]
    if ties:  # rounding is post-processing: its curve is that of at most μ = 1
        scores = np.round(scores)
    above = 0
    for members, others in scores:
        found = epsilon_clopper_pearson(
            members, others, confidence=CONFIDENCE, delta=1e-5, threshold=threshold, family=GAUSSIAN
        ).mu
        assert found is not None
        above += found > 1
    assert binom.sf(above - 1, AUDITS, 1 - CONFIDENCE) > 1e-3


def test_more_runs_come_closer() -> None:
    generator = np.random.default_rng(2)
    found = []
    for runs in (50, 500, 20_000):
        members, others = generator.standard_normal(runs) + 1, generator.standard_normal(runs)
        bound = epsilon_clopper_pearson(members, others, confidence=0.95, delta=1e-5, family=GAUSSIAN)
        assert bound.mu is not None
        found.append(bound.mu)
        pure = epsilon_clopper_pearson(members, others, confidence=0.95, delta=1e-5)
        assert bound.epsilon >= pure.epsilon  # the whole curve says more than one of its points
    assert found == sorted(found)
    assert 0.85 < found[-1] < 1


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_without_a_claim_it_is_the_family_of_every_mechanism(delta: float, threshold: float | None) -> None:
    """The formula in ε and the search among regions are one bound."""
    generator = np.random.default_rng(3)
    members, others = np.round(generator.standard_normal(300) + 1.5, 1), np.round(generator.standard_normal(200), 1)
    first, second = (
        epsilon_clopper_pearson(members, others, confidence=0.95, delta=delta, threshold=threshold, family=family)
        for family in (None, Approximate(delta=delta))
    )
    assert first.epsilon == pytest.approx(second.epsilon, rel=1e-7)
    assert first.threshold == second.threshold
    assert (first.assumed, first.mu, second.assumed, second.mu) == ("", None, "", None)


@pytest.mark.parametrize("family", [None, GAUSSIAN])
@settings(max_examples=40, deadline=None)
@given(
    members=st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    others=st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    scale=st.floats(0.1, 10),
)
def test_only_the_order_of_scores_matters(
    members: list[float], others: list[float], scale: float, family: Family | None
) -> None:
    how: dict[str, Any] = {"confidence": 0.9, "delta": 1e-5, "family": family}
    first = epsilon_clopper_pearson(members, others, **how)
    both = sorted({*members, *others})
    rank = {score: scale * place for place, score in enumerate(both)}
    second = epsilon_clopper_pearson([rank[score] for score in members], [rank[score] for score in others], **how)
    assert first.epsilon == second.epsilon
    assert first.epsilon <= ceiling_many_runs(len(members), len(others), **how)


@pytest.mark.parametrize(
    "change",
    [
        {"confidence": 1.0},
        {"delta": 0.0},
        {"threshold": float("nan")},
        {"in_scores": []},
        {"in_scores": [True]},
    ],
)
def test_refusals(change: dict[str, Any]) -> None:
    given_: dict[str, Any] = {"in_scores": [1.0], "out_scores": [0.0], "confidence": 0.9, "delta": 1e-5} | change
    with pytest.raises(ValueError, match=r"must|leave family out"):
        epsilon_clopper_pearson(given_.pop("in_scores"), given_.pop("out_scores"), family=GAUSSIAN, **given_)
