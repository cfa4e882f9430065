"""What an attack's success rules out: a lower bound on ε, as auditing returns it and as rows show it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, kw_only=True)
class EmpiricalBound:
    """A lower bound on ε that scores support.

    Attributes:
        epsilon: no mechanism that is (ε′, δ)-DP with a smaller ε′ gives such scores, save with probability
            1 − confidence; 0 says nothing, neither for nor against the mechanism.
        delta: the δ that goes with it.
        confidence: probability over the draw of the scores that the bound holds.
        canaries: scores that the bound rests on, of members and of non-members.
        inserted: how many of them are of members.
        threshold: a score of at least this was guessed "member" where the bound was found; None where no guess was.
        guesses: numbers of "member" and "non-member" guesses there (`epsilon_one_run`); None elsewhere.
        mu: lower bound on μ of a Gaussian trade-off curve, where that is what was computed; None elsewhere.
        curve_epsilon: ε that the accountant charges the curve that was found, which is held against the claim; None
            where that is `epsilon`. It may be larger: no mechanism need lose all that it is charged.
        method: what was computed, in words.
        assumed: the family of trade-off curves that `epsilon` rests on and nobody checked, in a few words; empty where
            it holds for every (ε, δ)-DP mechanism, and None in rows of version 5, which did not say.
        assumptions: what must hold, one sentence each.
        sound: False where the number is reproduced as published although it is not proven.
        objection: one sentence why, where `sound` is False.
        source: paper and theorem.
        claimed: ε of the claim that the bound is held against; inf where nothing is claimed.
        ceiling: the most that so many canaries can hold against a claim, whatever they score; None where it was not
            asked.
        statement: the bound beside the claim, in a sentence; empty where there is no claim.
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
        """What is held against the claim."""
        return self.epsilon if self.curve_epsilon is None else self.curve_epsilon

    @property
    def refuted(self) -> bool:
        """Whether the claim is false with the bound's confidence: the audit fails."""
        return self.held > self.claimed

    @property
    def idle(self) -> bool:
        """Whether not even a perfect attack on so many canaries could refute the claim: the audit says nothing."""
        return not self.refuted and self.ceiling is not None and self.ceiling <= self.claimed
