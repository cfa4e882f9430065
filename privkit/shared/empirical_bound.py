"""A lower bound on ε from an attack's success; audits return it, and result rows show it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, kw_only=True)
class EmpiricalBound:
    """A statistical lower bound on ε from an attack's scores of canaries (records inserted or left out at random).

    Attributes:
        epsilon: the lower bound, ≥ 0. If a mechanism is (ε′, δ)-DP with a smaller ε′, its scores are this good with
            probability at most 1 − confidence. 0 means that nothing is shown.
        delta: the δ of the bound.
        confidence: probability in (0, 1), over the random scores, that the bound holds.
        canaries: number of scores from which the bound is computed, of members (inserted) and non-members together.
        inserted: number of these scores that belong to members.
        threshold: smallest score that was guessed "member"; None if there were no guesses.
        guesses: for the method `epsilon_one_run`, the numbers of "member" and "non-member" guesses; None for other
            methods.
        mu: lower bound on μ of a Gaussian trade-off curve; None if it was not computed.
        curve_epsilon: the accountant's ε for the trade-off curve that the scores support, which is compared with the
            claim instead of `epsilon`. This ε may be larger than `epsilon`, since an accountant may overestimate ε.
            None if not computed.
        method: name of the computation, in words.
        assumed: the family of trade-off curves that `epsilon` assumes without a check; empty if `epsilon` holds for
            every (ε, δ)-DP mechanism, None if this is unknown.
        assumptions: conditions of the bound, one sentence each.
        sound: False if the number is reproduced as published although it is unproven.
        objection: the reason in one sentence, if `sound` is False.
        source: paper and theorem.
        claimed: the claimed ε; infinite if nothing is claimed.
        ceiling: the largest bound that any scores of this number of canaries can give; None if it was not computed.
        statement: a sentence that compares the bound with the claim; empty without a claim.
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
        """The lower bound that is compared with the claimed ε: `curve_epsilon` if given, else `epsilon`."""
        return self.epsilon if self.curve_epsilon is None else self.curve_epsilon

    @property
    def refuted(self) -> bool:
        """Whether the bound refutes the claim at its confidence, so that the audit fails."""
        return self.held > self.claimed

    @property
    def idle(self) -> bool:
        """Whether even a perfect attack on these canaries could not refute the claim; the audit then shows nothing."""
        return not self.refuted and self.ceiling is not None and self.ceiling <= self.claimed
