"""A lower bound on ε from the error rates of score thresholds, with one score from each of many runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.auditing.families import Family, Gaussian, largest_rejected, stated
from privkit.accountants.auditing.score_cuts import Cuts, levels, lower, scores, upper
from privkit.shared.array import Array
from privkit.shared.empirical_bound import EmpiricalBound

_METHOD = "Clopper–Pearson limits of both error rates"


def epsilon_clopper_pearson(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float,
    delta: float,
    threshold: float | None = None,
    family: Family | None = None,
) -> EmpiricalBound:
    """Compute a lower bound on ε from the error rates of score thresholds, with one score from each of many runs.

    Let F be an upper limit on the rate of non-members whose score is at or above the threshold, and M an upper limit on
    the rate of members below it. Then ε ≥ ln((1 − M − δ)/F) and ε ≥ ln((1 − F − δ)/M). Both limits hold together, so
    using both inequalities costs no confidence. A claimed trade-off curve is ruled out if it allows no true positive
    rate of 1 − M at the false positive rate F. So a Gaussian curve has μ ≥ Φ⁻¹(1 − F) − Φ⁻¹(M).

    Without a threshold, two sets of thresholds are tried. Each set gets half of the error probability.

    1. Thresholds at ranks fixed in advance: each has at most ⌈n/2^j⌉ − 1 of n non-members at or above it, or at most
       ⌈n/2^j⌉ − 1 of n members below it. The rate of this error is below an order statistic of n uniform variables,
       whose quantile is the Clopper–Pearson limit. Given the threshold, the number of errors of the other kind is
       binomial.
    2. All thresholds. Only n order statistics can bound an error rate on n scores, so the error probability is divided
       by n.

    Args:
        in_scores, out_scores: scores of n runs with the record ("members"), and of k runs without it.
        confidence: confidence of the bound, in (0, 1).
        delta: δ in [0, 1). A Gaussian family needs δ > 0, since its ε is infinite at δ = 0.
        threshold: a finite number, fixed before the scores were seen. A score of at least this is guessed "member". If
            None, many thresholds are tried.
        family: the claimed family of trade-off curves; None for any (ε, δ)-DP mechanism.

    Source: Jagielski, Ullman and Oprea 2020, §3 (one threshold); Nasr et al. 2021 (δ, both tails); Nasr et al. 2023, §4
    (a Gaussian curve); the correction: derived.

    >>> scores = [1] * 90 + [0] * 10, [1] * 10 + [0] * 90
    >>> round(epsilon_clopper_pearson(*scores, confidence=0.95, delta=0, threshold=1).epsilon, 4)
    1.5422
    >>> leak = epsilon_clopper_pearson(*scores, confidence=0.95, delta=1e-5, threshold=1, family=Gaussian())
    >>> round(leak.mu, 4), round(leak.epsilon, 4), leak.assumed
    (1.8597, 9.1439, 'a Gaussian curve')
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    error, d = levels(confidence, delta)
    curves = stated(family, d)
    cuts, for_missed, for_alarms, chosen, method = tried(members, others, error, threshold)
    accused, missed = upper(cuts.alarms, others.size, for_alarms), upper(cuts.missed, members.size, for_missed)
    if family is not None:

        def beyond(strength: float) -> Array:  # above 0 at a threshold that refutes the curve
            return 1 - missed - curves.at(strength).true_positives(accused)

        found = largest_rejected(lambda strength: bool(np.any(beyond(strength) > 0)), curves.precision)
        best = int(np.argmax(beyond(found)))
    else:
        kept = np.maximum(lower(members.size - cuts.missed, members.size, for_missed) - d, 0)
        spared = np.maximum(lower(others.size - cuts.alarms, others.size, for_alarms) - d, 0)
        with np.errstate(divide="ignore"):
            epsilons = np.maximum(np.log(kept) - np.log(accused), np.log(spared) - np.log(missed))
        best = int(np.argmax(epsilons))
        found = max(0.0, float(epsilons[best]))
    return EmpiricalBound(
        epsilon=curves.lower(found, d),
        curve_epsilon=curves.epsilon(found, d),
        delta=d,
        confidence=float(confidence),
        canaries=members.size + others.size,
        inserted=members.size,
        threshold=float(cuts.thresholds[best]) if found > 0 else None,
        mu=found if isinstance(family, Gaussian) else None,
        method=method if family is None else f"{method}: {family.said(found)}",
        assumed=curves.assumed,
        assumptions=(
            curves.assumption,
            "members' scores are independent and identically distributed, and so are non-members': each comes from "
            "its own run of the mechanism (canaries of one run are not independent: use epsilon_one_run)",
            "members and non-members come from neighboring data sets of the relation for which ε is claimed",
            chosen,
        ),
        source="Jagielski, Ullman and Oprea 2020, §3; Nasr et al. 2021"
        + ("" if family is None else "; Nasr et al. 2023, §4")
        + "; correction: derived",
    )


def ceiling_many_runs(
    members: int, others: int, *, confidence: float, delta: float, family: Family | None = None
) -> float:
    """The largest bound of `epsilon_clopper_pearson` for `members` ≥ 1 runs with the record and `others` ≥ 1 runs
    without it, reached if all members score above all non-members. The other arguments are as in that function.

    >>> round(ceiling_many_runs(100, 100, confidence=0.95, delta=1e-5), 2)
    2.6
    >>> round(ceiling_many_runs(100, 100, confidence=0.95, delta=1e-5, family=Gaussian()), 2)
    16.43
    """
    a, b = validate.whole("members", members), validate.whole("others", others)
    perfect = epsilon_clopper_pearson(np.ones(a), np.zeros(b), confidence=confidence, delta=delta, family=family)
    return perfect.held


def tried(members: Array, others: Array, error: float, threshold: float | None) -> tuple[Cuts, Array, Array, str, str]:
    """Choose J thresholds on sorted scores. Returns five results: the thresholds with their error counts; the error
    probabilities, [J], of the limits on missed members; the error probabilities, [J], of the limits on false alarms;
    the assumption about the threshold; and the method in words.

    With probability 1 − `error`, the Clopper–Pearson limits of all error rates hold together.
    """
    if threshold is not None:
        cuts, half = Cuts.at(members, others, validate.real("threshold", threshold)), np.array([error / 2])
        return cuts, half, half, "the threshold was fixed before the scores were seen", _METHOD
    fixed, corners = Cuts.at_ranks(members, others), Cuts.of(members, others).hull()
    h, c = fixed.missed.size, corners.missed.size
    for_missed, for_alarms = (
        np.repeat([error / (4 * h), error / (4 * group.size)], [h, c]) for group in (members, others)
    )
    chosen = (
        "the threshold may have been chosen from these scores: the correction covers every threshold that was tried"
    )
    return fixed + corners, for_missed, for_alarms, chosen, f"{_METHOD} at {h} fixed ranks and at every threshold"
