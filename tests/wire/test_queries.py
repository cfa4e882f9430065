"""Queries are counted, also by an attack that goes on after a kill, and what the threat model forbids is refused."""

from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, Session, View
from privkit.attacks.query_rules import ANY_QUERIES, QueryRules
from privkit.wire.channel import CountingSession, Queries


def answer(images: Tensor, draws: Generator) -> QueryResult:
    return QueryResult(view=View(round=0, smashed=images), members=torch.arange(len(images)).unsqueeze(1))


class Kept(Session):
    """Keeps the last state."""

    state: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        return self.state

    def save(self, state: dict[str, Any]) -> None:
        self.state = state


def test_refuses_more_rounds_than_are_allowed() -> None:
    queries = Queries(answer, QueryRules(rounds=2))
    for _ in range(2):
        queries(torch.rand(3, 4), Generator())
    with pytest.raises(NotApplicable, match="allows 2 rounds of own images"):
        queries(torch.rand(3, 4), Generator())
    assert queries.rounds == 2


def test_refuses_copies_where_they_are_forbidden() -> None:
    queries = Queries(answer, QueryRules(copies=False))
    with pytest.raises(NotApplicable, match="forbids copies of one image"):
        queries(torch.zeros(3, 4), Generator())
    assert queries(torch.eye(3), Generator()).view.smashed.shape == (3, 3)


def test_lower_segments_with_draws_of_their_own_answer_the_same_again() -> None:
    """Whatever the global generator, and other things in each round."""
    rounds = []
    for seed in (0, 1):
        queries = Queries(lambda images, draws: answer(images + torch.rand(()), draws), ANY_QUERIES)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            rounds.append([queries(torch.zeros(1, 1), Generator()).view.smashed.item() for _ in range(2)])
    assert rounds[0] == rounds[1]
    assert rounds[0][0] != rounds[0][1]


def test_a_killed_attack_counts_on() -> None:
    kept, first = Kept(), Queries(answer, ANY_QUERIES)
    session = CountingSession(kept, first)
    assert session.load() is None
    first(torch.zeros(3, 4), Generator())
    session.save({"epoch": 1})
    second = Queries(answer, ANY_QUERIES)
    assert CountingSession(kept, second).load() == {"epoch": 1}
    second(torch.zeros(3, 4), Generator())
    assert (first.rounds, second.rounds) == (1, 2)
