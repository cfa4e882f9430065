"""The certificate, which states a proven claim about privacy; accountants return it, and result rows show it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

Relation = Literal["replace_one", "add_or_remove_one"]
Unit = Literal["record", "client"]
Standing = Literal["proven", "declared"]


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is proven (or claimed by a user) about the privacy of one mechanism.

    Attributes:
        kind: "nothing"; "permutation_count" (the number of equally likely orders of tokens or, for unequal
            probabilities, the number of equally likely orders that are as hard to guess); or "differential_privacy".
        statement: the claim in one sentence, with its limits.
        standing: "proven" if privkit itself ran the mechanism, or if only a mechanism was given, without a release;
            "declared" if a user claims that a release came from this mechanism, or if privkit ran it and the claim
            rests on a user's own defense or network (docs/explanation/claims.md).
        epsilon: smallest proven ε ≥ 0, in nats; infinite if nothing is proven for any δ < 1.
        delta: the δ of `epsilon`; None if ε is infinite.
        lower: a proven lower bound on the mechanism's true ε at this δ; None if unknown.
        method: the method that gave `epsilon`, in words; empty if no differential privacy is claimed.
        order: the Rényi order of the bound; None if the method uses no order.
        at_grid_edge: whether `order` is the first or last order tried, so that a wider range may give a smaller ε.
        relation: neighboring relation of the differential privacy: "replace_one" (one record or client is exchanged for
            another) or "add_or_remove_one"; None if no differential privacy is claimed.
        unit: what neighboring datasets differ in, a record or a client; None if no differential privacy is claimed.
        covers: "release" (the smashed data, and labels if they are sent) or "labels" alone.
        sound: whether the claim is proven; False for a formula that is reproduced as published although it is no bound.
        objection: the reason in one sentence, if `sound` is False.
        quantities: numbers from which the statement follows, by name, such as log10 of a number of permutations.
        assumptions: conditions of the statement, one sentence each.
        source: paper and equation.
        versions: library -> version, for the libraries that took part in the computation.
    """

    kind: Literal["nothing", "permutation_count", "differential_privacy"]
    statement: str
    standing: Standing = "proven"
    epsilon: float = inf
    delta: float | None = None
    lower: float | None = None
    method: str = ""
    order: float | None = None
    at_grid_edge: bool = False
    relation: Relation | None = None
    unit: Unit | None = None
    covers: Literal["release", "labels"] = "release"
    sound: bool = True
    objection: str = ""
    quantities: dict[str, float] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    source: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Assertions, since only a bug in privkit makes a certificate that contradicts itself.
        assert self.epsilon >= 0, self.epsilon  # false for NaN, too
        assert self.sound == (not self.objection)
        assert self.lower is None or self.lower <= self.epsilon * (1 + 1e-9) + 1e-12 or not self.sound

    def declared(self, *assumptions: str) -> Certificate:
        """Copy the certificate with the standing "declared", for a claim that rests on a user's statement.

        A certificate of the kind "nothing" is returned unchanged.

        Args:
            *assumptions: sentences that say who makes the claim, and what was measured.

        >>> Certificate(kind="permutation_count", statement="16! orders").declared("it says so").statement
        'declared, not proven: 16! orders'
        """
        if self.kind == "nothing":
            return self
        return replace(
            self,
            standing="declared",
            statement=f"declared, not proven: {self.statement}",
            lower=None,  # the lower bound holds only if the mechanism is really this one
            assumptions=(*self.assumptions, *assumptions),
        )
