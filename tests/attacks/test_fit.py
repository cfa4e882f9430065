"""The training loop of all attacks: it goes on after a kill, and a divergence leaves the last good state on disk."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.attacks.base import AttackDiverged, View
from privkit.attacks.fit import Stage, fit, fit_doubling
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.sdar import SDAR, SDARTraining
from privkit.attacks.inversion.unsplit import Alternation, UnSplit
from privkit.training import Checkpoint
from tests.attacks.sessions import Killed, Session

VIEW = View(round=0, smashed=torch.rand(12, 16, generator=Generator().manual_seed(0)), labels=torch.arange(12) % 3)
KNOWN = ImageObservation(
    image_shape=(1, 8, 8),
    batch_size=12,
    auxiliary=torch.rand(40, 1, 8, 8, generator=Generator().manual_seed(1)),
    auxiliary_labels=torch.arange(40) % 3,
    lower=nn.Sequential(nn.Flatten(), nn.Linear(64, 16)),
    upper=nn.Linear(16, 3).requires_grad_(False),
)


def slow(path: Path) -> Checkpoint:
    """The first save took so long that no other is due."""
    checkpoint = Checkpoint(path)
    checkpoint.save({"curve": []})
    checkpoint._cost = 1e6
    path.unlink()
    checkpoint.save({"curve": []})
    assert checkpoint.load() is None
    return checkpoint


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


class Halving:
    """Halves a number in each epoch; `spoiled` epochs return something else, or raise it."""

    def __init__(self, spoiled: dict[int, Any] | None = None) -> None:
        self.value, self.spoiled = 1.0, spoiled or {}

    def epoch(self, number: int) -> float:
        self.value /= 2
        given = self.spoiled.get(number, self.value)
        if isinstance(given, Exception):
            raise given
        return float(given)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]

    def again(self, times: int) -> None:
        pass


def test_a_killed_training_goes_on_where_it_was() -> None:
    killed = Session(dies_after=2)
    with pytest.raises(Killed):
        fit(Halving(), 4, killed)
    session, training = Session(state=killed.state), Halving()
    assert fit(training, 4, session) == (0.5, 0.25, 0.125, 0.0625)
    assert session.reports == [(3, 4, 0.125), (4, 4, 0.0625)]
    assert fit(Halving(), 4, session) == (0.5, 0.25, 0.125, 0.0625)


@pytest.mark.parametrize(
    ("keep_best", "last", "kept"),
    [(False, 0.4, 4), (True, 0.4, 2), (True, 0.26, 4)],
    ids=["not asked", "worse", "noise"],
)
def test_a_training_goes_back_to_its_best_epoch_if_that_is_asked_for(keep_best: bool, last: float, kept: int) -> None:
    session, training = Session(), Halving({2: 0.3, 3: last})
    assert fit(training, 4, session, keep_best=keep_best) == (0.5, 0.25, 0.3, last)
    assert training.value == 0.5**kept
    again = Halving()  # finished before a kill
    fit(again, 4, Session(state=session.state), keep_best=keep_best)
    assert again.value == training.value


@pytest.mark.parametrize("spoiled", [math.nan, math.inf, AttackDiverged("it broke after epoch 3")], ids=str)
def test_a_divergence_restores_and_keeps_the_last_good_state(spoiled: Any) -> None:
    session, training = Session(), Halving({2: spoiled})
    with pytest.raises(AttackDiverged, match="after epoch 3"):
        fit(training, 4, session, objective="the loss")
    assert training.value == 0.25
    assert session.state == {"curve": [0.5, 0.25], "training": {"value": 0.25}}


def test_a_first_epoch_that_diverges_keeps_the_start() -> None:
    session, training = Session(), Halving({0: math.nan})
    with pytest.raises(AttackDiverged, match="the loss is nan after epoch 1"):
        fit(training, 4, session, objective="the loss")
    assert session.state == {"curve": [], "training": {"value": 1.0}}


def test_stages_share_a_session() -> None:
    session, state = Session(), dict[str, Any]()
    for number, slot in enumerate(("first", "second")):
        fit(Halving(), 2, Stage(session, state, slot, before=2 * number, total=4))
    assert [report[:2] for report in session.reports] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert {slot: stage["curve"] for slot, stage in session.state.items()} == {
        "first": [0.5, 0.25],
        "second": [0.5, 0.25],
    }


@pytest.mark.parametrize("attack", [SDAR(epochs=3, width=2, batch=6), UnSplit(epochs=3)], ids=["sdar", "unsplit"])
def test_a_passive_attack(attack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two good epochs, and one that leaves every weight broken."""
    whole = Session(dies_after=2)
    with pytest.raises(Killed):
        attack.run(replace(KNOWN, views=[VIEW]), Generator().manual_seed(0), whole)
    calls: list[None] = []
    holder: Any = SDARTraining if isinstance(attack, SDAR) else Alternation
    name = "_learn_all" if isinstance(attack, SDAR) else "_alternate"
    real = getattr(holder, name)

    def breaking(self: Any, *given: Any) -> Any:
        calls.append(None)
        found = real(self, *given)
        if len(calls) == 3:
            weights = [w for part in self.parts.values() for w in part.parameters()] if found else self.images
            for weight in weights:
                weight.data.fill_(math.nan)
        return found

    monkeypatch.setattr(holder, name, breaking)
    checkpoint = slow(tmp_path / "attack.ckpt")
    with pytest.raises(AttackDiverged, match="nan"):
        attack.run(replace(KNOWN, views=[VIEW]), Generator().manual_seed(0), checkpoint)
    assert same(checkpoint.load(), whole.state)


