"""Lower bounds on ε from the guesses of one run with many canaries: at one δ, or for a whole trade-off curve."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, exp, floor, inf, log2, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrc

from privkit.accountants import validate
from privkit.accountants.auditing.families import Family, Gaussian, Rates, largest_rejected, stated
from privkit.accountants.auditing.score_cuts import halved, levels, lower, scores
from privkit.accountants.search import doubled, narrowed
from privkit.shared.array import Array
from privkit.shared.empirical_bound import EmpiricalBound

_UNLIKELY_COINS = 1e-9
"""Probability under fair coins below which `epsilon_one_run` refuses a split into members and non-members."""
_SHARES, _PLANNED = 16, 1e-2
"""Number of false positive rates that a plan compares, and the relative precision of their bounds."""
NEIGHBORS = (
    "data with and without a canary are neighbors under the claimed relation: under add-or-remove, a canary is "
    "present or absent; under replace-one, it is replaced by a counterpart that was fixed before the coins"
)
"""Both relations are covered: the proof flips one coin, and needs only that the two resulting data sets are
neighbors."""
COINS = (
    "an independent fair coin decided whether each canary was a member; the mechanism used the coins, and the attack "
    "did not see them"
)
SCORED = f"{COINS}; every canary is scored, also those on which the attack abstains"
ALONE = "the confidence is for this bound alone: of twenty bounds at 95 %, one may be expected to fail"
"""A caution: the confidence does not cover several bounds together."""


def epsilon_one_run(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float,
    delta: float,
    guesses: tuple[int, int] | None = None,
) -> EmpiricalBound:
    """Compute a lower bound on ε from one run with many canaries (records inserted or left out by fair coins).

    The attack guesses "member" (inserted) for the highest scores and "non-member" for the lowest. It abstains on the
    rest, and on scores that tie at the border, so that the guesses depend on the pooled scores alone. If many scores
    tie, add noise to them first. Let v of r guesses be right, m be the number of all canaries, q = e^ε/(1 + e^ε) and B
    ~ Binomial(r, q). Then (ε, δ)-DP is rejected if P[B ≥ v] + 2mδ·max_i P[v − i ≤ B < v]/i is at most 1 − confidence.

    Args:
        in_scores, out_scores: scores of the n canaries that were members, and of the k canaries that were not.
        confidence: confidence of the bound, in [1e-15, 1).
        delta: δ in [0, 1).
        guesses: numbers ≥ 0 of "member" and "non-member" guesses, fixed before the coins were known. If None, m/2^j
            guesses are tried for each j: all "member", all "non-member", or this number of each. The error probability
            is then divided by the number of tries, about 3·log2(m). This is valid, since the tries depend on m alone.

    Source: Steinke, Nasr and Jagielski 2023, Theorem 5.2.

    >>> leak = epsilon_one_run(range(100, 200), range(100), confidence=0.95, delta=1e-5, guesses=(50, 50))
    >>> round(leak.epsilon, 4)
    3.4875
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    error, d = levels(confidence, delta)
    canaries = fairly_split(members.size, others.size)
    assumed = "the numbers of guesses were fixed before the coins were known"
    if guesses is not None:
        trials = [_trial(members, others, *guess_numbers(guesses, canaries))]
    else:
        family = _family(canaries, error)
        trials, error = [_trial(members, others, *each) for each in family], error / len(family)
        assumed = f"the {len(family)} numbers of guesses that were tried depend on the number of canaries only"
    epsilon, best = _largest_epsilon(trials, canaries, d, error)
    return EmpiricalBound(
        epsilon=epsilon,
        delta=d,
        confidence=float(confidence),
        canaries=canaries,
        inserted=members.size,
        threshold=best.threshold if best else None,
        guesses=best.asked if best else None,
        method="binomial test of the guesses of one run"
        + ("" if guesses is not None else f", error probability divided by {len(trials)}"),
        assumed="",
        assumptions=(SCORED, NEIGHBORS, assumed, ALONE),
        source="Steinke, Nasr and Jagielski 2023, Theorem 5.2",
    )


