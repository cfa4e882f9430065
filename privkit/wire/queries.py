"""Counts the adversary's queries, and enforces the threat model's limits on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, Query, QueryResult, Session
from privkit.attacks.query_rules import QueryRules
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded


class Queries:
    """A `privkit.attacks.base.Query` that counts its `rounds` and refuses queries that the threat model forbids."""

    def __init__(self, ask: Query, rules: QueryRules) -> None:
        self._ask, self._rules, self.rounds = ask, rules, 0

    def __call__(self, images: Tensor, draws: Generator) -> QueryResult:
        """Send one round of images and return its release. Raises `NotApplicable` if the threat model allows no further
        round, or if it forbids copies and two images are equal."""
        if self._rules.rounds is not None and self.rounds >= self._rules.rounds:
            raise NotApplicable(
                f"the threat model allows {self._rules.rounds:,} rounds of own images, and the attack asks for more: "
                "allow more with --queries rounds=…, or give the attack fewer epochs"
            )
        if not self._rules.copies and len(images.unique(dim=0)) < len(images):
            raise NotApplicable(
                "the threat model forbids copies of one image in a round, and the attack sends some: allow them with "
                "--queries copies=true, or choose an attack that sends none"
            )
        self.rounds += 1
        with seeded(images.device, derive(self.rounds, "query", "module")):  # lower segments may draw, too
            return self._ask(images, draws)


class CountingSession(Session):
    """A session that also saves the number of query rounds, so that a resumed attack continues the count."""

    def __init__(self, session: Session, queries: Queries) -> None:
        self._session, self._queries = session, queries

    def load(self) -> dict[str, Any] | None:
        if (saved := self._session.load()) is None:
            return None
        self._queries.rounds = saved["queries"]
        state: dict[str, Any] = saved["attack"]
        return state

    def save(self, state: dict[str, Any]) -> None:
        self._session.save({"queries": self._queries.rounds, "attack": state})

    def keep(self, state: dict[str, Any]) -> None:
        self._session.keep({"queries": self._queries.rounds, "attack": state})

    def report(self, done: int, total: int, value: float) -> None:
        self._session.report(done, total, value)

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        return self._session.goes_on(epochs, curve)
