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
"""Shares of guesses that a plan compares, and how closely."""


def epsilon_one_run_curve(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float,
    delta: float,
    guesses: tuple[int, int],
    family: Family | None = None,
) -> EmpiricalBound:
    """Lower bound on the ε(δ) of a mechanism by its whole trade-off curve, from one run with many canaries.

    The highest scores are guessed "member", the lowest "non-member". Let p_i be the probability that i of the c guesses
    are right, m the number of canaries, and f̄(x) the largest true positive rate that the curve allows at the false
    positive rate x; of a Gaussian curve it is Φ(Φ⁻¹(x) + μ). Flipping one coin makes one right guess wrong and leaves
    the others unchanged, so Σ_{j≥i} j·p_j/m ≤ f̄(Σ_{j≥i} (c − j + 1)·p_{j−1}/m) for all i: f̄ bounds the event for
    every canary, and is concave. If all guesses are "member", a coin that shows "non-member" makes no guess right, so
    m/2 takes the place of m, and the bound is larger; likewise for "non-member". Let P[at least v right] = τ. The least
    total probability under these inequalities puts τ on v itself and then as little as possible on v − 1, v − 2, ….
    If even this exceeds 1 for τ = 1 − confidence, the curve is rejected. Unlike ε at one δ, this uses the whole curve.

    Args:
        in_scores, out_scores: [n] scores of the canaries that were members, and [k] of those that were not; ties at a
            border of the guesses are refused.
        confidence, delta: in (0, 1).
        guesses: numbers ≥ 0 of "member" and "non-member" guesses, fixed before the coins were known; `planned_guesses`
            finds good ones.
        family: the claimed family of curves; None for any (ε, δ)-DP mechanism.

    Source: Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run". Derived here: the
    greedy filling is the worst case; m/2 for guesses of one kind.

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
    """The largest bound that `epsilon_one_run_curve` can give with these numbers of canaries (≥ 1 each).

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
    """Whether a trade-off curve is rejected: if it held, `right` or more of `asked` guesses would be correct with
    probability at most `error`.

    `canaries` is the number of canaries; half of it if every guess says "sent", or every guess says "not sent".

    >>> rejected(Gaussian().at(0.0), 9, 10, 10, 0.05), rejected(Gaussian().at(0.0), 7, 10, 10, 0.05)
    (True, False)
    """
    total = asked / canaries
    hits, missed = error * right / canaries, error * (asked - right) / canaries  # tails of j·p_j/m and (c − j)·p_j/m
    for i in range(right, 0, -1):
        if hits > 1:  # more than every guess about a member; both kinds reach `total` first
            return True
        least = max(missed, float(rates.false_positives(hits)))
        hits, missed = hits + (i - 1) / (asked - i + 1) * (least - missed), least
        if hits + missed > total * (1 + 1e-12):
            return True
    return False


@cache
def planned_guesses(canaries: int, strength: float, *, confidence: float, family: Family) -> tuple[int, int]:
    """The numbers of "member" and "non-member" guesses that promise the largest bound under the claimed curve.

    The claimed curve has this strength in this family. The numbers depend only on this curve and on the number m ≥ 2 of
    canaries, so the choice costs no confidence. A threshold at the false positive rate x makes m·(x + f̄(x))/2 guesses
    on a side. We assume that one standard deviation fewer guesses are right than the curve allows. Both sides get the
    same number; if the family is one-sided, all guesses are "member".

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
