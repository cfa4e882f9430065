"""The empirical audit: compares an attack's lower bound on ε with the accountant's claim for the same run."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isclose
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants.auditing.families import GAUSSIAN, Family, Gaussian, ScaledNoise
from privkit.accountants.auditing.independent import ceiling_independent, epsilon_independent
from privkit.accountants.auditing.one_run import (
    ceiling_one_run,
    ceiling_one_run_curve,
    epsilon_one_run,
    epsilon_one_run_curve,
    planned_guesses,
)
from privkit.accountants.region import region
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound
from privkit.shared.limits import Limits
from privkit.shared.rounding import rounded_down

_EXACT_GAUSSIAN = "exact Gaussian profile"
"""Start of a certificate's `method` if its ε(δ) is that of a Gaussian with known μ. Its whole curve is then claimed."""
_CURVE_BELOW = 1e3
"""For a claimed ε of this size or more, no curve is tested: no audit could refute it, and composition takes seconds."""


def audit_one_run(
    scores: ArrayLike,
    inserted: ArrayLike,
    certificate: Certificate,
    *,
    confidence: float = 0.95,
    guesses: tuple[int, int] | None = None,
    delta: float | None = None,
    family: Family | None = None,
    independent: bool = False,
) -> EmpiricalBound:
    """Compare a lower bound on ε, from an attack's scores of canaries (records inserted at random), with a certificate.

    Args:
        scores: [K], higher for a canary that was more likely inserted. The canary's number decides between equal
            scores.
        inserted: bool [K], drawn by fair coins. For a replace-one claim, a counterpart takes the place of an omitted
            canary; for add-or-remove-one, the place of an omitted canary stays empty.
        certificate: the run's claim about this release; its unit of privacy (record or client) must be what a canary
            is.
        confidence: the bound's confidence, in (0, 1); at least 1/2 if `independent`.
        guesses: (a, b), fixed beforehand: the a canaries with the highest scores are guessed "inserted", and the b
            with the lowest "omitted"; ignored if `independent`. None chooses a and b from K and the claimed curve;
            without a claimed curve, several choices are tried, which makes the bound smaller.
        delta: δ of the bound, if the certificate claims nothing; otherwise the certificate's δ is used.
        family: the family of trade-off curves that contains the claimed curve (`claimed_family`). Testing a whole curve
            is stronger than testing one (ε, δ). If the certificate has a lower bound on ε, the bound assumes this
            family, as the result's `assumed` says; otherwise the bound holds for every (ε, δ)-DP mechanism.
        independent: whether the score of each canary depends only on the canary's coin and noise. The bound is then
            much tighter, and canaries with scores ≥ 0 are guessed "inserted".

    Source: `epsilon_independent` if `independent`; otherwise Steinke, Nasr and Jagielski 2023, Theorem 5.2;
    Mahloujifar, Melis and Chaudhuri 2025. Their proofs flip one coin at a time, so they hold for every pair of
    neighboring inputs.
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(inserted)
    assert values.shape == coins.shape
    assert coins.dtype == bool
    assert certificate.delta is None or delta in (None, certificate.delta)
    assert _claims_a_curve(certificate) or not isinstance(family, Gaussian)
    at = certificate.delta if certificate.delta is not None else delta or 0.0
    inserted_values, left_out = values[coins], values[~coins]
    given: dict[str, Any] = {"confidence": confidence, "delta": at}

    def test(guesses: tuple[int, int] | None, family: Family | None) -> tuple[EmpiricalBound, float]:
        """Compute the bound, and the largest bound that perfect guesses of the same number of canaries could give."""
        if independent:  # all canaries are guessed
            bound = epsilon_independent(inserted_values, left_out, threshold=0.0, family=family, **given)
            return bound, ceiling_independent(len(coins), family=family, **given)
        numbers = len(inserted_values), len(left_out)
        if family is None or guesses is None:
            bound = epsilon_one_run(inserted_values, left_out, guesses=guesses, **given)
            return bound, ceiling_one_run(*numbers, guesses=guesses, **given)
        ranks = np.argsort(np.argsort(values, kind="stable")).astype(np.float64)
        bound = epsilon_one_run_curve(ranks[coins], ranks[~coins], guesses=guesses, family=family, **given)
        return bound, ceiling_one_run_curve(*numbers, guesses=guesses, family=family, **given)

    planned = guesses
    if family is not None and not independent and guesses is None:
        strength = family.strength(certificate.epsilon, at)
        planned = planned_guesses(len(coins), strength, confidence=confidence, family=family)
    bound, ceiling = test(planned, family)
    if family is not None and not _bounded_below(certificate, family):
        bound = replace(test(guesses, None)[0], curve_epsilon=bound.held)
    found = replace(bound, claimed=certificate.epsilon, ceiling=ceiling)
    return replace(found, statement=_statement(found, family))


def _bounded_below(certificate: Certificate, family: Family) -> bool:
    """Whether the ε of a trade-off curve in `family` is also a lower bound on the ε of any mechanism with this curve.

    For the Gaussian family, the certificate's ε must equal the certificate's lower bound, because μ is computed from
    this ε.
    """
    if certificate.lower is None or not isinstance(family, Gaussian):
        return certificate.lower is not None
    return isclose(certificate.lower, certificate.epsilon, rel_tol=1e-9)


def _statement(bound: EmpiricalBound, family: Family | None) -> str:
    """Describe the outcome in a sentence. A bound below the claimed ε is not called evidence for the claim."""
    delta, sure = bound.delta, f"({100 * bound.confidence:g} % confidence, for this row alone)"
    charged = family is not None and not bound.assumed
    shown = f"{'a charge of ' if charged else ''}ε >= {bound.ceiling:.4g}"
    most = f"{bound.canaries} canaries could have shown {shown} at most"
    found = f"ε >= {rounded_down(bound.epsilon, 4)}" + (f" (assumed: {bound.assumed})" if bound.assumed else "")
    if bound.claimed == inf:
        return f"nothing is claimed; this attack shows {found} at δ = {delta:g}; {most} {sure}"
    if charged:
        found += f" holds for any mechanism; the scores are compatible only with curves of ε >= {bound.held:.4g}, which"
    claim = f"the claimed ε = {bound.claimed:.4g} at δ = {delta:g}{' with its whole curve' if family else ''}"
    if bound.refuted:
        return f"{found} refutes {claim} {sure}"
    if bound.idle:
        return f"{found} does not refute {claim}; {most}: this audit cannot refute so large a claim {sure}"
    return f"{found} does not refute {claim}; {most} {sure}"


def claimed_family(certificate: Certificate, mechanism: SplitMechanism | None) -> Family | None:
    """The family of trade-off curves that contains the certificate's curve; None if no curve is claimed or testable."""
    if _claims_a_curve(certificate):
        return GAUSSIAN
    testable = _proven(certificate) and certificate.epsilon < _CURVE_BELOW
    if not testable or mechanism is None or mechanism.noise.distribution.answers:
        return None
    return ScaledNoise(mechanism=mechanism)


