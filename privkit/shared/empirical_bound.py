"""A lower bound on ε that follows from an attack's success; audits return it, and rows show it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, kw_only=True)
class EmpiricalBound:
    """A lower bound on ε, supported by an attack's scores.

    Attributes:
        epsilon: the bound. A mechanism with (ε′, δ)-DP for a smaller ε′ gives such scores with probability at most 1 −
            confidence. A bound of 0 carries no information.
        delta: the δ of the bound.
        confidence: probability over the draw of the scores that the bound holds.
        canaries: number of scores on which the bound rests, of members and of non-members.
        inserted: number of these scores that belong to members.
        threshold: least score that was guessed "member" for the bound; None if there were no guesses.
        guesses: numbers of "member" and "non-member" guesses (`epsilon_one_run`); None for other methods.
        mu: lower bound on μ of a Gaussian trade-off curve; None if it was not computed.
        curve_epsilon: ε that the accountant charges for the curve that was found; it is compared with the claim. None
            if it equals `epsilon`. It may be larger, since a mechanism may lose less than it is charged.
        method: description of the computation.
        assumed: the unchecked family of trade-off curves on which `epsilon` rests, in a few words; empty if it holds
            for every (ε, δ)-DP mechanism, and None if this is unknown.
        assumptions: what must hold, one sentence each.
        sound: False if the number is reproduced as published although it is unproven.
        objection: the reason in one sentence, if `sound` is False.
        source: paper and theorem.
        claimed: the claimed ε; inf if nothing is claimed.
        ceiling: the largest bound that this number of canaries can reach, whatever their scores; None if not computed.
        statement: the bound beside the claim, in a sentence; empty without a claim.
    """

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    inserted: int
    threshold: float | None
    guesses: tuple[int, int] | None = None
    mu: float | None = None
    curve_epsilon: float | None = None
    method: str
    assumed: str | None = None
    assumptions: tuple[str, ...]
    sound: bool = True
    objection: str = ""
    source: str
    claimed: float = inf
    ceiling: float | None = None
    statement: str = ""

    def __post_init__(self) -> None:
        assert 0 <= self.epsilon < inf, self.epsilon
        assert self.sound == (not self.objection)

    @property
    def held(self) -> float:
        """The ε that is compared with the claimed ε."""
        return self.epsilon if self.curve_epsilon is None else self.curve_epsilon

    @property
    def refuted(self) -> bool:
        """Whether the bound refutes the claim with its confidence; if so, the audit fails."""
        return self.held > self.claimed

    @property
    def idle(self) -> bool:
        """Whether even a perfect attack on these canaries could not refute the claim, so the audit shows nothing."""
        return not self.refuted and self.ceiling is not None and self.ceiling <= self.claimed
