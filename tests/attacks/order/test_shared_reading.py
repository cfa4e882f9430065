"""Attacks that would learn the same from the same answers learn it once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NoSession, NotApplicable
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.memory import Memory
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.query_rules import ANY_QUERIES
from privkit.wire.channel import Queries
from tests.attacks.order.puzzles import pixels, projected, scene

QUICK = Jigsaw(epochs=1, kicks=1, read=20, width=32)
TWICE = replace(QUICK, passes=2)


def learned(attack: Jigsaw, knowledge: ImageObservation, memory: Memory | None) -> tuple[list[Tensor], int, int]:
    """Weights that a jigsaw learned, the rounds that count as its own, and those that were sent."""
    sent, ask = [0], knowledge.query
    assert ask is not None

    def query(images: Tensor, draws: Generator) -> Any:
        sent[0] += 1
        return ask(images, draws)

    counted = Queries(query, ANY_QUERIES)
    seen = replace(knowledge, query=counted, memory=memory)
    solver, _, _ = attack.learn(seen, Generator().manual_seed(0), NoSession())
    assert solver.network is not None
    parts = [solver.decoder.decode.weight, torch.tensor(solver.keep), *solver.network.state_dict().values()]
    return parts + list([] if solver.members is None else solver.members.state_dict().values()), counted.rounds, sent[0]


def same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0.4, 1.0])
def test_the_second_jigsaw_learns_the_same_bits_and_counts_the_same_rounds(keep: float) -> None:
    views, _, knowledge = scene(projected, keep)
    knowledge = replace(knowledge, views=[*views, *views])
    alone = {attack: learned(attack, knowledge, None) for attack in (QUICK, TWICE)}
    memory = Memory()
    for number, attack in enumerate((QUICK, TWICE)):
        memory.begin()
        parts, rounds, sent = learned(attack, knowledge, memory)
        assert same(parts, alone[attack][0])
        assert rounds == alone[attack][1] == alone[attack][2]
        assert (sent < rounds) == (memory.spared > 0) == (number > 0)


def test_what_an_attack_learned_itself_spares_no_seconds_of_its_row() -> None:
    views, _, knowledge = scene(projected, 0.4)
    memory = Memory()
    memory.begin()
    for _ in range(2):
        learned(QUICK, replace(knowledge, views=views), memory)
    assert memory.spared == 0


def test_other_clients_and_other_settings_are_learned_anew() -> None:
    memory, fresh = Memory(), Memory()
    for lower, attack in ((projected, QUICK), (pixels, QUICK), (projected, replace(QUICK, width=16))):
        views, _, knowledge = scene(lower, 0.4)
        knowledge = replace(knowledge, views=views)
        assert same(learned(attack, knowledge, memory)[0], learned(attack, knowledge, None)[0])
    assert same(learned(QUICK, knowledge, fresh)[0], learned(QUICK, knowledge, None)[0])


def test_a_refusal_is_remembered() -> None:
    memory, made, draws = Memory(), [0], Generator()

    def refuse() -> None:
        made[0] += 1
        raise NotApplicable("too few")

    for _ in range(2):
        with pytest.raises(NotApplicable, match="too few"):
            memory.recalled(("noise",), draws, refuse)
    assert made == [1]


def test_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.attacks.memory._MOST", 5)
    memory = Memory()
    for name in "ab":
        memory.keep(name, {"all": [torch.zeros(3)]}, 1.0)
    assert memory.recall("a") is None
    assert memory.recall("b") is not None
