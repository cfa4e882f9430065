"""One-run auditing of a whole trade-off curve: a lower bound on its strength from the guesses of one run."""

from __future__ import annotations

from functools import cache
from math import floor, sqrt

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.auditing.families import Family, Gaussian, Rates, largest_rejected, stated
from privkit.accountants.auditing.one_run import ALONE, NEIGHBORS, SCORED, fairly_split, guess_numbers
from privkit.accountants.auditing.score_cuts import scores
from privkit.shared.empirical_bound import EmpiricalBound

_SHARES, _PLANNED = 16, 1e-2
"""Number of false positive rates that a plan compares, and the relative precision of their bounds."""


def epsilon_one_run_curve(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float,
    delta: float,
    guesses: tuple[int, int],
    family: Family | None = None,
) -> EmpiricalBound:
    """Compute a lower bound on ε from one run with many canaries, by the whole trade-off curve instead of one point.

    A canary is a record that the auditor inserts (a "member") or leaves out, by a fair coin. The attack guesses
    "member" for the highest scores and "non-member" for the lowest. We reject a curve as follows. Let f̄(x) be the
    largest true positive rate that it allows at the false positive rate x; for a Gaussian curve, f̄(x) = Φ(Φ⁻¹(x) + μ).
    Let m be the number of canaries, c the number of guesses, and p_j the probability that j guesses are right.

    1. Let E be the event that canary t is guessed right and at least i guesses are right. If only the coin of t is
       flipped, its guess becomes wrong, and at least i − 1 guesses stay right. The curve limits the probability of E to
       f̄ of the probability of this second event. As f̄ is concave, the means over all canaries obey the same limit:
       Σ_{j≥i} j·p_j/m ≤ f̄(Σ_{j≥i} (c − j + 1)·p_{j−1}/m) for all i.
    2. If all guesses are "member", a canary that was left out is never guessed right. Then m/2 takes the place of m,
       and the bound is larger; likewise if all guesses are "non-member".
    3. Let v guesses be right in the run, and suppose P[at least v right] ≥ τ = 1 − confidence. Under these
       inequalities, Σ p_j is least for p_v = τ and the least possible p_{v−1}, p_{v−2}, … after it. If even this sum
       exceeds 1, the assumption is false, and the curve is rejected.

    The bound is the ε at δ of the strongest rejected curve.

    Args:
        in_scores, out_scores: scores of the n canaries that were members, and of the k canaries that were not. Ties at
            a border are refused.
        confidence: confidence of the bound, in (0, 1).
        delta: δ in (0, 1).
        guesses: numbers ≥ 0 of "member" and "non-member" guesses, fixed before the coins were known; see
            `planned_guesses`.
        family: the claimed family of trade-off curves; None for any (ε, δ)-DP mechanism.

    Source: Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run"; steps 2 and 3: derived.

    >>> scores = range(100, 200), range(100)
    >>> any_mechanism = epsilon_one_run_curve(*scores, confidence=0.95, delta=1e-5, guesses=(50, 50))
    >>> round(any_mechanism.epsilon, 3), any_mechanism.assumed
    (3.493, '')
    >>> leak = epsilon_one_run_curve(*scores, confidence=0.95, delta=1e-5, guesses=(50, 50), family=Gaussian())
    >>> round(leak.epsilon, 3), leak.assumed
    (7.147, 'a Gaussian curve')
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    error = 1 - validate.real("confidence", confidence, above=0, below=1)
    d = validate.delta(delta)
    canaries = fairly_split(members.size, others.size)
    top, bottom = guess_numbers(guesses, canaries)
    ranked = sorted([(float(s), True) for s in members] + [(float(s), False) for s in others])
    for cut in {bottom, canaries - top} - {0, canaries}:
        if ranked[cut - 1][0] == ranked[cut][0]:
            raise ValueError(
                f"scores tie at {ranked[cut][0]:g}, where guesses end, so the scores alone do not decide what is "
                f"guessed; add a little noise to all scores, or choose other numbers of guesses"
            )
    right = sum(coin for _, coin in ranked[canaries - top :]) + sum(not coin for _, coin in ranked[:bottom])
    curves = stated(family, d)
    found = _largest_strength(curves, right, (top, bottom), canaries, error)
    return EmpiricalBound(
        epsilon=curves.lower(found, d),
        curve_epsilon=curves.epsilon(found, d),
        delta=d,
        confidence=float(confidence),
        canaries=canaries,
        inserted=members.size,
        threshold=ranked[canaries - top][0] if top and found > 0 else None,
        guesses=(top, bottom) if found > 0 else None,
        mu=found if isinstance(curves, Gaussian) else None,
        method=f"worst case of a trade-off curve over the guesses of one run: {curves.said(found)}",
        assumed=curves.assumed,
        assumptions=(
            curves.assumption,
            SCORED,
            NEIGHBORS,
            "the numbers of guesses were fixed before the coins were known",
            ALONE,
        ),
        source="Mahloujifar, Melis and Chaudhuri 2025; worst case: derived",
    )


def ceiling_one_run_curve(
    members: int,
    others: int,
    *,
    confidence: float,
    delta: float,
    guesses: tuple[int, int],
    family: Family | None = None,
) -> float:
    """The largest bound of `epsilon_one_run_curve` for `members` canaries in the data and `others` outside (≥ 1 each).
    It is reached if all guesses are right. The other arguments are as in `epsilon_one_run_curve`.

    >>> family = Gaussian()
    >>> round(ceiling_one_run_curve(100, 100, confidence=0.95, delta=1e-5, guesses=(50, 50), family=family), 3)
    7.147
    """
    a, b = validate.whole("members", members), validate.whole("others", others)
    error, d = 1 - validate.real("confidence", confidence, above=0, below=1), validate.delta(delta)
    top, bottom = guess_numbers(guesses, a + b)
    curves = stated(family, d)
    return curves.epsilon(_largest_strength(curves, min(top, a) + min(bottom, b), guesses, a + b, error), d)


def _largest_strength(
    family: Family, right: int, guesses: tuple[int, int], canaries: int, error: float, precision: float | None = None
) -> float:
    asked = sum(guesses)
    concerned = canaries if all(guesses) else canaries / 2
    return largest_rejected(
        lambda strength: rejected(family.at(strength), right, asked, concerned, error), precision or family.precision
    )


def rejected(rates: Rates, right: int, asked: int, canaries: float, error: float) -> bool:
    """Whether a trade-off curve (`rates`) is rejected: if it held, at least `right` of `asked` guesses would be correct
    with probability at most `error`, in (0, 1).

    `canaries` is the number of canaries, or half of it if all guesses are "member" or all are "non-member".
    """
    total = asked / canaries
    hits, missed = error * right / canaries, error * (asked - right) / canaries  # tails of j·p_j/m and (c − j)·p_j/m
    for i in range(right, 0, -1):
        if hits > 1:  # more right guesses than members; with guesses of both kinds, `total` is exceeded first
            return True
        least = max(missed, float(rates.false_positives(hits)))
        hits, missed = hits + (i - 1) / (asked - i + 1) * (least - missed), least
        if hits + missed > total * (1 + 1e-12):
            return True
    return False


@cache
def planned_guesses(canaries: int, strength: float, *, confidence: float, family: Family) -> tuple[int, int]:
    """Choose the numbers of "member" and "non-member" guesses that promise the largest bound under the claimed curve.

    The claimed trade-off curve is the curve of `family` with this `strength`. Let f̄(x) be its true positive rate at
    the false positive rate x. On average, half of m = `canaries` ≥ 2 canaries are members, and a threshold with false
    positive rate x guesses m·(x + f̄(x))/2 canaries to be members. We try several x, and assume that one standard
    deviation fewer guesses are right than the curve allows. The number of "non-member" guesses is the same, or 0 if the
    family is one-sided. The plan depends only on m and the claimed curve, so it costs no confidence.

    >>> planned_guesses(2_000, 1.666, confidence=0.95, family=Gaussian())
    (146, 146)
    """
    m, sure = validate.whole("canaries", canaries, least=2), validate.real("confidence", confidence, above=0, below=1)
    alarms = np.geomspace(0.5 / m, 0.5, _SHARES)
    caught = family.at(strength).true_positives(alarms)
    plans = [(0.0, (m // 2, m // 2))]
    sides = 1 if family.one_sided else 2
    for guessed, hits in zip(m * (alarms + caught) / 2, m * caught / 2, strict=True):
        asked = min(round(guessed), m // sides)
        if asked < 1:
            continue
        share = min(hits / guessed, 1.0)
        right = floor(sides * asked * share - sqrt(sides * asked * share * (1 - share)))
        guesses = (asked, asked * (sides - 1))
        promised = _largest_strength(family, right, guesses, m, 1 - sure, precision=_PLANNED)
        plans.append((promised, guesses))
    return max(plans, key=lambda plan: plan[0])[1]
