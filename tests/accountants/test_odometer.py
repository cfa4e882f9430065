"""Odometers: no strategy makes the loss exceed the readings more often than δ; the price of a fixed run is exceeded."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.step import USUAL_ORDERS
from privkit.accountants.filters import LEVELS, Filter, reading
from privkit.accountants.ledger import Ledger, PrivacyBudget
from privkit.cli.app import app
from tests.accountants.ledgers import DELTA, spec

Array = NDArray[np.float64]
GAUSSIAN = Filter(at=0, limit=4.0)
RENYI = Filter(at=1 + int(np.argmin(np.abs(USUAL_ORDERS - 8))), limit=10.0)


def cost(squares: float) -> Array:
    """[Σμ², Rényi curve] of Gaussians."""
    return np.concatenate([[squares], USUAL_ORDERS * squares / 2])


def exceeded(kept: Filter, delta: float, ask: str, seed: int, runs: int = 5_000) -> float:
    """Share of runs whose loss is above the ε of its moment at any moment.

    The strategy goes for it: large steps while the loss is far below, small ones where it is close, so that the loss
    has as many chances as the limit allows.
    """
    random, grid = np.random.default_rng(seed), np.geomspace(1e-3, kept.limit, 601)
    spent_of = grid if kept.at == 0 else grid / (USUAL_ORDERS[kept.at - 1] / 2)
    if ask == "odometer":
        limits = np.array([reading(kept, cost(s), delta).epsilon for s in spent_of])
    else:  # what a run that was fixed in advance spends
        limits = np.array([gaussian.epsilon(delta, sqrt(s)) for s in spent_of])
    loss, squares, over = np.zeros(runs), np.zeros(runs), np.zeros(runs, bool)
    for _ in range(250):
        at = np.searchsorted(spent_of[1:], squares + 1e-12, side="right")  # a reading of no more than was spent
        gap = limits[at] - loss
        mu = np.clip(gap / 6, 0.05, 0.5)
        mu = np.where(squares + mu**2 <= spent_of[-1], mu, 0.0)
        squares += mu**2
        loss += np.where(mu > 0, mu * random.normal(size=runs) + mu**2 / 2, 0.0)
        at = np.searchsorted(spent_of[1:], squares + 1e-12, side="right")  # a reading of no more than was spent
        over |= (loss > limits[at]) & (squares > 0)
    return float(over.mean())


@pytest.mark.slow
@pytest.mark.parametrize("kept", [GAUSSIAN, RENYI], ids=["Gaussian filter", "Rényi filter"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_moment_of_a_run_exceeds_its_reading_more_often_than_delta(kept: Filter, seed: int) -> None:
    delta = 0.2
    assert exceeded(kept, delta, "odometer", seed) + 5 * sqrt(delta / 5_000) < delta


def test_what_a_fixed_run_spends_is_exceeded_at_some_moment_far_more_often() -> None:
    assert exceeded(GAUSSIAN, 0.05, "fixed", 0) > 0.15


def test_readings_grow_with_the_charges_and_stay_below_the_whole_budgets_price() -> None:
    squares = np.geomspace(1e-6, 3.99, 200)
    readings = [reading(GAUSSIAN, cost(s), DELTA).epsilon for s in squares]
    assert all(np.diff(readings) >= 0)
    assert 0 < reading(GAUSSIAN, cost(0.0), DELTA).epsilon == readings[0]  # a charge may be lost in the rounding
    fixed = [gaussian.epsilon(DELTA, sqrt(s)) for s in squares[squares > 4.0 * 0.5 ** (LEVELS / 2)]]
    above = np.array(readings[-len(fixed) :]) / np.array(fixed)
    assert above.min() > 1  # it says more than a bound on a fixed run
    assert above[-100:].max() < 2


@pytest.mark.parametrize("spent", [4.1, np.inf, np.nan])
def test_what_the_filter_does_not_cover_is_refused(spent: float) -> None:
    with pytest.raises(ValueError, match="needs charges within its filter"):
        reading(GAUSSIAN, cost(spent), DELTA)


@pytest.mark.parametrize("kept", [GAUSSIAN, RENYI], ids=["Gaussian filter", "Rényi filter"])
def test_a_delta_that_cannot_be_shared_out_is_refused(kept: Filter) -> None:
    with pytest.raises(ValueError, match="too small to be shared among 32"):
        reading(kept, cost(0.1), 5e-324)


def test_an_adaptive_ledger_has_an_odometer_and_another_one_has_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, budget=PrivacyBudget(epsilon=4.0, delta=DELTA), adaptive=True) as book:
        assert book.so_far(DELTA).epsilon == 0
        book.charge(spec(10.0))
        early = book.so_far(DELTA).epsilon
        book.charge(spec(10.0), rounds=3)
        late = book.so_far(DELTA)
        assert 0 < early < late.epsilon < book.epsilon(DELTA).epsilon
    with Ledger(path) as book:  # the file keeps the filter
        assert book.so_far(DELTA) == late
    said = CliRunner().invoke(app, ["ledger", str(path), "--delta", str(DELTA)])
    assert late.statement in " ".join(said.output.split())
    with (
        Ledger(tmp_path / "fixed.jsonl") as book,
        pytest.raises(ValueError, match=r"adaptive=True.*epsilon\(delta\) is what they have spent"),
    ):
        book.so_far(DELTA)
