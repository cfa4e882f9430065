"""What an accountant returns: a certificate that says what is proven, and what is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is proven about one mechanism.

    Attributes:
        kind: "nothing", "permutation_count" or "differential_privacy".
        statement: the claim in one sentence, together with what it does not say.
        epsilon: smallest proven ε, in nats; `inf` where no (ε, δ < 1) is proven.
        delta: the δ that goes with it; None where ε is infinite.
        quantities: named numbers behind the statement (log10 of counts, shares), JSON-able.
        assumptions: what must hold for the statement, one sentence each.
        source: paper and equation.
    """

    kind: Literal["nothing", "permutation_count", "differential_privacy"]
    statement: str
    epsilon: float = inf
    delta: float | None = None
    quantities: dict[str, float] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    source: str = ""


def no_protection() -> Certificate:
    """Certificate of an unprotected release: nothing is proven.

    Source: by definition; the smashed data leave the client as they are.

    >>> no_protection().epsilon
    inf
    """
    return Certificate(
        kind="nothing",
        statement="nothing is proven: the smashed data leave the client as they are; no differential privacy",
        source="by definition",
    )
