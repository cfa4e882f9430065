"""Privacy filters: no strategy that chooses noise, sampling and the end of a run from releases exceeds the budget.

Strategies are simulated from the densities: each path draws what is released, sees its loss, and chooses what is next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian
from privkit.accountants.charges import cost_of
from privkit.accountants.filters import ADAPTIVE, FIXED, best_filter
from privkit.accountants.ledger import BudgetSpent, Ledger, PrivacyBudget
from privkit.accountants.ledger_file import LedgerError, LedgerFile
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson
from privkit.accountants.spec.sensitivity import Known
from tests.accountants.ledgers import DELTA, LAPLACE, SAMPLED, spec

Array = NDArray[np.float64]
BUDGET = PrivacyBudget(epsilon=4.0, delta=DELTA)


@dataclass(frozen=True)
class Release:
    """A Gaussian of shift μ, from a Poisson sample of rate q."""

    mu: float
    rate: float

    @property
    def mechanism(self) -> SplitMechanism:
        return SplitMechanism(
            smashed=Known(value=self.mu, relation="add_or_remove_one", norm="l2"),
            noise=Noise(smashed=1.0),
            relation="add_or_remove_one",
            participation=Poisson(rate=self.rate),
            lower_model="frozen",
        )

    def losses(self, random: np.random.Generator, many: int, with_record: bool) -> Array:
        """[many] ln P/Q under P; P has the record, or lacks it."""
        x = random.normal(size=many)
        if with_record:
            x += self.mu * (random.random(many) < self.rate)
        log_ratio = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + self.mu * x - self.mu**2 / 2)
        return np.asarray(log_ratio if with_record else -log_ratio, float)


def strategy_exceeds(seed: int, looser: float = 1.0, runs: int = 4000, most: int = 60) -> list[tuple[Any, ...]]:
    """ε at which a drawn strategy gives away more than the filter's bound, by five standard errors.

    The strategy stops at `looser` times the limit.
    """
    random = np.random.default_rng([seed, 11])
    rate = 1 - 1e-12 if random.random() < 0.5 else float(10 ** random.uniform(-1.5, -0.3))
    menu = [Release(float(10 ** random.uniform(-1, 0.3)), rate) for _ in range(3)]
    budget = PrivacyBudget(
        epsilon=float(10 ** random.uniform(-0.5, 0.7)), delta=float(10 ** random.uniform(-1.7, -0.6))
    )
    costs = [cost_of(one.mechanism, 1, 1) for one in menu]
    try:
        limited = best_filter(budget, costs[0])
    except ValueError:
        return []
    spent = np.zeros(runs)
    loss, running, with_record = np.zeros(runs), np.ones(runs, bool), bool(random.integers(2))
    high, stop = sorted(random.uniform(-1, 1.5, 2) * budget.epsilon)
    order = random.permutation(3)
    for _ in range(most):
        wanted = np.where(loss > high, order[0], np.where(loss < 0, order[1], order[2]))
        running &= ~((loss > stop) & (random.random() < 0.9))  # what is lost already is kept
        for which in range(3):
            after = spent + costs[which][limited.at]
            going = running & (wanted == which)
            fits = going & (after <= looser * limited.limit)
            loss = loss + np.where(fits, menu[which].losses(random, runs, with_record), 0.0)
            spent = np.where(fits, after, spent)
            running &= ~(going & ~fits)
    found = []
    for epsilon in (0.3 * budget.epsilon, budget.epsilon, 1.5 * budget.epsilon):
        gains = np.maximum(0, -np.expm1(np.minimum(epsilon - loss, 0)))
        least = float(gains.mean() - 5 * gains.std() / sqrt(runs))
        claimed = exp(limited.bound.log_delta(epsilon).value)
        if least > claimed:
            found.append((seed, menu, budget, limited.at, epsilon, claimed, least))
    return found


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("block", range(10))
def test_no_strategy_exceeds_the_filter(block: int) -> None:
    assert [fault for seed in range(30 * block, 30 * block + 30) for fault in strategy_exceeds(seed)] == []


def test_a_limit_that_is_too_large_is_found() -> None:
    """The test above can fail."""
    assert any(strategy_exceeds(seed, looser=2.0) for seed in range(30))


def test_the_bound_of_a_filter_is_the_budget() -> None:
    for budget in (BUDGET, PrivacyBudget(epsilon=0.3, delta=0.01)):
        for one in (spec(), SAMPLED, LAPLACE):
            limited = best_filter(budget, cost_of(one, 1, 1))
            assert limited.bound.epsilon(budget.delta).value == pytest.approx(budget.epsilon, rel=1e-9)


def test_what_is_spent_is_no_guarantee_if_releases_decide_when_to_stop() -> None:
    """Stopping once the loss exceeds ε of the rounds so far: δ is twice what composition in advance would claim."""
    random, delta, mu, runs = np.random.default_rng(0), 0.05, 0.3, 20_000
    loss, gain, running = np.zeros(runs), np.zeros(runs), np.ones(runs, bool)
    for rounds in range(1, 401):
        loss += mu * random.normal(size=runs) + mu**2 / 2
        here = np.maximum(0, -np.expm1(np.minimum(gaussian.epsilon(delta, sqrt(rounds) * mu) - loss, 0)))
        stops = running & ((here > 0.5) | (rounds == 400))
        gain, running = np.where(stops, here, gain), running & ~stops
    assert gain.mean() - 5 * gain.std() / sqrt(runs) > 1.5 * delta


def train(book: Ledger) -> None:
    """Epochs without end, of two noises."""
    for number in count():
        book.charge(spec(10.0 if number % 2 else 5.0))


def test_an_adaptive_ledger_stops_before_its_budget(path: Path) -> None:
    """Gaussians of any noise, as many as one Gaussian of the budget allows."""
    mu = gaussian.mu_for(BUDGET.epsilon, BUDGET.delta)
    with Ledger(path, budget=BUDGET, adaptive=True) as book:
        with pytest.raises(BudgetSpent, match="would exceed the filter of ε = 4"):
            train(book)
        spent = sum(1 / (10.0 if number % 2 else 5.0) ** 2 for number in range(len(book)))
        assert spent <= mu**2 < spent + 1 / 25
        found = book.epsilon(DELTA)
        assert found.epsilon == pytest.approx(BUDGET.epsilon, rel=1e-9)
        assert found.lower is None
        assert ADAPTIVE in found.assumptions
        assert FIXED not in found.assumptions
        assert found.quantities["gdp_mu"] == pytest.approx(mu)
        delta = book.delta(2.0).delta
        assert delta == pytest.approx(gaussian.delta(2.0, mu))
    with Ledger(path) as book:  # the file knows its filter
        assert (book.adaptive, book.budget) == (True, BUDGET)
        assert book.epsilon(DELTA).epsilon == pytest.approx(BUDGET.epsilon, rel=1e-9)
        with pytest.raises(BudgetSpent):
            book.charge(spec(5.0), rounds=50)


def test_sampled_releases_are_filtered_at_one_order(path: Path) -> None:
    with Ledger(path, budget=BUDGET, adaptive=True) as book:
        with pytest.raises(BudgetSpent) as caught:
            book.charge(SAMPLED, rounds=10**6)
        assert caught.value.left > 0
        book.charge(SAMPLED, rounds=caught.value.left)
        found = book.epsilon(DELTA)
        assert found.method.startswith("Rényi filter at order")
        assert found.epsilon == pytest.approx(BUDGET.epsilon, rel=1e-9)
        with pytest.raises(BudgetSpent):
            book.charge(SAMPLED)
    planned = answer.epsilon(replace(SAMPLED, rounds=caught.value.left), DELTA, tight=False)
    assert planned.epsilon <= BUDGET.epsilon


def test_what_a_filter_is_not_proven_for_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="need a budget that is fixed beforehand"):
        Ledger(path, adaptive=True)
    with pytest.raises(ValueError, match="numerical composition needs parameters that were fixed in advance"):
        Ledger(path, budget=BUDGET, tight=True, adaptive=True)
    with Ledger(path) as book:
        book.charge(spec())
        assert FIXED in book.epsilon(DELTA).assumptions
    with pytest.raises(LedgerError, match="made without a filter"):
        Ledger(path, budget=BUDGET, adaptive=True)
    other = path.with_name("filtered")
    with Ledger(other, budget=BUDGET, adaptive=True) as book:
        book.charge(spec(20.0))
    with pytest.raises(LedgerError, match="was fixed before its first release"):
        Ledger(other, budget=PrivacyBudget(epsilon=5.0, delta=DELTA))
    with (
        Ledger(path.with_name("tiny"), budget=PrivacyBudget(epsilon=1e-9, delta=1e-12), adaptive=True) as book,
        pytest.raises((ValueError, BudgetSpent)),
    ):
        book.charge(LAPLACE)


def test_a_file_that_exceeds_its_filter_is_refused(path: Path) -> None:
    """A line that no filter admitted, with a checksum of its own: the budget does not hold for it."""
    with Ledger(path, budget=BUDGET, adaptive=True) as book:
        book.charge(spec(20.0))
    file = LedgerFile(path)
    (line,) = file.read()
    file.append(line.removeprefix('{"charge": 1, ').removesuffix("}").replace('"rounds": 1,', '"rounds": 100000,'))
    file.close()
    with pytest.raises(LedgerError, match="exceed the filter that its first line fixes"):
        Ledger(path)


def test_a_filter_that_cannot_count_a_noise_says_so(path: Path) -> None:
    """No Laplace noise has a cost under a filter on Σμ², however large it is, but the advice was to add noise."""
    with Ledger(path, budget=BUDGET, adaptive=True) as book:
        book.charge(spec(20.0))
        with pytest.raises(BudgetSpent, match=r"stop here: the filter, which .* cannot count this noise$"):
            book.charge(LAPLACE)
        with pytest.raises(BudgetSpent, match=r"or add noise$"):
            book.charge(spec(0.1))