@pytest.mark.usefixtures("ten")
def test_a_hijack(hijack: Any, tmp_path: Path) -> None:
    whole, checkpoint = Session(), slow(tmp_path / "attack.ckpt")
    hijack.attacked(hijack.one, hijack.client(), session=whole)
    clients = hijack.client(spoil=lambda done, x: x * math.nan if done == 13 else x)
    with pytest.raises(AttackDiverged):
        hijack.attacked(hijack.one.__class__(epochs=3, width=2, blocks=1), clients, session=checkpoint)
    assert same(checkpoint.load(), whole.state)


class Curve:
    """Follows a given curve; its state is how far it came."""

    def __init__(self, values: list[float]) -> None:
        self.values, self.done = values, 0

    def epoch(self, number: int) -> float:
        self.done += 1
        return self.values[self.done - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]

    def again(self, times: int) -> None:
        pass


@pytest.mark.parametrize(
    ("values", "epochs", "doublings", "length", "converged", "kept"),
    [
        ([0.5, 0.4, 0.39, 0.385], 4, 2, 4, True, 4),  # 4 % from half to all: enough
        ([0.5, 0.4, 0.30, 0.29], 4, 0, 4, False, 4),  # it still gains, but may not go on
        ([0.5, 0.4, 0.30, 0.29, 0.2, 0.2, 0.2, 0.2], 4, 1, 8, False, 8),
        ([0.5, 0.4, 0.30, 0.29, 0.2, 0.2, 0.2, 0.28], 4, 2, 8, True, 8),
        ([0.5, 0.4, 0.41, 0.42], 4, 2, 4, True, 2),  # longer is worse: the doubling is taken back
        ([0.5, 0.4, 0.3], 3, 2, 3, None, 3),
        ([], 0, 2, 0, None, 0),
    ],
)
def test_a_training_is_doubled_while_that_gains(
    values: list[float], epochs: int, doublings: int, length: int, converged: bool | None, kept: int
) -> None:
    training = Curve(values)
    curve, found = fit_doubling(lambda before, epochs: training, epochs, doublings=doublings)
    assert (len(curve), found, training.done) == (length, converged, kept)


def test_a_doubled_training_goes_on_after_a_kill() -> None:
    values = [1 / (1 + epoch) for epoch in range(16)]
    whole = fit_doubling(lambda before, epochs: Curve(values[before:]), 4, doublings=2)
    for dies_after in (1, 2, 3, 7, 12):
        session = Session(dies_after=dies_after, at="save")
        with pytest.raises(Killed):
            fit_doubling(lambda before, epochs: Curve(values[before:]), 4, session, doublings=2)
        again = Session(state=session.state)
        assert fit_doubling(lambda before, epochs: Curve(values[before:]), 4, again, doublings=2) == whole
        assert again.saves == 16 - dies_after
