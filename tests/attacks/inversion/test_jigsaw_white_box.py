"""A solved order in front of the white box: near the unshuffled release, far from the order as it came."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.inversion.jigsaw_white_box import JigsawWhiteBox
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.piece_solver import put, restored
from privkit.attacks.patches import patchify
from privkit.attacks.query_rules import QueryRules
from privkit.attacks.scores.order import direct_accuracy
from privkit.audit.order_scores import arrangement_scores, true_arrangement
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.wire.channel import Queries
from tests.attacks.sessions import Killed, Session
from tests.attacks.victims import crops

BATCH, T = 5, 16
QUICK = JigsawWhiteBox(pieces_epochs=8, kicks=40, epochs=2, total_variation=0.1, l2=0.0)


IMAGES = crops(120)
VICTIMS, AUXILIARY = IMAGES[:10], IMAGES[10:]


class Cells(nn.Module):
    """Tokens [N, 16, 192] of 8×8 patches, turned and bent: no pictures, and no place is told from another."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.linalg.qr(torch.randn(192, 192, generator=Generator().manual_seed(2))).Q)

    def forward(self, images: Tensor) -> Tensor:
        return (patchify(images, 8) @ self.turn).tanh()


LOWER = Cells()


@torch.no_grad()
def send(images: Tensor, keep: float, draws: Generator) -> tuple[View, Tensor]:
    """A round of one message for each five images, and the true order."""
    smashed = LOWER(images).unflatten(0, (-1, BATCH))
    release, receipt = BatchShuffle(keep=keep).apply(smashed, torch.zeros(smashed.shape[:2]), draws)
    truth = true_arrangement(receipt)
    assert truth is not None
    return View(round=0, smashed=release.smashed.flatten(0, 1), messages=len(smashed)), truth


def known(keep: float, queries: bool = True) -> ImageObservation:
    def query(images: Tensor, draws: Generator) -> QueryResult:
        return QueryResult(view=send(images, keep, draws)[0], members=torch.arange(len(images)).unsqueeze(1))

    return ImageObservation(
        image_shape=(3, 32, 32),
        batch_size=10,
        auxiliary=AUXILIARY,
        lower=LOWER,
        query=query if queries else None,
    )


def error(found: Reconstruction) -> float:
    return (found.images - VICTIMS).square().mean().item()


@cache
def inverted(keep: float, seeds: int = 3) -> tuple[list[Reconstruction], Tensor, View]:
    """Of several seeds: ten images are few."""
    view, truth = send(VICTIMS, keep, Generator().manual_seed(9))
    return (
        [QUICK.run(replace(known(keep), views=[view]), Generator().manual_seed(seed)) for seed in range(seeds)],
        truth,
        view,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "near", "seeds"), [(1.0, 0.4, 3), (0.4, 0.8, 10)])
def test_lies_between_the_unshuffled_release_and_the_shuffled_one(keep: float, near: float, seeds: int) -> None:
    """`near`: how far towards the order as it came; an order over a message is harder, and scatters by .08 a seed."""
    found, truth, view = inverted(keep, seeds)
    plain = WhiteBox(epochs=2, total_variation=0.1, l2=0.0, order="known")
    in_order = replace(view, smashed=LOWER(VICTIMS).detach())
    unshuffled = plain.run(replace(known(keep), views=[in_order]), Generator().manual_seed(0))
    shuffled = error(plain.run(replace(known(keep), views=[view]), Generator().manual_seed(0)))
    assert error(unshuffled) < 0.01 * shuffled
    assert sum(map(error, found)) / seeds < error(unshuffled) + near * (shuffled - error(unshuffled))
    for one in found:
        assert one.permutation is not None
        solved = direct_accuracy(one.permutation.source, truth, batch=BATCH) == 1
        assert solved.any() or keep < 1
        torch.testing.assert_close(one.images[solved], unshuffled.images[solved], atol=1e-3, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "seeds"), [(1.0, 3), (0.4, 10)])
def test_hands_on_the_order(keep: float, seeds: int) -> None:
    found, truth, _ = inverted(keep, seeds)
    gains = []
    for one in found:
        assert one.permutation is not None
        scores = arrangement_scores(one.permutation.source, truth, batch=BATCH)
        assert scores.neighbor is not None
        gains.append(scores.neighbor.share.value - scores.neighbor.left_alone)
        assert len(one.curve) == 2
    assert sum(gains) / seeds > 0.3


def test_a_right_order_gives_the_unshuffled_release_back() -> None:
    view, truth = send(VICTIMS, 0.4, Generator().manual_seed(9))
    with torch.no_grad():
        assert torch.equal(restored(view, truth).smashed, LOWER(VICTIMS))
    maps = view.smashed.transpose(1, 2).reshape(10, 192, 4, 4)
    assert torch.equal(
        restored(replace(view, smashed=maps), truth).smashed.flatten(2).transpose(1, 2),
        put(view.smashed, truth, BATCH),
    )


class Unflipped:
    """A solver that knows that every row's tokens were reversed."""

    def solve(self, view: View, number: int) -> Tensor:
        return torch.arange(T).flip(0) + T * (torch.arange(len(view.smashed)) % BATCH).unsqueeze(1)


