"""The empirical audit: an attack's lower bound on ε beside what the accountant claims for the same run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants.auditing import EmpiricalBound, epsilon_one_run
from privkit.accountants.auditing_gdp import epsilon_one_run_gdp
from privkit.accountants.base import Certificate


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A claim, and what an attack's success says of it.

    Attributes:
        claimed: ε of the certificate; inf where nothing is claimed.
        bound: of the canaries' scores, at the certificate's δ.
        canaries: how many there were.
        inserted: how many of them were in.
    """

    claimed: float
    bound: EmpiricalBound
    canaries: int
    inserted: int

    @property
    def refuted(self) -> bool:
        """Whether the claim is false with the bound's confidence: the audit fails."""
        return self.bound.epsilon > self.claimed

    @property
    def sentence(self) -> str:
        """The outcome in words. A bound below a claim proves nothing in its favor."""
        found, delta = self.bound.epsilon, self.bound.delta
        if self.claimed == float("inf"):
            return f"nothing is claimed; this attack shows ε >= {found:.4g} at δ = {delta:g}"
        verb = "refutes" if self.refuted else "does not refute"
        return f"ε >= {found:.4g} {verb} the claimed ε = {self.claimed:.4g} at δ = {delta:g}"


def audit_one_run(
    scores: ArrayLike,
    inserted: ArrayLike,
    certificate: Certificate,
    *,
    confidence: float = 0.95,
    guesses: tuple[int, int] | None = None,
    delta: float | None = None,
    curve: Literal["none", "gaussian"] = "none",
) -> Audit:
    """Hold the scores of canaries of one run against the run's certificate.

    Args:
        scores: [K], one a canary, higher where the attack believes that it was in.
        inserted: bool [K], the fair coins by which canaries were in. Under a replace-one claim a canary that is not in
            has a counterpart in its place; a claim of add-or-remove needs that its place is empty.
        certificate: of the same run and release, for the unit that one canary is.
        confidence: of the bound, in (0, 1).
        guesses: numbers of "in" and "out" guesses fixed beforehand; None tries several and pays for it.
        delta: where the certificate claims nothing, the δ of the bound; otherwise the certificate's is taken.
        curve: "gaussian" where a whole Gaussian trade-off curve is claimed, as that of Gaussian noise on clipped data
            is, and not one (ε, δ) alone: a tighter bound, which needs `guesses`.

    Raises:
        ValueError: if shapes differ, all canaries are on one side, a δ is given that is not the certificate's, or
            guesses are missing.

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2; Mahloujifar, Melis and Chaudhuri 2025. Their proofs flip one
    coin at a time, so that they hold for any pair of inputs that the claim calls neighbors.

    >>> claim = Certificate(kind="differential_privacy", statement="", epsilon=1.0, delta=1e-5)
    >>> coins = np.arange(200) % 2 == 0
    >>> audit_one_run(coins.astype(float), coins, claim, guesses=(100, 100)).refuted
    True
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(inserted)
    if values.ndim != 1 or coins.shape != values.shape or coins.dtype != bool:
        raise ValueError(
            f"scores and inserted must be [K] and bool [K], got shapes {list(values.shape)} and {list(coins.shape)} "
            f"({coins.dtype})"
        )
    if certificate.delta is not None and delta not in (None, certificate.delta):
        raise ValueError(f"the certificate is for delta={certificate.delta:g}, so that delta={delta} compares nothing")
    at = certificate.delta if certificate.delta is not None else delta if delta is not None else 0.0
    if curve == "none":
        bound = epsilon_one_run(values[coins], values[~coins], confidence=confidence, delta=at, guesses=guesses)
    elif guesses is None:
        raise ValueError('curve="gaussian" needs numbers of guesses that were fixed beforehand')
    else:
        bound = epsilon_one_run_gdp(values[coins], values[~coins], confidence=confidence, delta=at, guesses=guesses)
    return Audit(claimed=certificate.epsilon, bound=bound, canaries=len(coins), inserted=int(coins.sum()))