def ceiling_one_run(
    members: int, others: int, *, confidence: float, delta: float, guesses: tuple[int, int] | None = None
) -> float:
    """The largest bound of `epsilon_one_run` for `members` canaries in the data and `others` outside (≥ 1 each),
    reached if all guesses are right. The other arguments are as in `epsilon_one_run`.

    >>> round(ceiling_one_run(100, 100, confidence=0.95, delta=1e-5), 2)
    3.49
    """
    error, d = levels(confidence, delta)
    a, b = validate.whole("members", members), validate.whole("others", others)
    family = _family(a + b, error) if guesses is None else [guess_numbers(guesses, a + b)]
    trials = []
    for top, bottom in family:
        asked = (min(top, a), min(bottom, b))
        trials.append(_Trial(correct=sum(asked), asked=asked, threshold=None))
    return _largest_epsilon(trials, a + b, d, error / len(family))[0]


@dataclass(frozen=True, kw_only=True)
class _Trial:
    correct: int
    asked: tuple[int, int]  # numbers of "member" and "non-member" guesses
    threshold: float | None  # lowest score that is guessed "member"; None without such a guess


def _trial(members: Array, others: Array, top: int, bottom: int) -> _Trial:
    """Count right guesses. The `top` highest scores are guessed "member" and the `bottom` lowest "non-member"; scores
    that tie at a border are not guessed."""
    pooled = np.sort(np.concatenate([members, others]))
    # The score just outside either group; the attack abstains on all scores equal to it.
    under = pooled[-top - 1] if top < pooled.size else -inf
    over = pooled[bottom] if bottom < pooled.size else inf
    high = [int(x.size - np.searchsorted(x, under, "right")) if top else 0 for x in (members, others)]
    low = [int(np.searchsorted(x, over, "left")) if bottom else 0 for x in (members, others)]
    threshold = float(pooled[pooled.size - sum(high)]) if sum(high) else None
    return _Trial(correct=high[0] + low[1], asked=(sum(high), sum(low)), threshold=threshold)


def _family(canaries: int, error: float) -> list[tuple[int, int]]:
    """The numbers of "member" and "non-member" guesses to try: m/2^j guesses of one kind or of each kind. If possible,
    they are large enough to prove an ε > 0."""
    fewest = log2(1 / error)
    sizes = [size for size in halved(canaries).tolist() if size >= fewest] or [canaries]
    halves = [size for size in sizes if 2 * size <= canaries]
    return [(size, 0) for size in sizes] + [(0, size) for size in sizes] + [(size, size) for size in halves]


def _largest_epsilon(trials: list[_Trial], canaries: int, delta: float, error: float) -> tuple[float, _Trial | None]:
    best, winner = 0.0, None
    for trial in sorted(trials, key=lambda trial: -lower(trial.correct, max(1, sum(trial.asked)), error)):

        def rejected(epsilon: float, trial: _Trial = trial) -> bool:
            return _p_value(epsilon, trial.correct, sum(trial.asked), canaries, delta) <= error

        if 2 * trial.correct <= sum(trial.asked) or not rejected(best):
            continue
        # If 2mδ > 1, this p-value may fall as ε grows. The theorem's proof has the smaller p-value max_F P[B + F ≥ v]
        # over counts F of mean at most 2mδ. It cannot fall, so every rejected ε lies below a valid bound.
        low, high = doubled(rejected, best, max(1.0, 2 * best))
        low, _ = narrowed(rejected, low, high, near=lambda a, b: b - a <= 1e-13 * b)
        if low > best:
            best, winner = low, trial
    return best, winner