def test_the_white_box_sees_releases_and_answers_in_the_solved_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jigsaw learns from all own images but those of the round on which the white box tries its priors."""
    seen: dict[str, ImageObservation] = {}

    def learn(attack: Jigsaw, observation: ImageObservation, *rest: Any) -> tuple[Unflipped, dict[str, Any], None]:
        seen["jigsaw"] = observation
        return Unflipped(), {"sources": []}, None

    def run(attack: WhiteBox, observation: ImageObservation, *rest: Any) -> Reconstruction:
        seen["white box"] = observation
        return Reconstruction(images=torch.zeros(10, 3, 32, 32))

    @torch.no_grad()
    def reversed_tokens(images: Tensor) -> View:
        return View(round=0, smashed=LOWER(images).flip(1), messages=len(images) // BATCH)

    def query(images: Tensor, draws: Generator) -> QueryResult:
        return QueryResult(view=reversed_tokens(images), members=torch.arange(len(images)).unsqueeze(1))

    monkeypatch.setattr(Jigsaw, "learn", learn)
    monkeypatch.setattr(WhiteBox, "run", run)
    held = replace(known(1.0), query=query, views=[reversed_tokens(VICTIMS)])
    found = QUICK.run(held, Generator())
    assert found.permutation is not None
    assert found.permutation.source[:, 0].tolist() == 2 * [T * row + T - 1 for row in range(BATCH)]
    given = seen["white box"]
    assert given.query is not None
    with torch.no_grad():
        assert torch.equal(given.views[0].smashed, LOWER(VICTIMS))
        assert torch.equal(given.query(AUXILIARY[:10], Generator()).view.smashed, LOWER(AUXILIARY[:10]))
    learned, tried = seen["jigsaw"].auxiliary, given.auxiliary
    assert learned is not None
    assert tried is not None
    assert torch.equal(tried, AUXILIARY)
    assert torch.equal(learned, AUXILIARY[:-10])


@pytest.mark.slow
def test_priors_are_chosen_behind_the_solved_order() -> None:
    view, _ = send(VICTIMS, 0.4, Generator().manual_seed(9))
    attack, session = replace(QUICK, total_variation=None, epochs=1), Session()
    attack.run(replace(known(0.4), views=[view]), Generator().manual_seed(0), session)
    assert session.state is not None
    order, smooth, _ = session.state["white_box"]["chosen"]
    assert order == "known"
    assert smooth > 0.003  # what an exact release in order calls for


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_works_with_few_queries(rounds: int) -> None:
    """Where they do not reach for the priors, the usual ones are taken."""
    rules, knowledge = QueryRules(rounds=rounds), known(1.0)
    assert knowledge.query is not None
    queries = Queries(knowledge.query, rules)
    view, _ = send(VICTIMS, 1.0, Generator().manual_seed(1))
    held = replace(knowledge, views=[view], rules=rules, query=queries)
    attack = JigsawWhiteBox(pieces_epochs=1, kicks=1, epochs=1)
    assert attack.run(held, Generator().manual_seed(0)).images.shape == VICTIMS.shape
    assert queries.rounds == rounds


@pytest.mark.slow
def test_works_without_queries() -> None:
    view, _ = send(VICTIMS, 1.0, Generator().manual_seed(9))
    found = QUICK.run(replace(known(1.0, queries=False), views=[view]), Generator().manual_seed(0))
    assert error(found) < 0.5 * (AUXILIARY.mean(0) - VICTIMS).square().mean()


def test_the_start_has_learned_nothing_and_searched_nothing() -> None:
    assert QUICK.mounting.start == replace(QUICK, pieces_epochs=0, kicks=0, epochs=0)


@pytest.mark.slow
@pytest.mark.parametrize("dies_after", [5, 1, 3, 4])
def test_goes_on_after_a_kill_bit_for_bit(dies_after: int) -> None:
    """Killed inside the white box, inside the jigsaw's training, after it, and after the view is solved."""
    attack = replace(QUICK, pieces_epochs=1, kicks=2)
    view, _ = send(VICTIMS, 0.4, Generator().manual_seed(9))
    killed = Session(dies_after, at="save")
    with pytest.raises(Killed):
        attack.run(replace(known(0.4), views=[view]), Generator().manual_seed(0), killed)
    resumed = attack.run(replace(known(0.4), views=[view]), Generator().manual_seed(0), Session(state=killed.state))
    straight = attack.run(replace(known(0.4), views=[view]), Generator().manual_seed(0))
    assert torch.equal(resumed.images, straight.images)
    assert resumed.curve == straight.curve


def test_says_what_it_lacks() -> None:
    view, _ = send(VICTIMS, 1.0, Generator().manual_seed(9))
    for change, sentence in (
        ({"lower": None}, "needs lower"),
        ({"auxiliary": None, "lower": None}, "auxiliary and lower"),
        ({"auxiliary": AUXILIARY[:4]}, "auxiliary images, got 4"),
        ({"lower": nn.Flatten()}, "the lower segment gives"),
    ):
        with pytest.raises(NotApplicable, match=sentence):
            QUICK.run(replace(known(1.0), **change, views=[view]), Generator())


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"pieces_epochs": -1}, "pieces_epochs"),
        ({"kicks": -1}, "kicks"),
        ({"keep": 2.0}, "keep"),
        ({"pairs": "magic"}, "one of learned, joint, auto, edges"),
        ({"epochs": -1}, "epochs"),
        ({"l2": -1.0}, "l2"),
    ],
)
def test_settings_are_checked(bad: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        JigsawWhiteBox(**bad)
