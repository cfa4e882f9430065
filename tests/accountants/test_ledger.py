"""Budgets of a ledger, its arguments, and what it says when it is closed."""

import json
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privkit.accountants import answer, charges
from privkit.accountants.bounds.step import USUAL_ORDERS
from privkit.accountants.compile import curve
from privkit.accountants.ledger import BudgetSpent, Ledger, PrivacyBudget
from privkit.accountants.ledger_file import LedgerError
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedRatio
from privkit.accountants.spec.parts import Mixup, WithoutReplacement
from tests.accountants.ledgers import DELTA, LAPLACE, POISSON, RANDOM, SAMPLED, filled, refused, spec
from tests.accountants.one_release import exact


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    which=st.lists(st.sampled_from([spec(), SAMPLED, RANDOM, LAPLACE]), min_size=1, max_size=6),
    rounds=st.integers(1, 300),
    limit=st.floats(0.2, 6),
)
def test_a_budget_is_never_exceeded_and_a_refusal_leaves_no_trace(
    which: list[SplitMechanism], rounds: int, limit: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, budget = tmp_path_factory.mktemp("budget") / "l", PrivacyBudget(epsilon=limit, delta=DELTA)
    with Ledger(path, budget=budget) as book:
        for one in which:
            before, spent = path.read_bytes(), book.epsilon(DELTA).epsilon
            refusal = refused(book, one, rounds)
            if refusal is not None:
                assert path.read_bytes() == before
                assert book.epsilon(DELTA).epsilon == spent == refusal.spent
                assert refusal.would_be > limit
                assert (refusal.asked, 0 <= refusal.left < rounds) == (rounds, True)
                assert refused(book, one, refusal.left + 1)
                assert not refusal.left or not refused(book, one, refusal.left)
            assert book.epsilon(DELTA).epsilon <= limit * (1 + 1e-12)


def test_a_ledger_that_is_opened_again_has_spent_what_it_had(path: Path) -> None:
    """Equal mechanisms are booked at once, and those between them apart."""
    with Ledger(path) as book:
        for one, rounds in ((spec(), 3), (LAPLACE, 2), (spec(), 40)):
            book.charge(one, rounds=rounds)
        spent = book.epsilon(DELTA).epsilon
    with Ledger(path) as book:
        assert (len(book), book.rounds) == (3, 45)
        assert book.epsilon(DELTA).epsilon == pytest.approx(spent, rel=1e-12)


def test_many_small_charges_after_a_large_one_lose_no_digits(path: Path) -> None:
    """Each sum alone would be rounded, always to the same side."""
    one, orders = spec(3.0), slice(0, 60)
    with Ledger(path) as book:
        book._book(one, *charges.units_and_charges(one, 10**9))
        for _ in range(3_000):
            book._book(one, *charges.units_and_charges(one, 1))
        total = (book._total + book._rest)[orders]
    expected = charges.cost_of(one, *charges.units_and_charges(one, 10**9 + 3_000))[orders]
    np.testing.assert_allclose(total, expected, rtol=1e-15)


def test_the_sentence_of_a_refusal(path: Path) -> None:
    with Ledger(path, budget=PrivacyBudget(epsilon=8.0, delta=DELTA)) as book:
        book.charge(spec(1.0))
        with pytest.raises(BudgetSpent, match=r"from 4\.377 to .* budget of 8.*at most 1 of them, add noise") as caught:
            book.charge(spec(1.0), rounds=5)
        assert isinstance(caught.value, ValueError)
        book.charge(spec(1.0))
        with pytest.raises(BudgetSpent, match="stop here"):
            book.charge(spec(1.0))
        assert len(book) == 2


def test_a_refusal_asks_the_exact_profile_first(path: Path) -> None:
    """One release of k of n: the exact sampled profile fits where Rényi and unsampled bounds do not."""
    one = spec(1.0, participation=WithoutReplacement(chosen=1, clients=10))
    limit = answer.epsilon(one, DELTA, tight=False).epsilon
    orders = USUAL_ORDERS
    renyi = (curve(one, orders) + np.log1p(-1 / orders) - (log(DELTA) + np.log(orders)) / (orders - 1)).min()
    assert limit < min(renyi, exact(1.0))
    with Ledger(path, budget=PrivacyBudget(epsilon=limit, delta=DELTA)) as book:
        book.charge(one)
        assert book.epsilon(DELTA).epsilon == limit
        with pytest.raises(BudgetSpent):
            book.charge(one)


def test_a_tight_budget_lets_more_rounds_through(path: Path) -> None:
    left = {}
    for tight in (False, True):
        with Ledger(
            path.with_name(f"tight_{tight}"), budget=PrivacyBudget(epsilon=1.0, delta=DELTA), tight=tight
        ) as book:
            with pytest.raises(BudgetSpent) as caught:
                book.charge(POISSON, rounds=5000)
            left[tight] = caught.value.left
    assert left[True] > left[False] > 0
    assert answer.epsilon(replace(POISSON, rounds=left[True]), DELTA).epsilon <= 1.0


def test_a_smaller_budget_on_reopening_refuses_at_once(path: Path) -> None:
    filled(path)
    with Ledger(path, budget=PrivacyBudget(epsilon=0.01, delta=DELTA)) as book, pytest.raises(BudgetSpent) as caught:
        book.charge(spec())
    assert caught.value.left == 0


# Bad input


def test_relation_and_unit_cannot_be_mixed(path: Path) -> None:
    with Ledger(path) as book:
        book.charge(spec())
        before = path.read_bytes()
        for other, name in ((POISSON, "relation"), (spec(unit="client", releases=4), "unit")):
            with pytest.raises(ValueError, match=f"kept for {name}="):
                book.charge(other)
        assert path.read_bytes() == before
    with Ledger(path) as book, pytest.raises(ValueError, match="relation"):
        book.charge(POISSON)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rounds": 0},
        {"rounds": -1},
        {"rounds": 1.5},
        {"rounds": True},
        {"rounds": float("nan")},
        {"rounds": "3"},
        {"rounds": 10**400},
        {"note": None},
        {"note": b"bytes"},
        {"mechanism": "dp_sl"},
        {"mechanism": None},
    ],
)
def test_bad_arguments_write_nothing(path: Path, arguments: dict[str, Any]) -> None:
    with Ledger(path) as book:
        with pytest.raises(ValueError, match="must be"):
            book.charge(**{"mechanism": spec(), **arguments})
        assert path.read_bytes() == b""


