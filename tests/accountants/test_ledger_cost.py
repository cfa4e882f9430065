"""What the charges of a ledger add up to."""

from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants import answer, charges
from privkit.accountants.compile import curve
from privkit.accountants.filters import FIXED
from privkit.accountants.ledger import BudgetSpent, Ledger, PrivacyBudget
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import RandomAllocation
from privkit.accountants.spec.sensitivity import Known
from privkit.accountants.wording import assumptions
from tests.accountants.ledgers import DELTA, KINDS, LABELED, LAPLACE, POISSON, RANDOM, SAMPLED, UPDATED, drawn, spec
from tests.accountants.one_release import exact


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [[1], [1] * 12, [5, 1, 6], [3, 9]])
def test_charges_add_up_to_one_mechanism_of_as_many_rounds(path: Path, kind: str, parts: list[int]) -> None:
    one, total = KINDS[kind], sum(parts)
    with Ledger(path) as book:
        for rounds in parts:
            book.charge(one, rounds=rounds)
        found = book.epsilon(DELTA)
        assert (len(book), book.rounds) == (len(parts), total)
    with Ledger(path.with_name("at_once")) as book:
        book.charge(replace(one, rounds=total))
        assert found.epsilon == pytest.approx(book.epsilon(DELTA).epsilon, rel=1e-12)
    straight = answer.epsilon(replace(one, rounds=total), DELTA, tight=False)
    assert found.epsilon <= straight.epsilon * (1 + 1e-12)
    if kind in ("gaussian", "labeled"):
        assert found.epsilon == found.lower == straight.epsilon
    assert found.assumptions == (*straight.assumptions, FIXED)
    assert f"over {total} round" in found.statement


