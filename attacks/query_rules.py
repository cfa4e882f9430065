"""The queries to the defended clients that a threat model allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from privkit.constraints import Checked, Whole


@dataclass(frozen=True, kw_only=True)
class QueryRules(Checked):
    """The threat model's limits on queries. In a query, the adversary sends one round of its own images through the
    defended clients, and gets the smashed data that they release."""

    rounds: Whole | None = None  # largest number of rounds, ≥ 0; None for any number
    copies: bool = True  # whether a round may contain an image twice

    def allow(self, rounds: int) -> bool:
        """Whether the adversary may send this number of rounds in total."""
        return self.rounds is None or rounds <= self.rounds


@runtime_checkable
class Counted(Protocol):
    """A query function that counts the rounds that it answered."""

    rounds: int  # number of rounds sent so far


ANY_QUERIES = QueryRules()  # any number of rounds, copies allowed