def limits_of(certificate: Certificate, mechanism: SplitMechanism | None) -> Limits | None:
    """Limits on any attack, from the mechanism's trade-off curve; None without a mechanism or a proven ε < 1000."""
    testable = _proven(certificate) and certificate.epsilon < _CURVE_BELOW
    return region(mechanism).limits() if testable and mechanism is not None else None


def _proven(certificate: Certificate) -> bool:
    return certificate.kind == "differential_privacy" and certificate.sound


def _claims_a_curve(certificate: Certificate) -> bool:
    """Whether the whole trade-off curve of a Gaussian mechanism is claimed; ε and δ then determine its μ."""
    return _proven(certificate) and certificate.method.startswith(_EXACT_GAUSSIAN)


def uncovered(certificate: Certificate, lower_model: object, known: frozenset[str]) -> tuple[str, ...]:
    """Name the adversary's knowledge that the claim does not cover, in at most one sentence.

    If the lower segment is trained on raw data, the claim covers only adversaries who see nothing but releases.
    """
    if certificate.kind != "differential_privacy" or lower_model != "trained":
        return ()
    more = {"lower": "the lower segment itself", "query": "answers of the lower segment to the adversary's own inputs"}
    held = " and ".join(text for field, text in more.items() if field in known)
    told = (
        f"the claim is for an adversary who sees only releases of the clients' records; this one also has {held}, "
        "which was trained on raw records: ε does not cover what it learns from that"
    )
    return (told,) if held else ()
