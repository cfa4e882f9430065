"""A lower bound on ε from the error rates of thresholds: one score from each of many runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.auditing.base import FRONTIER, Correction, levels
from privkit.accountants.auditing.score_cuts import Cuts, lower, scores, upper
from privkit.array import Array
from privkit.empirical_bound import EmpiricalBound

_METHOD = "Clopper–Pearson limits of both error rates"


def epsilon_clopper_pearson(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float,
    delta: float,
    threshold: float | None = None,
    correction: Correction = "proven",
) -> EmpiricalBound:
    """Lower bound on ε from the error rates of thresholds; both tails count: accusing above and acquitting below.

    With error rates at most F (non-members accused) and M (members missed), ε ≥ ln((1 − M − δ)/F) and
    ε ≥ ln((1 − F − δ)/M). Both limits hold together, so looking at both tails costs nothing.

    Without a threshold two families of cuts share the error probability; both are proven. (1) Cuts at ranks fixed in
    advance, which accuse at most n/2^j − 1 of n non-members or miss at most as many members: that error rate is below
    an order statistic of uniform variables, whose quantile is the Clopper–Pearson limit; the other is binomial given
    the cut. (2) Any cut: n such order statistics bound an error rate wherever the cut is, ties included.

    Args:
        in_scores: [n] scores of members, finite.
        out_scores: [k] scores of non-members, finite.
        confidence: in (0, 1).
        delta: in [0, 1).
        threshold: fixed before the scores were seen; scores of at least this are guessed "member".
        correction: without a threshold: "proven" as above, or "as_published", as the reference library has it (upper
            tail at the corners of the ROC curve's convex hull, their number as the divisor); its `sound` is False.

    Raises:
        ValueError: if an argument is out of range, or scores are empty, NaN, infinite or booleans.

    Source: Jagielski, Ullman and Oprea 2020, §3 (one threshold); Nasr et al. 2021 (δ, both tails); the
    correction: derived.

    >>> leak = epsilon_clopper_pearson([1] * 90 + [0] * 10, [1] * 10 + [0] * 90, confidence=0.95, delta=0, threshold=1)
    >>> round(leak.epsilon, 4)
    1.5422
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    error, d = levels(confidence, delta)
    validate.choice("correction", correction, ("proven", "as_published"))
    objection = ""
    if threshold is None and correction == "as_published":
        cuts = Cuts.of(members, others).hull()
        for_missed = for_alarms = np.full(cuts.missed.size, error / (2 * cuts.missed.size))
        chosen, objection, method = "the threshold was chosen from these scores", FRONTIER, _METHOD
    else:
        cuts, for_missed, for_alarms, chosen, method = tried(members, others, error, threshold)
    kept = np.maximum(lower(members.size - cuts.missed, members.size, for_missed) - d, 0)
    spared = np.maximum(lower(others.size - cuts.alarms, others.size, for_alarms) - d, 0)
    with np.errstate(divide="ignore"):
        epsilons = np.log(kept) - np.log(upper(cuts.alarms, others.size, for_alarms))
        if not objection:
            epsilons = np.maximum(epsilons, np.log(spared) - np.log(upper(cuts.missed, members.size, for_missed)))
    best = int(np.argmax(epsilons))
    return EmpiricalBound(
        epsilon=max(0.0, float(epsilons[best])),
        delta=d,
        confidence=float(confidence),
        canaries=members.size + others.size,
        inserted=members.size,
        threshold=float(cuts.thresholds[best]) if epsilons[best] > 0 else None,
        method=method,
        assumptions=(
            "the scores of members are independent draws of one law, and so are those of non-members: one run of the "
            "mechanism each; canaries of one run are not independent (use epsilon_one_run)",
            "members and non-members come from neighboring data sets of the relation for which ε is claimed",
            chosen,
        ),
        sound=not objection,
        objection=objection,
        source="Jagielski, Ullman and Oprea 2020, §3; Nasr et al. 2021; correction: derived",
    )


def tried(members: Array, others: Array, error: float, threshold: float | None) -> tuple[Cuts, Array, Array, str, str]:
    """Cuts whose limits hold together, with the error probability of each: one threshold, or both families of cuts.

    Args:
        members: sorted scores.
        others: likewise.
        error: probability with which any of the limits may fail.
        threshold: fixed before the scores were seen; None for fixed ranks and every cut.

    Returns:
        Cuts; error probabilities of the limits on missed members and on alarms; what is assumed of the threshold; and
        the method in words.
    """
    if threshold is not None:
        cuts, half = Cuts.at(members, others, validate.real("threshold", threshold)), np.array([error / 2])
        return cuts, half, half, "the threshold was fixed before the scores were seen", _METHOD
    fixed, corners = Cuts.at_ranks(members, others), Cuts.of(members, others).hull()
    h, c = fixed.missed.size, corners.missed.size
    for_missed, for_alarms = (
        np.repeat([error / (4 * h), error / (4 * group.size)], [h, c]) for group in (members, others)
    )
    chosen = "the threshold may have been chosen from these scores: the correction covers every cut that was tried"
    return fixed + corners, for_missed, for_alarms, chosen, f"{_METHOD} at {h} fixed ranks and at every cut"
