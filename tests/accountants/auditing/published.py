"""Lower bounds on ε as the reference library has them: not proven, since the scores choose the threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants.auditing.one_run import _largest_epsilon, _Trial
from privkit.accountants.auditing.score_cuts import Cuts, lower, scores, upper


def epsilon_clopper_pearson(in_scores: ArrayLike, out_scores: ArrayLike, *, confidence: float, delta: float) -> float:
    """Upper tail at the corners of the ROC curve's convex hull, the error probability divided by their number."""
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    cuts = Cuts.of(members, others).hull()
    each = np.full(cuts.missed.size, (1 - confidence) / (2 * cuts.missed.size))
    kept = np.maximum(lower(members.size - cuts.missed, members.size, each) - delta, 0)
    with np.errstate(divide="ignore"):
        epsilons = np.log(kept) - np.log(upper(cuts.alarms, others.size, each))
    return max(0.0, float(epsilons.max()))


def epsilon_one_run(in_scores: ArrayLike, out_scores: ArrayLike, *, confidence: float, delta: float) -> float:
    """ "Member" guesses only, above each corner of the hull, the error probability divided by their number."""
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    cuts = Cuts.of(members, others).hull()
    trials = [
        _Trial(correct=int(v), asked=(int(v + f), 0), threshold=float(t))
        for v, f, t in zip(members.size - cuts.missed, cuts.alarms, cuts.thresholds, strict=True)
    ]
    return _largest_epsilon(trials, members.size + others.size, delta, (1 - confidence) / len(trials))[0]