@settings(deadline=None, max_examples=60)
@given(history=st.lists(st.tuples(st.floats(0.5, 50), st.integers(1, 500)), min_size=1, max_size=8))
def test_gaussians_add_up_to_the_root_of_squares(
    history: list[tuple[float, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Ledger(tmp_path_factory.mktemp("sum") / "l", budget=None) as book:
        for sigma, rounds in history:
            book.charge(spec(sigma), rounds=rounds)
        mu = sqrt(sum(rounds / sigma**2 for sigma, rounds in history))
        if mu < 8:
            assert book.epsilon(DELTA).epsilon == pytest.approx(exact(mu), rel=1e-8, abs=1e-9)
        assert book.epsilon(DELTA).epsilon == pytest.approx(
            answer.epsilon(spec(1 / mu), DELTA).epsilon, rel=1e-9, abs=1e-12
        )


def test_a_mixed_history_is_the_best_conversion_of_added_curves(path: Path) -> None:
    history = [(spec(), 20), (SAMPLED, 100), (RANDOM, 3), (LAPLACE, 2), (SAMPLED, 50), (UPDATED, 7), (UPDATED, 2)]
    with Ledger(path) as book:
        for one, rounds in history:
            book.charge(one, rounds=rounds)
        found = book.epsilon(DELTA)
    orders = np.array([1.5, *range(2, 65), 128, 256])
    curves = np.sum([curve(replace(one, rounds=rounds), orders) for one, rounds in history], axis=0)
    converted = np.array(
        [rdp + log((a - 1) / a) - (log(DELTA) + log(a)) / (a - 1) for a, rdp in zip(orders, curves, strict=True)]
    )
    assert found.epsilon <= converted.min() * (1 + 1e-12)
    assert found.order in orders
    assert found.epsilon == pytest.approx(converted[list(orders).index(found.order)], rel=1e-12)
    assert found.lower is None
    kinds = list(dict.fromkeys(one for one, _ in history))
    assert len(set(found.assumptions)) == len(found.assumptions)
    assert found.assumptions[-1] == FIXED
    shared = [sentence for sentence in assumptions(kinds[0]) if all(sentence in assumptions(one) for one in kinds)]
    own = {
        f"mechanism {number} of {len(kinds)}: {sentence}"
        for number, one in enumerate(kinds, 1)
        for sentence in assumptions(one)
        if sentence not in shared
    }
    assert set(found.assumptions[:-1]) == {*shared, *own}
    assert any("frozen" in sentence for sentence in own)  # true of some charges only


def test_the_unsampled_gaussian_bounds_sampled_charges_too(path: Path) -> None:
    """One release of almost everybody: the exact profile of all is far below any Rényi conversion."""
    almost = spec(1.0, participation=WithoutReplacement(chosen=99, clients=100))
    with Ledger(path) as book:
        book.charge(almost)
        book.charge(spec(1.0))
        found = book.epsilon(DELTA)
    assert found.epsilon == pytest.approx(exact(sqrt(2)), rel=1e-9)
    assert "nothing credited to sampling" in found.method


def test_tight_composition_lies_between_a_lower_bound_and_the_cheap_one(path: Path) -> None:
    other = replace(POISSON, participation=Poisson(rate=0.05))
    with Ledger(path, tight=True) as book:
        book.charge(POISSON, rounds=300)
        alone = book.epsilon(DELTA)
        assert alone.epsilon == answer.epsilon(replace(POISSON, rounds=300), DELTA).epsilon
        book.charge(other, rounds=40)
        tight = book.epsilon(DELTA)
    with Ledger(path) as book:
        cheap = book.epsilon(DELTA)
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    theirs = PLDAccountant()
    theirs.compose(PoissonSampledDpEvent(0.02, GaussianDpEvent(1.5)), 300)
    theirs.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(1.5)), 40)
    assert tight.epsilon == pytest.approx(theirs.get_epsilon(DELTA), rel=2e-3)
    assert alone.epsilon < tight.epsilon < cheap.epsilon


@settings(deadline=None, max_examples=30)
@given(charges=st.lists(st.tuples(st.sampled_from([spec(), LABELED, SAMPLED, RANDOM, LAPLACE, UPDATED])), max_size=8))
def test_epsilon_never_falls_and_survives_reopening(
    charges: list[tuple[SplitMechanism]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, before = tmp_path_factory.mktemp("grow") / "l", 0.0
    for number, (one,) in enumerate(charges):
        with Ledger(path) as book:
            assert book.epsilon(DELTA).epsilon == pytest.approx(before, rel=1e-12)
            charge = book.charge(one, rounds=1 + number % 3)
            assert (charge.number, charge.mechanism) == (number + 1, one)
            after = book.epsilon(DELTA).epsilon
        assert after >= before * (1 - 1e-12)
        before = after


def test_realized_rounds_are_charged_as_one_sequence(path: Path) -> None:
    two = drawn((0.7, 0.3), (0.2, 0.8))
    with Ledger(path) as book:
        book.charge(two)
        book.charge(drawn((0.5, 0.5)))
        assert book.rounds == 3
        # the worst client of each sequence: Σλ² = max(.49 + .04, .09 + .64) and .25, over σ² = 4
        assert book.epsilon(DELTA).epsilon == pytest.approx(exact(sqrt((0.73 + 0.25) / 4)), rel=1e-9)
        with pytest.raises(ValueError, match="2 rounds"):
            book.charge(two, rounds=3)


def test_a_random_allocation_is_charged_epoch_by_epoch(path: Path) -> None:
    epoch = SplitMechanism(
        smashed=Known(value=1, relation="add_or_remove_one", norm="l2"),
        noise=Noise(smashed=2),
        lower_model="frozen",
        relation="add_or_remove_one",
        participation=RandomAllocation(participations=2, epoch_rounds=10),
        rounds=10,
    )
    both = answer.epsilon(replace(epoch, rounds=30), 1e-5, tight=False).epsilon
    with Ledger(path) as ledger:
        assert ledger.charge(epoch, rounds=20).mechanism.rounds == 10
        with pytest.raises(ValueError, match="in epochs of 10 rounds, got rounds=15"):
            ledger.charge(epoch, rounds=15)
        ledger.charge(replace(epoch, rounds=10))
        assert ledger.epsilon(1e-5).epsilon == pytest.approx(both, rel=1e-12)
    with Ledger(path, budget=PrivacyBudget(epsilon=both * 1.01, delta=1e-5)) as ledger:
        assert ledger.epsilon(1e-5).epsilon == pytest.approx(both, rel=1e-12)
        with pytest.raises(BudgetSpent) as spent:
            ledger.charge(epoch, rounds=50)
    assert spent.value.left % 10 == 0


def test_updates_on_batches_that_are_no_secret_are_exact_gaussians(path: Path) -> None:
    updated = spec(lower_model=PrivateUpdates(noise_multiplier=16.0, steps=20))
    with Ledger(path) as book:
        book.charge(updated, rounds=5)
        book.charge(updated, rounds=2)
        book.charge(spec())
        assert book.epsilon(DELTA).epsilon == pytest.approx(exact(sqrt(8 / 64 + 40 / 256)), rel=1e-9)


def test_updates_of_the_lower_model_are_charged_with_every_call(path: Path) -> None:
    with Ledger(path) as book:
        book.charge(UPDATED, rounds=3)
        once = book.epsilon(DELTA).epsilon
        assert once <= answer.epsilon(replace(UPDATED, rounds=3), DELTA, tight=False).epsilon * (1 + 1e-12)
        book.charge(UPDATED, rounds=2)
        both = book.epsilon(DELTA).epsilon
    assert isinstance(UPDATED.lower_model, PrivateUpdates)
    hundred = replace(UPDATED, lower_model=replace(UPDATED.lower_model, steps=100), rounds=5)
    with Ledger(path.with_name("together")) as book:
        book.charge(hundred)
        assert both == pytest.approx(book.epsilon(DELTA).epsilon, rel=1e-12)


def test_many_charges_compute_each_curve_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, cost = [], charges._step_cost

    def counted(*step: Any) -> Any:
        asked.append(step)
        return cost(*step)

    monkeypatch.setattr(charges, "_step_cost", counted)
    charges.unit_cost.cache_clear()
    with Ledger(path, budget=PrivacyBudget(epsilon=500, delta=DELTA)) as book:
        for number in range(3000):
            book.charge(SAMPLED if number % 2 else LABELED, note=str(number))
        live = book.epsilon(DELTA).epsilon
    assert len(asked) == 2
    with Ledger(path) as book:
        assert len(book) == 3000
        assert book.epsilon(DELTA).epsilon == pytest.approx(live, rel=1e-12)
    with Ledger(path.with_name("twice")) as book:
        book.charge(SAMPLED, rounds=1500)
        book.charge(LABELED, rounds=1500)
        assert book.epsilon(DELTA).epsilon == pytest.approx(live, rel=1e-12)


def test_numbers_of_other_libraries_cost_what_the_file_says(path: Path) -> None:
    odd = spec(np.float32(0.1), rounds=np.int64(3))
    with Ledger(path) as book:
        book.charge(odd)
        live = book.epsilon(DELTA).epsilon
    with Ledger(path) as book:
        assert book.epsilon(DELTA).epsilon == live
    assert live == answer.epsilon(spec(float(np.float32(0.1)), rounds=3), DELTA).epsilon


def test_thousands_of_nats_and_nothing_at_all(path: Path) -> None:
    with Ledger(path) as book:
        empty = book.epsilon(DELTA)
        assert (empty.epsilon, empty.relation) == (0.0, None)
        assert "nothing was charged" in empty.statement
        book.charge(spec(0.01), rounds=10**6)
        assert book.epsilon(DELTA).epsilon == pytest.approx(1e10 / 2, rel=1e-3)
        book.charge(SAMPLED)
        assert book.epsilon(DELTA).epsilon > 1e9


# Both ways, and from the command line


def test_delta_is_the_inverse_of_epsilon(path: Path) -> None:
    for tight, history in ((False, [(SAMPLED, 20), (LAPLACE, 2)]), (True, [(SAMPLED, 20), (UPDATED, 2)])):
        with Ledger(path.with_name(f"both_{tight}"), tight=tight) as book:
            assert book.delta(1.0).delta == 0
            for one, rounds in history:
                book.charge(one, rounds=rounds)
            there = book.epsilon(DELTA).epsilon
            back = book.delta(there).delta
            assert back is not None
            assert 0.97 * DELTA <= back <= DELTA * 1.001
