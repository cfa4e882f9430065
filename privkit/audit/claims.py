"""The empirical audit: an attack's lower bound on ε beside what the accountant claims for the same run."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.auditing.one_run import ceiling_one_run, epsilon_one_run
from privkit.accountants.auditing.one_run_gdp import ceiling_one_run_gdp, epsilon_one_run_gdp
from privkit.certificate import Certificate
from privkit.empirical_bound import EmpiricalBound

EXACT_GAUSSIAN = "exact Gaussian profile"
"""How the method of a certificate begins whose ε(δ) is that of a Gaussian of known μ: the whole curve is claimed."""


def audit_one_run(
    scores: ArrayLike,
    inserted: ArrayLike,
    certificate: Certificate,
    *,
    confidence: float = 0.95,
    guesses: tuple[int, int] | None = None,
    delta: float | None = None,
    curve: Literal["none", "gaussian", "both"] = "none",
) -> EmpiricalBound:
    """Hold the scores of canaries of one run against the run's certificate.

    Args:
        scores: [K], one a canary, higher where the attack believes that it was in.
        inserted: bool [K], the fair coins by which canaries were in. Under a replace-one claim a canary that is not in
            has a counterpart in its place; a claim of add-or-remove needs that its place is empty.
        certificate: of the same run and release, for the unit that one canary is.
        confidence: of the bound, in (0, 1).
        guesses: numbers of "in" and "out" guesses fixed beforehand; None tries several and pays for it.
        delta: where the certificate claims nothing, the δ of the bound; otherwise the certificate's is taken.
        curve: "gaussian" where a whole Gaussian trade-off curve is claimed (`claims_a_curve`), as that of Gaussian
            noise on clipped data is, and not one (ε, δ) alone: a tighter bound, which needs `guesses`; it refutes that
            curve. "both" takes the larger of this and the one without a curve, each at half the significance; without
            `guesses` the curve is asked for a quarter of the canaries on either side, and scores that tie are ordered
            by the canaries' numbers.

    Raises:
        ValueError: if shapes differ, all canaries are on one side, a δ is given that is not the certificate's, guesses
            are missing, or a curve is to be tested where none is claimed.

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
    if curve == "gaussian" and guesses is None:
        raise ValueError('curve="gaussian" needs numbers of guesses that were fixed beforehand')
    if curve != "none" and not claims_a_curve(certificate):
        method = certificate.method or "none"
        raise ValueError(
            f'curve="{curve}" tests a whole Gaussian trade-off curve of known μ, and this certificate claims none (its '
            f'method: {method}); use curve="none"'
        )
    at = certificate.delta if certificate.delta is not None else delta if delta is not None else 0.0
    sure = validate.real("confidence", confidence, above=0, below=1)
    side = 1 - (1 - sure) / 2 if curve == "both" else sure
    given: dict[str, Any] = {"confidence": side, "delta": at}
    numbers = (int(coins.sum()), int((~coins).sum()))
    tried: list[tuple[EmpiricalBound, float]] = []
    if curve != "gaussian":
        bound = epsilon_one_run(values[coins], values[~coins], guesses=guesses, **given)
        tried.append((bound, ceiling_one_run(*numbers, guesses=guesses, **given)))
    if curve != "none":
        fixed = guesses or (max(1, len(coins) // 4),) * 2
        if curve == "both":
            values = np.argsort(np.argsort(values, kind="stable")).astype(np.float64)
        bound = epsilon_one_run_gdp(values[coins], values[~coins], guesses=fixed, **given)
        tried.append((bound, ceiling_one_run_gdp(*numbers, guesses=fixed, **given)))
    best = max((bound for bound, _ in tried), key=lambda bound: bound.epsilon)
    ceiling = max(most for _, most in tried)
    found = replace(best, confidence=sure, claimed=certificate.epsilon, ceiling=ceiling)
    return replace(found, statement=_statement(found))


def _statement(bound: EmpiricalBound) -> str:
    """The outcome in words. A bound below a claim proves nothing in its favor."""
    delta, sure = bound.delta, f"({100 * bound.confidence:g} % confidence, for this row alone)"
    found = f"ε >= {bound.epsilon:.4g}"
    of = "" if bound.mu is None else ", as a Gaussian trade-off curve like the claimed one,"
    most = f"at most ε >= {bound.ceiling:.4g} could have been shown with {bound.canaries} canaries"
    if bound.claimed == inf:
        return f"nothing is claimed; this attack shows {found} at δ = {delta:g}; {most} {sure}"
    claim = f"the claimed ε = {bound.claimed:.4g} at δ = {delta:g}"
    if bound.refuted:
        return f"{found}{of} refutes {claim} {sure}"
    if bound.idle:
        return f"{found}{of} does not refute {claim}; {most}: this audit cannot refute so large a claim {sure}"
    return f"{found}{of} does not refute {claim}; {most} {sure}"


def claims_a_curve(certificate: Certificate) -> bool:
    """Whether a certificate claims the whole trade-off curve of a Gaussian, whose μ its ε and δ then tell.

    >>> from privkit.accountants.base import no_protection
    >>> claims_a_curve(no_protection())
    False
    """
    proven = certificate.kind == "differential_privacy" and certificate.sound
    return proven and certificate.method.startswith(EXACT_GAUSSIAN)


def uncovered(certificate: Certificate, lower_model: object, known: frozenset[str]) -> tuple[str, ...]:
    """What an adversary holds that the claim does not cover, in at most one sentence.

    A claim for a client whose lower segment trains on raw data is for those who see its releases alone. A white box
    holds the segment itself, and answers to an adversary's own inputs come from it, too.

    Args:
        certificate: of the run.
        lower_model: as in `ReleaseCount`.
        known: fields of an observation that the attack is given.

    >>> uncovered(Certificate(kind="nothing", statement=""), "trained", frozenset({"lower"}))
    ()
    """
    if certificate.kind != "differential_privacy" or lower_model != "trained":
        return ()
    more = {"lower": "the lower segment itself", "query": "answers of the lower segment to inputs of its own"}
    held = " and ".join(text for field, text in more.items() if field in known)
    if not held:
        return ()
    return (
        f"the claim covers who sees releases of the clients' records alone; this adversary also has {held}, "
        "which was trained on raw records: what it learns from that is not in ε",
    )
