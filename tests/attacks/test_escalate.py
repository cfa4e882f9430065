"""An attack that fails goes on from its own session with twice the work, and says why it ended."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, QueryResult, Session, View
from privkit.attacks.escalate import Escalation, escalated
from privkit.attacks.fit import fit
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction, observe
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.jigsaw_white_box import JigsawWhiteBox
from privkit.attacks.inversion.ridge import Ridge
from privkit.attacks.inversion.sdar import SDAR
from privkit.attacks.inversion.unsplit import UnSplit
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.order.drag_reorder import DragReorder
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.piece_solver import Solver
from tests.attacks import sessions
from tests.attacks.sessions import Killed
from tests.attacks.test_fit import KNOWN, VIEW, Curve

DRAWN = torch.rand(60, 4, generator=Generator().manual_seed(2)) @ torch.rand(
    4, 64, generator=Generator().manual_seed(3)
)
RECORDS = (DRAWN / DRAWN.max()).view(60, 1, 8, 8)
OWN, PRIVATE = RECORDS[:48], RECORDS[48:]


class Patches(nn.Module):
    """Releases the four patches of an image [N, 1, 8, 8] as tokens [N, 4, 16]."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.unfold(images, 4, stride=4).transpose(1, 2)


def shuffled(images: Tensor, draws: Generator) -> QueryResult:
    """Each image's tokens in an order of their own."""
    order = torch.rand(len(images), 4, generator=draws).argsort(1)
    tokens = Patches()(images).gather(1, order.unsqueeze(2).expand(-1, -1, 16))
    return QueryResult(view=View(round=0, smashed=tokens), members=torch.arange(len(images)).unsqueeze(1))


def noise(images: Tensor, draws: Generator) -> QueryResult:
    view = View(round=0, smashed=torch.randn(len(images), 4, 16, generator=draws))
    return QueryResult(view=view, members=torch.arange(len(images)).unsqueeze(1))


def seen(lower: nn.Module, known: bool = False) -> ImageObservation:
    return observe(lower, PRIVATE, batch_size=12, auxiliary=OWN, known=known)


def judged(result: Reconstruction) -> tuple[bool, float]:
    """Whether guesses are better than half the error of the mean record."""
    error = (result.images - PRIVATE).square().mean().item()
    return error < 0.5 * (OWN.mean(0) - PRIVATE).square().mean().item(), error


def mounted(attack: Any, observation: ImageObservation) -> Callable[[Session], Reconstruction]:
    return lambda session: attack.run(observation, Generator().manual_seed(0), session)


BLACK_BOX = BlackBox(epochs=4, decoder="mae", width=16, depth=1, learning_rate=3e-3)


def failed(result: Reconstruction) -> tuple[bool, float]:
    return False, judged(result)[1]


def test_a_budget_that_is_too_small_is_doubled_until_the_attack_wins() -> None:
    """Over 8 seeds its error is .030 or more at its budget, and .0076 or less after 2 or 3 doublings; .0078 wins."""
    run = mounted(BLACK_BOX, seen(Patches()))
    assert not judged(run(sessions.Session()))[0]
    result, went = escalated(run, judged, most=8)
    assert went.ended == "won"
    assert 1 <= went.doublings <= 4
    assert len(result.curve) == went.epochs == 4 << went.doublings
    assert f"went on to {1 << went.doublings} times its work ({went.epochs} epochs" in went.sentence


@pytest.mark.parametrize(
    ("attack", "doublings"),
    [
        (Ridge(epochs=2, width=8), 2),
        pytest.param(replace(BLACK_BOX, epochs=64, learning_rate=2e-2), 5, marks=pytest.mark.slow),
    ],
    ids=["ridge", "black_box"],
)
def test_an_attack_on_noise_stops_after_two_doublings_without_a_gain(attack: Any, doublings: int) -> None:
    release = noise(PRIVATE, Generator().manual_seed(1)).view
    observation = replace(seen(Patches()), views=[release], query=noise)
    _, went = escalated(mounted(attack, observation), judged, most=8)
    assert went.ended == "stopped"
    assert 2 <= went.doublings <= doublings
    assert not any(went.gains[-2:])
    assert "the last 2 doublings lowered the error by at most 5%" in went.sentence


def test_an_attack_that_wins_does_no_more() -> None:
    run = mounted(TRAINED["ridge"][0], seen(Patches()))
    result, went = escalated(run, judged, most=8)
    assert (went.ended, went.doublings, went.sentence) == ("won", 0, "")
    assert torch.equal(result.images, run(sessions.Session()).images)


@cache
def doubled_twice() -> tuple[Reconstruction, Escalation]:
    return escalated(mounted(BLACK_BOX, seen(Patches())), failed, most=2)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("dies_after", [11, 3, 4, 6])
