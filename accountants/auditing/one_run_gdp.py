"""One-run auditing of a whole trade-off curve: a lower bound on μ from the guesses of one run with many canaries."""

from __future__ import annotations

from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from privkit.accountants import validate
from privkit.accountants.auditing.one_run import ALONE, NEIGHBORS, fairly_split, numbers
from privkit.accountants.auditing.score_cuts import scores
from privkit.accountants.bounds import gaussian
from privkit.empirical_bound import EmpiricalBound

LARGEST_MU = 64.0
"""A bound beyond it is given as this: e^(μ²/2) has no meaning left."""


def epsilon_one_run_gdp(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float,
    delta: float,
    guesses: tuple[int, int],
) -> EmpiricalBound:
    """Lower bound on the ε(δ) of a mechanism with a Gaussian trade-off curve, from one run with many canaries.

    The highest scores are guessed "member", the lowest "non-member". Let p_i be the probability that i of the c guesses
    are right, m the number of canaries, and f̄(x) = Φ(Φ⁻¹(x) + μ). Turning one coin makes a right guess wrong and leaves
    the others, so that Σ_{j≥i} j·p_j/m ≤ f̄(Σ_{j≥i} (c − j + 1)·p_{j−1}/m) for all i: f̄ bounds the event for every
    canary, and is concave. For given P[at least v right] = τ the least total probability that these allow puts τ on v
    itself and then as little as possible on v − 1, v − 2, …; where even that exceeds 1 for τ = 1 − confidence, μ is
    rejected. Unlike ε at one δ, this uses the whole curve, and is the tighter the better the mechanism is Gaussian.

    Args:
        in_scores: [n] scores of the canaries that were members, finite.
        out_scores: [k] scores of the canaries that were not, finite.
        confidence: in (0, 1).
        delta: in (0, 1), at which μ is said as an ε.
        guesses: numbers of "member" and "non-member" guesses, fixed before the coins were known.

    Raises:
        ValueError: if an argument is out of range, scores are empty, NaN, infinite or booleans, scores tie at a border
            of the guesses, or the split is one that fair coins give with probability below 1e-9.

    Source: Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-differential privacy in one run"; that the greedy filling
    is the worst case is derived.

    >>> leak = epsilon_one_run_gdp(range(100, 200), range(100), confidence=0.95, delta=1e-5, guesses=(50, 50))
    >>> round(leak.epsilon, 3)
    7.147
    """
    members, others = scores("in_scores", in_scores), scores("out_scores", out_scores)
    error = 1 - validate.real("confidence", confidence, above=0, below=1)
    d = validate.delta(delta)
    canaries = fairly_split(members.size, others.size)
    top, bottom = numbers(guesses, canaries)
    ranked = sorted([(float(s), True) for s in members] + [(float(s), False) for s in others])
    for cut in {bottom, canaries - top} - {0, canaries}:
        if ranked[cut - 1][0] == ranked[cut][0]:
            raise ValueError(
                f"scores tie at {ranked[cut][0]:g}, a border of the guesses, so that what is guessed depends on more "
                "than the scores; add a little noise to all of them, or choose other numbers of guesses"
            )
    right = sum(coin for _, coin in ranked[canaries - top :]) + sum(not coin for _, coin in ranked[:bottom])
    mu = _largest(right, top + bottom, canaries, error)
    return EmpiricalBound(
        epsilon=float(gaussian.epsilon(d, mu)) if mu > 0 else 0.0,
        delta=d,
        confidence=float(confidence),
        canaries=canaries,
        inserted=members.size,
        threshold=ranked[canaries - top][0] if top and mu > 0 else None,
        guesses=(top, bottom) if mu > 0 else None,
        mu=mu,
        method=f"worst case of a Gaussian trade-off curve over the guesses of one run: μ >= {mu:.4g}",
        assumptions=(
            "the mechanism's trade-off curve is Gaussian for some μ, or the claim that is tested is such a curve",
            "each canary was a member by an independent fair coin of its own, which the mechanism used and the attack "
            "did not see; every canary is scored, those on which the attack abstains included",
            NEIGHBORS,
            "the numbers of guesses were fixed before the coins were known",
            ALONE,
        ),
        source="Mahloujifar, Melis and Chaudhuri 2025; worst case: derived",
    )


def ceiling_one_run_gdp(
    members: int, others: int, *, confidence: float, delta: float, guesses: tuple[int, int]
) -> float:
    """The largest bound that `epsilon_one_run_gdp` can give with so many canaries, whatever they score.

    Args:
        members: canaries that were members, ≥ 1.
        others: canaries that were not, ≥ 1.
        confidence: in (0, 1).
        delta: in (0, 1).
        guesses: as there.

    >>> round(ceiling_one_run_gdp(100, 100, confidence=0.95, delta=1e-5, guesses=(50, 50)), 3)
    7.147
    """
    a, b = validate.whole("members", members), validate.whole("others", others)
    error, d = 1 - validate.real("confidence", confidence, above=0, below=1), validate.delta(delta)
    top, bottom = guesses
    mu = _largest(min(top, a) + min(bottom, b), top + bottom, a + b, error)
    return float(gaussian.epsilon(d, mu)) if mu > 0 else 0.0


def _largest(right: int, asked: int, canaries: int, error: float) -> float:
    """Largest rejected μ, 0 where not even μ = 0 is."""
    if not rejected(0.0, right, asked, canaries, error):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high, right, asked, canaries, error):
        low, high = high, 2 * high
        if low >= LARGEST_MU:
            return LARGEST_MU
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle, right, asked, canaries, error) else (low, middle)
    return low


def rejected(mu: float, right: int, asked: int, canaries: int, error: float) -> bool:
    """Whether μ-GDP gives so many right guesses with at most this probability.

    Args:
        mu: ≥ 0.
        right: v of the guesses.
        asked: c guesses.
        canaries: m ≥ c.
        error: in (0, 1).

    >>> rejected(0.0, 9, 10, 10, 0.05), rejected(0.0, 7, 10, 10, 0.05)
    (True, False)
    """
    total = asked / canaries
    hits, missed = error * right / canaries, error * (asked - right) / canaries  # tails of j·p_j/m and (c − j)·p_j/m
    for i in range(right, 0, -1):
        least = max(missed, float(ndtr(ndtri(hits) - mu)))
        hits, missed = hits + (i - 1) / (asked - i + 1) * (least - missed), least
        if hits + missed > total * (1 + 1e-12):
            return True
    return False
