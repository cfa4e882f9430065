"""The area under the ROC curve of scores, and of its convex hull."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants.auditing.score_cuts import Cuts, scores


def auroc(in_scores: ArrayLike, out_scores: ArrayLike, *, convex_hull: bool = False) -> float:
    """Area under the ROC curve: how often a member scores higher than a non-member, ties counting one half.

    Args:
        in_scores: [n] scores of members, finite.
        out_scores: [k] scores of non-members, finite.
        convex_hull: of the ROC curve's convex hull instead (attacks that toss a coin between two thresholds); never
            below 1/2, so biased upwards on scores that tell nothing.

    Returns:
        In [0, 1]; 1/2 is chance.

    Raises:
        ValueError: if scores are empty, NaN, infinite or booleans.

    Source: Hanley and McNeil 1982; the hull: Fawcett 2006, §5.

    >>> auroc([3, 4], [1, 3])
    0.875
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    if convex_hull:
        cuts = Cuts.of(members, others).hull()
        spared = others.size - cuts.alarms
        area = np.sum((spared[1:] + spared[:-1]) * np.diff(cuts.missed))
        return float(area / (2 * members.size * others.size))
    wins = np.searchsorted(others, members, "left") + np.searchsorted(others, members, "right")
    return float(wins.sum() / (2 * members.size * others.size))