def test_a_killed_attack_goes_on_in_its_doubling(dies_after: int) -> None:
    run = mounted(BLACK_BOX, seen(Patches()))
    whole, went = doubled_twice()
    assert (went.ended, went.epochs) == ("limit", 16)
    session = sessions.Session(dies_after=dies_after, at="save")
    with pytest.raises(Killed):
        escalated(run, failed, session, most=2)
    again = sessions.Session(state=session.state)
    found, same_way = escalated(run, failed, again, most=2)
    assert torch.equal(found.images, whole.images)
    assert same_way == went
    assert again.saves == 16 - dies_after


PUZZLE = replace(seen(Patches()), views=[shuffled(PRIVATE, Generator().manual_seed(1)).view], query=shuffled)
TRAINED = {
    "ridge": (Ridge(epochs=2, width=8), seen(Patches())),
    "jigsaw": (Jigsaw(epochs=2, kicks=2, width=8), PUZZLE),
    "drag_reorder": (DragReorder(epochs=2), PUZZLE),
    "jigsaw_white_box": (
        JigsawWhiteBox(pieces_epochs=2, kicks=2, epochs=2, total_variation=0.1, l2=0.0),
        replace(PUZZLE, lower=Patches()),
    ),
    "white_box": (WhiteBox(epochs=2, total_variation=0.1, l2=0.0, order="known"), seen(Patches(), known=True)),
    "unsplit": (UnSplit(epochs=2), replace(KNOWN, views=[VIEW])),
    "sdar": (SDAR(epochs=2, width=2, batch=6), replace(KNOWN, views=[VIEW])),
}


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("name", TRAINED)
def test_whatever_trains_goes_on(name: str) -> None:
    """It trains twice the epochs, and a kill in the second half changes nothing."""
    attack, observation = TRAINED[name]
    run = mounted(attack, observation)
    whole, went = escalated(run, failed, most=1)
    assert (went.ended, went.doublings) == ("limit", 1)
    _, first = escalated(run, failed, most=0)
    assert went.epochs == 2 * first.epochs > 0
    session = sessions.Session(dies_after=went.epochs // 2 + 1, at="save")
    with pytest.raises(Killed):
        escalated(run, failed, session, most=1)
    found, same_way = escalated(run, failed, sessions.Session(state=session.state), most=1)
    assert torch.equal(found.images, whole.images)
    assert same_way == went


def test_a_jigsaw_that_learned_more_solves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    real = Solver.solve

    def counted(self: Solver, *given: Any) -> Any:
        solved.append(1)
        return real(self, *given)

    monkeypatch.setattr(Solver, "solve", counted)
    escalated(mounted(*TRAINED["jigsaw"]), failed, most=2)
    assert len(solved) == 3 * len(TRAINED["jigsaw"][1].views)


def test_an_attack_without_a_training_cannot_go_on() -> None:
    for attack in (Ridge(epochs=0), WhiteBox(epochs=0)):
        _, went = escalated(mounted(attack, seen(Patches(), known=True)), failed, most=2)
        assert (went.ended, went.doublings) == ("untrained", 0)
        assert "cannot be escalated" in went.sentence


@pytest.mark.parametrize("error", [AttackDiverged("it is nan"), NotApplicable("no more queries")], ids=str)
@pytest.mark.parametrize("killed", [False, True])
def test_a_doubling_that_fails_leaves_what_was_there(error: Exception, killed: bool) -> None:
    def run(session: Session) -> float:
        values: list[Any] = [0.9, 0.8, 0.7, 0.6, 0.5, error]
        training = Breaking(values)
        fit(training, 2, session)
        return values[training.done - 1]

    session = sessions.Session(dies_after=5, at="save")
    if killed:
        with pytest.raises(Killed):
            escalated(run, lambda value: (False, value), session, most=3)
    session = sessions.Session(state=session.state)
    result, went = escalated(run, lambda value: (False, value), session, most=3)
    assert result == 0.6
    assert went == Escalation(ended="failed", errors=(0.8, 0.6), epochs=4, why=str(error))
    assert went.sentence.endswith(f"more work failed: {error}")


class Breaking(Curve):
    """Raises what stands in its curve."""

    def epoch(self, number: int) -> float:
        value: Any = super().epoch(number)
        if isinstance(value, Exception):
            raise value
        return float(value)


def test_a_cycle_that_makes_it_worse_is_taken_back() -> None:
    training = Curve([0.9, 0.5, 0.6, 0.7, 0.4, 0.4, 0.4, 0.3])
    held: list[int] = []

    def run(session: Session) -> float:
        curve = fit(training, 2, session)
        held.append(training.done)
        return min(curve)

    escalated(run, lambda value: (False, value), most=2)
    assert held == [2, 2, 6]  # the four epochs of the second doubling begin where the first began


def test_gains_are_held_against_the_best_so_far() -> None:
    went = Escalation(ended="limit", errors=(0.5, 0.8, 0.49, 0.4), epochs=8)
    assert went.gains == (False, False, True)
    assert not math.isnan(went.doublings)
