"""Lower bounds on ε from independent canaries and a threshold that was fixed beforehand."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.auditing.families import Family, Gaussian, largest_rejected, stated
from privkit.accountants.auditing.one_run import ALONE, COINS, NEIGHBORS, fairly_split
from privkit.accountants.auditing.score_cuts import Cuts, levels, scores, upper
from privkit.shared.empirical_bound import EmpiricalBound

Test = Literal["errors", "rates"]
_METHOD = {
    "errors": "exact binomial test of all wrong guesses of independent canaries",
    "rates": "Clopper–Pearson limits of both error rates of independent canaries",
}


def epsilon_independent(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    threshold: float,
    confidence: float,
    delta: float,
    family: Family | None = None,
    test: Test = "errors",
) -> EmpiricalBound:
    """Compute a lower bound on ε from one run with canaries. They must be independent, which makes the bound tighter.

    A canary is a record that the auditor inserts (a "member") or leaves out, by a fair coin. Let a_i be the probability
    that canary i is guessed "member" if it is left out, and b_i the probability that it is guessed "non-member" if it
    is a member. The a_i may differ between canaries, and so may the b_i.

    * "errors" counts all wrong guesses. Guess i is wrong with probability (a_i + b_i)/2 ≥ (1 − TV)/2, where TV is the
      largest total variation that the mechanism allows. So the number of wrong guesses is, in distribution, at least a
      binomial count with the probability (1 − TV)/2. This test is stronger for curves like the Gaussian.
    * "rates" bounds the mean of the a_i and the mean of the b_i from above, each at half the significance, and rejects
      a trade-off curve that does not allow both means. The curve is convex, so if it allows each pair (a_i, b_i), it
      allows the pair of means. The Clopper–Pearson limit holds at this significance although trials differ in
      probability (Hoeffding 1956). This test is stronger if few releases reveal much, for example under sampling.

    Args:
        in_scores, out_scores: scores of the n canaries that were members, and of the k canaries that were not.
        threshold: a finite number, fixed before the coins were known. A score of at least this is guessed "member". If
            scores are log-likelihood ratios, 0 is best for "errors".
        confidence: confidence of the bound, in [1/2, 1).
        delta: δ in [0, 1). A Gaussian family needs δ > 0, since its ε is infinite at δ = 0.
        family: the claimed family of trade-off curves; None for any (ε, δ)-DP mechanism.
        test: "errors" or "rates", chosen before the coins were known.

    Source: derived; limits: Clopper and Pearson 1934; one threshold and a Gaussian curve: Nasr et al. 2023, §4; trials
    that differ: Hoeffding 1956, Theorem 4.

    >>> scores = [1] * 90 + [-1] * 10, [1] * 10 + [-1] * 90
    >>> any_mechanism = epsilon_independent(*scores, threshold=0, confidence=0.95, delta=1e-5)
    >>> round(any_mechanism.epsilon, 4), any_mechanism.assumed
    (1.7989, '')
    >>> leak = epsilon_independent(*scores, threshold=0, confidence=0.95, delta=1e-5, family=Gaussian())
    >>> round(leak.mu, 4), round(leak.epsilon, 4), leak.assumed
    (2.1428, 10.8875, 'a Gaussian curve')
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    cut = Cuts.at(members, others, validate.real("threshold", threshold))
    canaries = fairly_split(members.size, others.size)
    _, d = levels(confidence, delta)
    curves = stated(family, d)
    found = _strongest(int(cut.missed[0]), int(cut.alarms[0]), canaries, confidence, curves, test)
    return EmpiricalBound(
        epsilon=curves.lower(found, d),
        curve_epsilon=curves.epsilon(found, d),
        delta=d,
        confidence=float(confidence),
        canaries=canaries,
        inserted=members.size,
        threshold=float(threshold) if found > 0 else None,
        mu=found if isinstance(curves, Gaussian) else None,
        method=f"{_METHOD[test]}: {curves.said(found)}",
        assumed=curves.assumed,
        assumptions=(
            curves.assumption,
            COINS,
            "canaries are independent: each score depends only on its own coin and its own noise",
            NEIGHBORS,
            "the threshold and the test were fixed before the coins were known",
            ALONE,
        ),
        source="derived; Clopper and Pearson 1934; Hoeffding 1956, Theorem 4",
    )


def ceiling_independent(
    canaries: int, *, confidence: float, delta: float, family: Family | None = None, test: Test = "errors"
) -> float:
    """The largest bound of `epsilon_independent` for this number of canaries (≥ 1), reached if every guess is right.

    The other arguments are as in `epsilon_independent`.

    >>> round(ceiling_independent(200, confidence=0.95, delta=1e-5), 2)
    4.19
    >>> round(ceiling_independent(200, confidence=0.95, delta=1e-5, family=Gaussian()), 2)
    27.3
    """
    m, (_, d) = validate.whole("canaries", canaries), levels(confidence, delta)
    curves = stated(family, d)
    return curves.epsilon(_strongest(0, 0, m, confidence, curves, test), d)


def _strongest(missed: int, alarms: int, canaries: int, confidence: float, family: Family, test: Test) -> float:
    validate.choice("test", test, ("errors", "rates"))
    error, _ = levels(validate.real("confidence", confidence, least=0.5, below=1), 0.0)
    if test == "errors":
        wrong = float(upper(missed + alarms, canaries, error))
        return largest_rejected(lambda strength: family.at(strength).advantage <= 1 - 2 * wrong, family.precision)
    accused, lost = (min(1.0, 2 * float(upper(count, canaries, error / 2))) for count in (alarms, missed))
    return largest_rejected(
        lambda strength: bool(np.all(family.at(strength).true_positives(accused) <= 1 - lost)), family.precision
    )
