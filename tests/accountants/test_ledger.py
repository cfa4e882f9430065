"""The ledger: what it adds up to, what it refuses, and what a kill, a damage or a second writer does to it."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from typer.testing import CliRunner

from privkit.accountants import answer, compile, ledger_cost
from privkit.accountants.bounds.step import USUAL_ORDERS
from privkit.accountants.compile import curve
from privkit.accountants.ledger import BudgetSpent, Ledger, PrivacyBudget
from privkit.accountants.ledger_file import LedgerError
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletRatio, FixedRatio, RealizedRatios
from privkit.accountants.spec.parts import Mixup, Noise, Poisson, PrivateUpdates, WithoutReplacement
from privkit.accountants.spec.secrets import RandomAllocation
from privkit.accountants.spec.sensitivity import Clamp, Known, OneHot
from privkit.accountants.wording import assumptions
from privkit.cli.app import app
from privkit.errors import UsageError

DELTA = 1e-5
UNIT = Clamp(low=0, high=1, dimensions=1)


def spec(sigma: Any = 8.0, **options: Any) -> SplitMechanism:
    """Distance 1 under replace-one, so μ = 1/σ."""
    return SplitMechanism(**{"smashed": UNIT, "noise": Noise(smashed=sigma), "lower_model": "frozen", **options})


def drawn(*ratios: tuple[float, ...]) -> SplitMechanism:
    """A realized sequence of Mixup ratios."""
    ratio: Any = RealizedRatios(ratios=ratios)
    return spec(2.0, mixing=Mixup(ratio=ratio), rounds=len(ratios))


SAMPLED = spec(2.0, participation=WithoutReplacement(chosen=2, clients=20))
POISSON = spec(1.5, relation="add_or_remove_one", participation=Poisson(rate=0.02))
RANDOM = spec(3.0, mixing=Mixup(ratio=DirichletRatio(concentration=2, clients=3)))
LAPLACE = spec(noise=Noise(law="laplace", smashed=5.0))
LABELED = spec(noise=Noise(smashed=8.0, labels=9.0), labels=OneHot())
UPDATED = spec(lower_model=PrivateUpdates(noise_multiplier=4.0, chosen=10, records=1000, steps=50))
KINDS = {
    "gaussian": spec(),
    "labeled": LABELED,
    "sampled": SAMPLED,
    "poisson": POISSON,
    "random": RANDOM,
    "laplace": LAPLACE,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where nothing is yet."""
    return tmp_path / "run" / "ledger.jsonl"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many charges without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def exact(mu: float, delta: float = DELTA) -> float:
    """ε of N(0, 1) against N(μ, 1), from the profile's definition."""

    def gap(e: float) -> float:
        return float(norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu)) - delta

    return float(brentq(gap, 0, 100, xtol=1e-13)) if gap(0.0) > 0 else 0.0


def refused(book: Ledger, one: SplitMechanism, rounds: int) -> BudgetSpent | None:
    """Charge, or say why not."""
    try:
        book.charge(one, rounds=rounds)
    except BudgetSpent as refusal:
        return refusal
    return None


def filled(path: Path, count: int = 4) -> list[bytes]:
    """A ledger with charges, as its lines."""
    with Ledger(path) as book:
        for number in range(count):
            book.charge(spec(8.0 + number % 2), rounds=number + 1, note=f'epoch {number} "ü", "mechanism": {{')
    return path.read_bytes().splitlines(keepends=True)


# Sums


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
    assert found.assumptions == straight.assumptions
    assert f"over {total} round" in found.statement