def _p_value(epsilon: float, correct: int, asked: int, canaries: int, delta: float) -> float:
    """The p-value of v correct guesses: P[B ≥ v] + 2mδ·max_i P[v−i ≤ B < v]/i, at most 1. See `epsilon_one_run`."""
    q = 1 / (1 + exp(-epsilon))
    tail = float(bdtrc(correct - 1, asked, q)) if correct else 1.0
    if delta == 0 or correct == 0:
        return tail
    # The i₀ values below v have a probability w, so the term of i₀ is w/i₀. For i > i₀/w, the term is at most 1/i <
    # w/i₀.
    first = min(correct, max(1, ceil(correct - asked * q + 3 * sqrt(asked * q * (1 - q)))))
    mass = float(bdtrc(correct - first - 1, asked, q)) - tail if first < correct else 1 - tail
    last = correct if mass <= 0 else min(correct, ceil(first / mass))
    width = np.arange(1, last + 1)
    above = np.where(width < correct, bdtrc(np.maximum(correct - width - 1, 0), asked, q), 1.0)
    return min(1.0, tail + 2 * canaries * delta * float(np.max((above - tail) / width)))


def fairly_split(members: int, others: int) -> int:
    """Count the canaries. Raises ValueError if fair coins give so uneven a split with probability below 1e-9."""
    canaries = members + others
    if (odds := float(2 * bdtr(min(members, others), canaries, 0.5))) < _UNLIKELY_COINS:
        raise ValueError(
            f"one-run auditing needs canaries that were included by fair coins: {members} members of {canaries} "
            f"canaries have probability {odds:.1g}"
        )
    return canaries


def guess_numbers(guesses: tuple[int, int], canaries: int) -> tuple[int, int]:
    """Return the numbers of "member" and "non-member" guesses. Raises ValueError if they are not whole numbers ≥ 0, or
    if their sum is not between 1 and the number of canaries."""
    if not isinstance(guesses, tuple) or len(guesses) != 2:
        raise ValueError(f'guesses must be two whole numbers ("member", "non-member"), got {guesses!r}')
    top, bottom = (validate.whole("guesses", number, least=0) for number in guesses)
    if not 1 <= top + bottom <= canaries:
        raise ValueError(f"guesses must sum to 1..{canaries} (the number of canaries), got {guesses!r}")
    return top, bottom


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
       and the bound is larger. The same holds if all guesses are "non-member".
    3. Let v guesses be right in the run, and suppose P[at least v right] ≥ τ = 1 − confidence. Under these
       inequalities, Σ p_j is least for p_v = τ and the least possible p_{v−1}, p_{v−2}, … after it. If even this sum
       exceeds 1, the assumption is false, and the curve is rejected.

    The bound is the ε at δ of the strongest rejected curve.

    Args:
        in_scores, out_scores: scores of the n canaries that were members, and of the k canaries that were not. Ties at
            a border are refused.
        confidence: confidence of the bound, in [1e-15, 1).
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
    error, d = levels(confidence, validate.delta(delta))
    canaries = fairly_split(members.size, others.size)
    top, bottom = guess_numbers(guesses, canaries)
    trial = _trial(members, others, top, bottom)
    if trial.asked != (top, bottom):
        tied = np.sort(np.concatenate([members, others]))[bottom if trial.asked[0] == top else canaries - top]
        raise ValueError(
            f"scores tie at {tied:g}, where guesses end, so the scores alone do not decide what is guessed; add a "
            f"little noise to all scores, or choose other numbers of guesses"
        )
    curves = stated(family, d)
    found = _largest_strength(curves, trial.correct, (top, bottom), canaries, error)
    return EmpiricalBound(
        epsilon=curves.lower(found, d),
        curve_epsilon=curves.epsilon(found, d),
        delta=d,
        confidence=float(confidence),
        canaries=canaries,
        inserted=members.size,
        threshold=trial.threshold if found > 0 else None,
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
    error, d = levels(confidence, validate.delta(delta))
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
    positive rate x guesses m·(x + f̄(x))/2 canaries to be members. We try several x. The number of right guesses is
    assumed to be one standard deviation below the mean that the curve allows. The number of "non-member" guesses equals
    that of "member" guesses, or is 0 if the family is one-sided. The plan depends only on m and the claimed curve, so
    it costs no confidence.

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
