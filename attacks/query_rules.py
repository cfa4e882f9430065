"""What a threat model lets an adversary ask of the defended edge."""

from __future__ import annotations

from dataclasses import dataclass

from privkit.constraints import Checked, Whole


@dataclass(frozen=True, kw_only=True)
class QueryRules(Checked):
    """Rules of the adversary's queries: its own images in, their release out, one round a query.

    Attributes:
        rounds: that it may send, at most, ≥ 0; None for any number.
        copies: whether a round may hold an image twice.
    """

    rounds: Whole | None = None
    copies: bool = True

    def allow(self, rounds: int) -> bool:
        """Whether so many rounds may be sent.

        >>> QueryRules(rounds=2).allow(3), QueryRules().allow(3)
        (False, True)
        """
        return self.rounds is None or rounds <= self.rounds


ANY_QUERIES = QueryRules()
"""As many rounds as an attack likes, copies allowed."""