@settings(deadline=None, max_examples=60)
@given(charges=st.lists(st.tuples(st.floats(0.5, 50), st.integers(1, 500)), min_size=1, max_size=8))
def test_gaussians_add_up_to_the_root_of_squares(
    charges: list[tuple[float, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Ledger(tmp_path_factory.mktemp("sum") / "l", budget=None) as book:
        for sigma, rounds in charges:
            book.charge(spec(sigma), rounds=rounds)
        mu = sqrt(sum(rounds / sigma**2 for sigma, rounds in charges))
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
    said = [sentence for one, _ in history for sentence in assumptions(one)]
    assert len(set(found.assumptions)) == len(found.assumptions)
    assert set(found.assumptions) == set(said)


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


@pytest.mark.usefixtures("quick")
def test_many_charges_compute_each_curve_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, releases = [], compile.releases

    def counted(one: SplitMechanism) -> Any:
        asked.append(one)
        return releases(one)

    monkeypatch.setattr(compile, "releases", counted)
    ledger_cost.unit_cost.cache_clear()
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


# Budget


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
    assert left[True] > 1.1 * left[False] > 0
    assert answer.epsilon(replace(POISSON, rounds=left[True]), DELTA).epsilon <= 1.0


def test_a_smaller_budget_on_reopening_refuses_at_once(path: Path) -> None:
    filled(path)
    with Ledger(path, budget=PrivacyBudget(epsilon=0.01, delta=DELTA)) as book, pytest.raises(BudgetSpent) as caught:
        book.charge(spec())
    assert caught.value.left == 0


# Kills and damage

CHARGING = """
    import os, sys
    from privkit.accountants.ledger import Ledger
    from privkit.accountants.spec.mechanism import SplitMechanism
    from privkit.accountants.spec.parts import Noise
    from privkit.accountants.spec.sensitivity import Clamp
    one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=1), noise=Noise(smashed=8.0), lower_model="frozen")
    book = Ledger(sys.argv[1])
    os.write(1, b"open\\n")
    while True:
        charge = book.charge(one, note="x" * 99)
        os.write(1, b"%d\\n" % charge.number)
"""


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs code."""
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]


def test_a_kill_loses_no_charge_that_was_acknowledged(path: Path) -> None:
    moments, acknowledged = random.Random(7), 0
    for _ in range(8):
        with subprocess.Popen(python(CHARGING, path), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            said = [process.stdout.readline() for _ in range(moments.randrange(30))]
            time.sleep(moments.random() / 50)
            process.kill()
            said += process.stdout.read().split(b"\n")[:-1]
            process.wait()
        assert process.returncode == -signal.SIGKILL
        with Ledger(path) as book:
            acknowledged = max([acknowledged, *map(int, said)])
            assert acknowledged <= len(book) <= acknowledged + 1
            assert book.rounds == len(book)
            assert book.epsilon(DELTA).epsilon == pytest.approx(exact(sqrt(len(book)) / 8), rel=1e-8)
            acknowledged = len(book)
    assert acknowledged > 8


def test_every_torn_end_is_dropped_and_nothing_else(path: Path) -> None:
    lines = filled(path)
    whole, earlier = b"".join(lines), b"".join(lines[:-1])
    for cut in range(len(earlier) + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with Ledger(path) as book:
            assert len(book) == len(lines) - 1
            assert book.rounds == 1 + 2 + 3
            (remark,) = book.remarks
            assert "line 4 was torn by a kill and dropped" in remark
            assert path.read_bytes() == earlier
    with Ledger(path) as book:
        assert book.remarks == ()
        assert book.charge(spec()).number == 4
    path.write_bytes(whole[:-1])  # an editor that cuts the last newline drops no charge
    with Ledger(path) as book:
        assert (len(book), book.rounds, book.remarks) == (4, 10, ())
    assert path.read_bytes() == whole


def test_a_torn_first_line_is_dropped(path: Path) -> None:
    line = filled(path, 1)[0]
    for cut in range(1, len(line) - 1):
        path.write_bytes(line[:cut])
        with Ledger(path) as book:
            assert len(book) == 0
            assert book.remarks
        assert path.read_bytes() == b""


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_changed_byte_is_found_wherever_it_is(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damage") / "l"
    whole = b"".join(filled(path, 3))
    at = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(LedgerError, match=r"line|no ledger"):
        Ledger(path)
    assert path.read_bytes() == damaged


def test_lines_that_are_missing_swapped_or_from_elsewhere_are_found(path: Path) -> None:
    a, b, c, d = filled(path)
    other = filled(path.with_name("other"), 1)[0]
    for lines in ([a, c, d], [b, c, d], [a, c, b, d], [a, b, b, c, d], [a, b"\n", b], [a, b, other], [b"\n"]):
        path.write_bytes(b"".join(lines))
        with pytest.raises(LedgerError):
            Ledger(path)
        assert path.read_bytes() == b"".join(lines)
    path.write_bytes(a + c + d)
    with pytest.raises(LedgerError, match="damaged in line 2: restore it from a copy"):
        Ledger(path)


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"hello\n",
        b"a,b\n1,2\n",
        b'{"charge": 2, "rounds": 1',
        b'{"charge": 1}\n',
        b'{"epsilon": 3}',
        b"\x00\x01\xff" * 40,
        "Ünïcode\n".encode("utf-16"),
        b"\n\n",
        b"[]",
    ],
)
def test_a_foreign_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is no ledger"):
        Ledger(path)
    assert path.read_bytes() == content


@settings(deadline=None, max_examples=200)
@given(content=st.one_of(st.binary(min_size=1, max_size=200), st.text(min_size=1, max_size=99).map(str.encode)))
@example(content=b'{"charge": 1, ')
def test_any_other_bytes_are_refused_or_a_torn_beginning(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "l"
    path.write_bytes(content)
    start = b'{"charge": 1, '
    if b"\n" not in content and (content.startswith(start) or start.startswith(content)):
        with Ledger(path) as book:
            assert book.remarks
    else:
        with pytest.raises(LedgerError):
            Ledger(path)
        assert path.read_bytes() == content


def test_a_line_of_a_later_version_is_named(path: Path) -> None:
    """Right checksum, unknown mechanism."""
    from privkit.accountants.ledger_file import LedgerFile

    file = LedgerFile(path)
    file.append('"rounds": 1, "note": "", "mechanism": {"kind": "teleport"}')
    file.close()
    with pytest.raises(LedgerError, match=r"line 1 .* unknown kind 'teleport'"):
        Ledger(path)


def test_earlier_lines_are_never_rewritten_and_are_plain_json(path: Path) -> None:
    lines = filled(path)
    with Ledger(path) as book:
        book.charge(LABELED, note="more")
    assert path.read_bytes().startswith(b"".join(lines))
    parsed = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    assert [line["charge"] for line in parsed] == [1, 2, 3, 4, 5]
    assert [line["rounds"] for line in parsed] == [1, 2, 3, 4, 1]
    assert parsed[0]["note"] == 'epoch 0 "ü", "mechanism": {'
    assert parsed[0]["mechanism"]["kind"] == "split_mechanism"


# Writers and disks


def test_a_second_writer_is_refused(path: Path) -> None:
    with Ledger(path) as book:
        with pytest.raises(LedgerError, match="in use by another run"):
            Ledger(path)
        other = subprocess.run(python(CHARGING, path), capture_output=True, text=True, timeout=60, check=False)
        assert other.returncode == 1
        assert "LedgerError: the ledger" in other.stderr
        assert "in use by another run" in other.stderr
        book.charge(spec())
    with Ledger(path) as book:
        assert len(book) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_not_charge(path: Path) -> None:
    with Ledger(path) as book:
        child = os.fork()
        if child == 0:
            try:
                book.charge(spec())
            except LedgerError as error:
                os._exit(17 if "another process" in str(error) else 1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 17
        book.charge(spec())
        assert len(book) == 1


@pytest.mark.parametrize("change", ["append", "truncate", "remove", "replace"])
def test_a_file_that_changes_under_our_hands_is_noticed(path: Path, change: str) -> None:
    with Ledger(path) as book:
        book.charge(spec())
        if change == "append":
            path.write_bytes(path.read_bytes() + b"x")
        elif change == "truncate":
            os.truncate(path, 10)
        elif change == "remove":
            path.unlink()
        else:
            path.with_name("copy").write_bytes(path.read_bytes())
            os.replace(path.with_name("copy"), path)
        with pytest.raises(LedgerError, match="changed or moved by somebody else"):
            book.charge(spec())
        assert len(book) == 1


FULL = """
    import resource, signal, sys
    from pathlib import Path
    from privkit.accountants.ledger import Ledger
    from privkit.accountants.spec.mechanism import SplitMechanism
    from privkit.accountants.spec.parts import Noise
    from privkit.accountants.spec.sensitivity import Clamp
    one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=1), noise=Noise(smashed=8.0), lower_model="frozen")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    book = Ledger(sys.argv[1])
    book.charge(one)
    size = Path(sys.argv[1]).stat().st_size
    for room in (100, 0):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
        try:
            book.charge(one)
        except ValueError as error:
            print(error)
        assert Path(sys.argv[1]).stat().st_size == size
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        book = Ledger(sys.argv[1])
    print(len(book), book.remarks)
"""


def test_a_full_disk_charges_nothing(path: Path) -> None:
    done = subprocess.run(python(FULL, path), capture_output=True, text=True, timeout=60, check=True)
    torn, none, last = done.stdout.splitlines()
    for sentence in (torn, none):
        assert sentence.startswith(f"cannot write the ledger {path}: ")
        assert "release nothing" in sentence
    assert last == "1 ()"


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_write_of_unknown_fate_closes_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    book = Ledger(path)
    book.charge(spec())

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((LedgerError, KeyboardInterrupt)):
        book.charge(spec())
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="is closed; open it again"):
        book.charge(spec())
    with Ledger(path) as again:
        assert len(again) == (1 if isinstance(failure, OSError) else 2)
        assert again.charge(spec()).number == len(again)


def test_places_that_keep_nothing_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger(tmp_path / "file" / "ledger")
    with pytest.raises(LedgerError, match="no ordinary file"):
        Ledger("/dev/null")


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


def test_lists_in_a_specification_are_refused(path: Path) -> None:
    ratios: Any = [0.5, 0.5]
    with Ledger(path) as book, pytest.raises(ValueError, match="tuples"):
        book.charge(spec(mixing=Mixup(ratio=FixedRatio(ratios=ratios))))


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


@settings(deadline=None, max_examples=60)
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


def test_the_command_prints_what_the_ledger_proves(path: Path) -> None:
    with Ledger(path) as book:
        book.charge(spec(2.0), rounds=4)
    runner = CliRunner()
    done = runner.invoke(app, ["ledger", str(path), "--delta", "1e-5", "--json"])
    assert json.loads(done.stdout)["epsilon"] == pytest.approx(exact(1.0), rel=1e-9)
    assert "δ = " in runner.invoke(app, ["ledger", str(path), "--epsilon", "1"]).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delta", "1e-5"], "there is no ledger"),
        ([], "give --delta"),
        (["--delta", "1e-5", "--epsilon", "1"], "give --delta"),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(
            app, ["ledger", str(tmp_path / "none"), *arguments], catch_exceptions=False, standalone_mode=False
        )