def test_lists_in_a_specification_are_stored_as_tuples(path: Path) -> None:
    ratios: Any = [0.5, 0.5]
    given, same = (spec(mixing=Mixup(ratio=FixedRatio(ratios=kind))) for kind in (ratios, tuple(ratios)))
    assert given == same
    with Ledger(path) as book:
        book.charge(given)
        charged = book.epsilon(DELTA).epsilon
    with Ledger(path.with_name("tuples")) as book:
        book.charge(same)
        assert book.epsilon(DELTA).epsilon == charged


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), True, "8", None])
def test_bad_budgets_and_deltas(path: Path, bad: Any) -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        PrivacyBudget(epsilon=bad, delta=DELTA)
    with pytest.raises(ValueError, match="delta must be"):
        PrivacyBudget(epsilon=8, delta=bad)
    with Ledger(path) as book:
        with pytest.raises(ValueError, match="delta must be"):
            book.epsilon(bad)
        book.charge(spec())
        with pytest.raises(ValueError, match="delta must be"):
            book.epsilon(bad)


@pytest.mark.parametrize("bad", [8.0, (8.0, 1e-5), "8"])
def test_a_budget_is_a_budget(path: Path, bad: Any) -> None:
    with pytest.raises(ValueError, match="PrivacyBudget"):
        Ledger(path, budget=bad)


@settings(deadline=None, max_examples=15)
@given(note=st.text(max_size=60))
@example(note='", "mechanism": {"kind": 1}, "check": "00000000"}\n')
@example(note="\ud800 \x00 \u2028")
def test_any_note_survives(note: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("note") / "l"
    with Ledger(path) as book:
        book.charge(spec(), rounds=5, note=note)
    assert json.loads(path.read_text("ascii"))["note"] == note
    with Ledger(path) as book:
        assert (len(book), book.rounds, book.remarks) == (1, 5, ())


def test_a_closed_ledger_still_tells_but_takes_nothing(path: Path) -> None:
    book = Ledger(path)
    book.charge(spec())
    book.close()
    book.close()
    assert book.epsilon(DELTA).epsilon == pytest.approx(exact(1 / 8), rel=1e-8)
    with pytest.raises(LedgerError, match="closed"):
        book.charge(spec())
