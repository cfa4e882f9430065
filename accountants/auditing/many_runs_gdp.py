"""A lower bound on μ from the scores of many runs: what error rates of thresholds rule out for a Gaussian curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from privkit.accountants import validate
from privkit.accountants.auditing.families import GAUSSIAN, LARGEST
from privkit.accountants.auditing.many_runs import tried
from privkit.accountants.auditing.score_cuts import scores, upper
from privkit.empirical_bound import EmpiricalBound


def mu_many_runs(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float,
    delta: float,
    threshold: float | None = None,
) -> EmpiricalBound:
    """Lower bound on μ, and on ε at δ, of a mechanism with a Gaussian trade-off curve, one score from each run.

    A test of a μ-GDP mechanism that accuses at most a share F of the runs without the canary misses at least
    Φ(Φ⁻¹(1 − F) − μ) of those with it. So upper limits F and M of both error rates give μ ≥ Φ⁻¹(1 − F) − Φ⁻¹(M).

    Without a threshold two families of cuts share the error probability, as in `epsilon_clopper_pearson`: cuts at ranks
    that were fixed in advance, and every cut.

    Args:
        in_scores: [n] scores of runs with the canary, finite; high where the attack believes that it was there.
        out_scores: [k] scores of runs without it, finite.
        confidence: in (0, 1).
        delta: in (0, 1), at which μ is said as an ε.
        threshold: fixed before the scores were seen; scores of at least this are guessed "with".

    Returns:
        The bound; its `mu` is the limit on μ, and its ε is that of a Gaussian mechanism of this μ.

    Raises:
        ValueError: if an argument is out of range, or scores are empty, NaN, infinite or booleans.

    Source: Dong, Roth and Su 2022, Definition 4 (the curve); Nasr et al. 2023, §4 (one threshold, Clopper–Pearson
    limits); the correction for chosen thresholds is derived.

    >>> leak = mu_many_runs([1] * 90 + [0] * 10, [1] * 10 + [0] * 90, confidence=0.95, delta=1e-5, threshold=1)
    >>> round(leak.mu, 4), round(leak.epsilon, 4)
    (1.8597, 9.1439)
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    error = 1 - validate.real("confidence", confidence, above=0, below=1)
    d = validate.delta(delta)
    cuts, for_missed, for_alarms, chosen, method = tried(members, others, error, threshold)
    mu = -ndtri(upper(cuts.alarms, others.size, for_alarms)) - ndtri(upper(cuts.missed, members.size, for_missed))
    best = int(np.argmax(mu))
    largest = min(max(0.0, float(mu[best])), LARGEST)
    return EmpiricalBound(
        epsilon=GAUSSIAN.epsilon(largest, d),
        delta=d,
        confidence=float(confidence),
        canaries=members.size + others.size,
        inserted=members.size,
        threshold=float(cuts.thresholds[best]) if largest > 0 else None,
        mu=largest,
        method=f"{method}, on a Gaussian trade-off curve: μ >= {largest:.4g}",
        assumptions=(
            GAUSSIAN.assumption,
            "the scores with the canary are independent draws of one law, and so are those without: one run of the "
            "mechanism each; canaries of one run are not independent (use epsilon_one_run_curve)",
            "runs with and without the canary start from neighboring data sets of the relation that is claimed",
            chosen,
        ),
        source="Dong, Roth and Su 2022, Definition 4; Nasr et al. 2023, §4; correction: derived",
    )


def ceiling_many_runs(members: int, others: int, *, confidence: float, delta: float) -> float:
    """The largest ε that `mu_many_runs` can give with so many runs, whatever they score: both groups apart.

    Args:
        members: runs with the canary, ≥ 1.
        others: runs without, ≥ 1.
        confidence: in (0, 1).
        delta: in (0, 1).

    >>> round(ceiling_many_runs(100, 100, confidence=0.95, delta=1e-5), 2)
    16.43
    """
    a, b = validate.whole("members", members), validate.whole("others", others)
    return mu_many_runs(np.ones(a), np.zeros(b), confidence=confidence, delta=delta).epsilon
