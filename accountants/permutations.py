"""σ-privacy: how many permutations an adversary would have to tell apart, and why that is no differential privacy.

Batch shuffling has three readings. "algorithm_2": kept patches first, dealt ones behind them, as Algorithm 2 is
written. "final_shuffle": the shuffle inside every image that the text adds. "kept_in_place": kept patches do not move.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from math import comb, exp, factorial, floor, gcd, inf, isqrt, lgamma, log, log1p, log10, prod, sqrt
from typing import Literal, get_args

from privkit.accountants import validate
from privkit.accountants.base import Certificate

Reading = Literal["algorithm_2", "final_shuffle", "kept_in_place"]
Batch = Sequence[Sequence[Hashable]]

READINGS: tuple[Reading, ...] = get_args(Reading)
EXACT_WORK, LOG_WORK = 1_000_000, 300_000
"""Largest B·N′² of an exact integer (half a minute or more) and of a logarithm that needs one (seconds)."""
MOST_TOKENS, MOST_ENUMERATED = 4096, 8
"""Most tokens an image whose outcomes are counted, and most patches whose orders are enumerated."""

NOT_DP = "this is no differential privacy: the tokens are released as they are (ε = ∞ for every δ < 1)"
NO_POSTERIOR = (
    "equal likelihood of orderings is not equal posterior: natural patches fit together, so a solver may still "
    "recover the order"
)

READ_AS: dict[Reading, str] = {
    "algorithm_2": "as written, the first K tokens of an output are known to be its own image's; permutations inside "
    "an image are σ-private",
    "final_shuffle": "a final shuffle inside each image, as the text adds it; permutations inside an image are "
    "σ-private; Eq. 7 counts the outcomes without that shuffle",
    "kept_in_place": "kept patches stay where they are, so permutations inside an image are not σ-private; Eq. 7 does "
    "not apply",
}
"""What a reading means for the guarantee."""


def kept_tokens(tokens: int, keep: float) -> int:
    """⌊keep·tokens⌋ with `keep` read as the decimal that was written, so that 0.29·100 is 29 and not 28.

    Args:
        tokens: N ≥ 1.
        keep: k in [0, 1].

    Source: Yao et al., patch shuffling, Algorithm 2 (line 7).

    >>> kept_tokens(196, 0.4), kept_tokens(100, 0.29)
    (78, 29)
    """
    tokens = validate.whole("tokens", tokens)
    return int(Decimal(repr(validate.real("keep", keep, least=0, most=1))) * tokens)


def total_permutations(tokens: int, batch: int, kept: int) -> int:
    """Permutations to traverse for the whole batch: (C(N,K)·K!)^B · (B·N′)!, with N′ = N − K.

    Args:
        tokens: N ≥ 1 patches an image.
        batch: B ≥ 1 images a batch.
        kept: K in 0..N patches that stay with their image.

    Source: Yao et al., patch shuffling, Eq. 7. It counts the outcomes of Algorithm 2 as written exactly (checked by
    enumeration); with the text's final shuffle inside each image it undercounts them.

    >>> total_permutations(3, 2, 1)
    216
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    return (comb(tokens, kept) * factorial(kept)) ** batch * factorial(batch * (tokens - kept))


def target_permutations(tokens: int, batch: int, kept: int) -> int:
    """Permutations that contain one given image in order: (C(N,K)·K!)^(B−1) · ((B−1)·N′)!.

    Source: Yao et al., patch shuffling, Eq. 8.

    >>> target_permutations(3, 3, 2)
    72
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    return total_permutations(tokens, batch - 1, kept) if batch > 1 else 1


def log10_total_permutations(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 7 without the integer, for any size.

    >>> round(log10_total_permutations(196, 50, 78), 6)
    28239.734373
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    ordered = lgamma(tokens + 1) - lgamma(tokens - kept + 1)  # ln of C(N,K)·K! = N!/(N−K)!
    return (batch * ordered + lgamma(batch * (tokens - kept) + 1)) / log(10)


def log10_target_share(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 8 / Eq. 7, the share of permutations that hold one image in order: −log10(N!·C(B·N′, N′)).

    >>> round(log10_target_share(196, 50, 78), 6)
    -615.484214
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    return -(lgamma(tokens + 1) + _ln_choose(batch * (tokens - kept), tokens - kept)) / log(10)


def own_image_share(tokens: int, batch: int, kept: int) -> float:
    """Expected share of an output's tokens that come from its own image: k′ + (1 − k′)/B, with k′ = K/N.

    Pooled patches may come home.

    Source: derived from Algorithm 2; a test counts it on the defense itself.

    >>> round(own_image_share(196, 50, 78), 4)
    0.41
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    share = kept / tokens
    return share + (1 - share) / batch


def distinct_outcomes(tokens: int, batch: int, kept: int, *, reading: Reading) -> int:
    """Distinct releases of a batch under a reading, as an exact integer; all patches differ.

    Under "algorithm_2" that is Eq. 7. The other two readings can release every arrangement in which each output holds
    at least K patches of its own image (for "kept_in_place": at their own place). They are counted with the rook
    numbers of one image's own places, r_m = C(N,m)²·m! or C(N,m): with P(x) = Σ_{m≥K} (−1)^{m−K} C(m−1,K−1) r_m x^m
    there are Σ_s [x^s]P(x)^B·(N·B − s)!. For B = 2 and a final shuffle that is (N!)²·Σ_{t≥K} C(N,t)².

    Args:
        tokens: N ≥ 1 patches an image.
        batch: B ≥ 1 images a batch.
        kept: K in 0..N.
        reading: "algorithm_2", "final_shuffle" or "kept_in_place".

    Raises:
        ValueError: also where the exact integer would take minutes (B·N′² > 10⁶ or N > 4096); the logarithm is
            quick.

    Source: derived by inclusion and exclusion; equals enumeration in the tests.

    >>> [distinct_outcomes(3, 2, 1, reading=reading) for reading in READINGS]
    [216, 684, 133]
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    if validate.choice("reading", reading, READINGS) == "algorithm_2":
        return total_permutations(tokens, batch, kept)
    if kept and (tokens > MOST_TOKENS or batch * (tokens - kept) ** 2 > EXACT_WORK):
        raise ValueError(
            f"batch·(tokens − kept)² must be at most {EXACT_WORK} and tokens at most {MOST_TOKENS} for an exact "
            f"integer, got tokens={tokens}, batch={batch}, kept={kept}: use log10_distinct_outcomes"
        )
    return _count(tokens, batch, kept, reading)


def log10_distinct_outcomes(tokens: int, batch: int, kept: int, *, reading: Reading) -> float:
    """log10 of `distinct_outcomes` for any size, to about 1e-12 of its value.

    Large batches are summed as ∫ e^{−y}·(y^N·P(1/y))^B dy around its peak, with the polynomial in exact integers, so
    that its alternating terms cannot cancel; where the peak does not stand out, the exact integer is taken.

    Raises:
        ValueError: also for N > 4096, and the few shapes (B = 3, N in the hundreds) where neither is quick.

    Source: derived; the tests compare it with the exact integers.

    >>> round(log10_distinct_outcomes(196, 50, 78, reading="final_shuffle"), 6)
    30987.704122
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    if validate.choice("reading", reading, READINGS) == "algorithm_2":
        return log10_total_permutations(tokens, batch, kept)
    if (found := _log10_outcomes(tokens, batch, kept, reading)) is None:
        raise ValueError(
            f"the outcomes of tokens={tokens}, batch={batch}, kept={kept} are neither few enough to count nor "
            "concentrated enough to integrate; there are at least as many as log10_best_guess says"
        )
    return found


def equally_likely(tokens: int, batch: int, kept: int, *, reading: Reading) -> bool:
    """Whether all outcomes of a reading are equally likely: always as written, else only if none or all are kept.

    With a final shuffle an outcome with t_j own patches in output j has odds ∝ ∏_j C(t_j, K); with patches kept in
    place t_j counts those at their own place. So "nothing moved" is the most likely outcome.

    Source: derived; equals the frequencies of enumeration in the tests.

    >>> [equally_likely(3, 2, 1, reading=reading) for reading in READINGS]
    [True, False, False]
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    if validate.choice("reading", reading, READINGS) == "algorithm_2" or kept in (0, tokens):
        return True
    return batch == 1 if reading == "final_shuffle" else batch * (tokens - kept) == 1


def log10_best_guess(tokens: int, batch: int, kept: int, *, reading: Reading) -> float:
    """−log10 of the most likely outcome's probability: the number of equally likely outcomes that it is worth.

    As written and with a final shuffle it is Eq. 7: the final shuffle adds outcomes, but no safety against the best
    guess. With patches kept in place it is only (B·N′)!.

    Source: derived from the odds in `equally_likely`; equals enumeration in the tests.

    >>> round(log10_best_guess(196, 50, 78, reading="final_shuffle"), 3)
    28239.734
    >>> round(log10_best_guess(196, 50, 78, reading="kept_in_place"), 3)
    19687.974
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    if validate.choice("reading", reading, READINGS) == "kept_in_place":
        return lgamma(batch * (tokens - kept) + 1) / log(10)
    return log10_total_permutations(tokens, batch, kept)


def release_probability(release: Batch, batch: Batch, *, kept: int, reading: Reading) -> Fraction:
    """Exact probability that batch shuffling turns a batch into a release.

    Args:
        release: B rows of N labels; row j is output j.
        batch: B rows of N distinct labels; row j is image j.
        kept: K in 0..N.
        reading: "algorithm_2", "final_shuffle" or "kept_in_place".

    Returns:
        A fraction in [0, 1]; 0 also where the release holds other patches.

    Raises:
        ValueError: if rows are ragged, shapes differ or labels repeat.

    Source: derived from Algorithm 2; equals enumeration in the tests. It refutes Proposition 2: the second line below
    would have to equal the first.

    >>> z = ["a1", "a2"], ["b1", "b2"]
    >>> release_probability(z, (["a1", "a2"], ["b1", "b2"]), kept=1, reading="algorithm_2")
    Fraction(1, 8)
    >>> release_probability(z, (["b1", "b2"], ["a1", "a2"]), kept=1, reading="algorithm_2")
    Fraction(0, 1)
    """
    tokens, b, kept = _shape(_tokens(batch), len(batch), kept)
    validate.choice("reading", reading, READINGS)
    if (_tokens(release), len(release)) != (tokens, b):
        raise ValueError(f"release must have the batch's shape, {b} rows of {tokens}, got {len(release)} rows")
    if {x for row in release for x in row} != {x for row in batch for x in row}:
        return Fraction(0)
    pairs, moved = list(zip(release, batch, strict=True)), tokens - kept
    if reading == "algorithm_2":
        possible = all(set(out[:kept]) <= set(image) for out, image in pairs)
        return Fraction(int(possible), total_permutations(tokens, b, kept))
    if reading == "final_shuffle":
        own = [len(set(out) & set(image)) for out, image in pairs]
        deals = Fraction(factorial(moved), comb(tokens, kept) * factorial(tokens)) ** b
    else:
        own = [sum(x == y for x, y in zip(out, image, strict=True)) for out, image in pairs]
        deals = Fraction(1, comb(tokens, kept)) ** b
    return prod(comb(t, kept) for t in own) * deals / factorial(b * moved)


def total_variation(batch_a: Batch, batch_b: Batch, *, kept: int, reading: Reading) -> Fraction:
    """Total variation distance between the releases of two batches, by enumeration: at most 8 patches in all.

    Raises:
        ValueError: as `release_probability`, and for more than 8 patches.

    Source: Yao et al., patch shuffling, Proposition 2, which claims 0 for every rearrangement of a batch's patches; it
    is 1 for exchanged images, for patches dealt crosswise 3/4, and with a final shuffle still 1/2:

    >>> one, crossed = [["a1", "a2"], ["b1", "b2"]], [["a1", "b1"], ["a2", "b2"]]
    >>> total_variation(one, one[::-1], kept=1, reading="algorithm_2")
    Fraction(1, 1)
    >>> [str(total_variation(one, crossed, kept=1, reading=reading)) for reading in READINGS[:2]]
    ['3/4', '1/2']
    """
    tokens, labels = _tokens(batch_a), [x for row in batch_a for x in row]
    release_probability(batch_a, batch_b, kept=kept, reading=reading)  # refuses shapes that do not match
    if set(labels) != {x for row in batch_b for x in row}:
        return Fraction(1)
    if len(labels) > MOST_ENUMERATED:
        raise ValueError(f"batch must hold at most {MOST_ENUMERATED} patches to be enumerated, got {len(labels)}")
    gap = Fraction(0)
    for order in permutations(labels):
        out = [order[i : i + tokens] for i in range(0, len(order), tokens)]
        odds = [release_probability(out, x, kept=kept, reading=reading) for x in (batch_a, batch_b)]
        gap += abs(odds[0] - odds[1])
    return gap / 2


@dataclass(frozen=True, kw_only=True)
class IntersectionOdds:
    """What fresh rounds of batch shuffling reveal about two patches.

    Attributes:
        same_image: probability that two patches of one image share an output, one round.
        other_image: the same for patches of two different images.
        ratio: same_image / other_image ≥ 1, the factor on the odds "one image" : "two" for each round in which they
            share an output; `inf` if nothing is ever moved.
        rounds: R.
        log10_ratio: of the factor if they share an output in all R rounds, log10(ratio)·R.
        advantage: total variation between the numbers of shared outputs in R rounds, in [0, 1]; the best test errs
            with probability (1 − advantage)/2 at even odds.
    """

    same_image: float
    other_image: float
    ratio: float
    rounds: int
    log10_ratio: float
    advantage: float


def intersection_odds(tokens: int, batch: int, kept: int, *, rounds: int = 1) -> IntersectionOdds:
    """How much more often two patches share an output if they belong to one image; every reading has the same odds.

    Args:
        tokens: N ≥ 2.
        batch: B ≥ 2.
        kept: K in 0..N.
        rounds: R ≥ 1 independent rounds over the same images, dealt into the same batch.

    Source: derived from Algorithm 2; a test simulates it.

    >>> odds = intersection_odds(196, 50, 78, rounds=30)
    >>> round(odds.same_image, 4), round(odds.other_image, 4), round(odds.ratio, 1), odds.advantage > 0.9
    (0.1739, 0.0168, 10.4, True)
    """
    from scipy.special import bdtr

    tokens, batch, kept = _shape(validate.whole("tokens", tokens, least=2), batch, kept)
    validate.whole("batch", batch, least=2)
    rounds, moved = validate.whole("rounds", rounds), tokens - kept
    dealt_together = (moved - 1) / max(1, batch * moved - 1)
    pairs = tokens * (tokens - 1)
    both_kept, one_kept = kept * (kept - 1) / pairs, 2 * kept * moved / pairs
    same = both_kept + one_kept / batch + moved * (moved - 1) / pairs * dealt_together
    other = 2 * kept * moved / tokens**2 / batch + (moved / tokens) ** 2 * dealt_together
    if kept == 0:
        same = other  # the two formulas agree; the last bit must, too
    if other == 0:  # nothing ever moves
        ratio, advantage = inf, 1.0
    elif same == other:
        ratio, advantage = 1.0, 0.0
    else:  # the likelihood ratio grows with the count: compare both laws where it crosses 1
        ratio, drop = same / other, log1p(-other) - log1p(-same)
        crossing = floor(rounds * drop / (log(ratio) + drop))
        advantage = float(bdtr(crossing, rounds, other) - bdtr(crossing, rounds, same))
    return IntersectionOdds(
        same_image=same,
        other_image=other,
        ratio=ratio,
        rounds=rounds,
        log10_ratio=rounds * log10(ratio),
        advantage=advantage,
    )


def averaged_noise_std(std: float, releases: int) -> float:
    """Standard deviation that is left when e releases with fresh noise are averaged: std/√e.

    Args:
        std: standard deviation (not variance) of one release's noise, > 0.
        releases: e ≥ 1 releases of the same smashed data.

    Source: Yao et al., patch shuffling, §V-B3; N(0, 4) has standard deviation 2.

    >>> round(averaged_noise_std(2.0, 60), 4)
    0.2582
    """
    return validate.real("std", std, above=0) / sqrt(validate.whole("releases", releases))


def distinct_orderings(multiplicities: Sequence[int]) -> int:
    """Orderings of an image with equal patches that can be told apart: N!/∏m!.

    Args:
        multiplicities: how often each different patch occurs, each ≥ 1; they sum to N.

    Source: the multinomial coefficient.

    >>> distinct_orderings([2, 1, 1])
    12
    """
    found = _multiplicities(multiplicities)
    return factorial(sum(found)) // prod(factorial(m) for m in found)


def log10_distinct_orderings(multiplicities: Sequence[int]) -> float:
    """log10 of `distinct_orderings`, for any size.

    >>> round(log10_distinct_orderings([2, 1, 1]), 6)
    1.079181
    """
    found = _multiplicities(multiplicities)
    return max(0.0, (lgamma(sum(found) + 1) - sum(lgamma(m + 1) for m in found)) / log(10))


def patch_shuffle(*, tokens: int, multiplicities: Sequence[int] | None = None) -> Certificate:
    """Certificate of patch shuffling: N! orderings an image, equally likely given the patches.

    Args:
        tokens: N ≥ 1.
        multiplicities: how often each different patch occurs; all differ where it is left out.

    Raises:
        ValueError: also if the multiplicities do not sum to N.

    Source: Yao et al., patch shuffling, Definition 2 and Proposition 1.

    >>> patch_shuffle(tokens=16).quantities["log10_permutations"] > 13
    True
    >>> patch_shuffle(tokens=16, multiplicities=[16]).quantities["log10_permutations"]
    0.0
    """
    tokens = validate.whole("tokens", tokens)
    if multiplicities is None:
        found, count = lgamma(tokens + 1) / log(10), f"{tokens}!"
    else:
        if sum(_multiplicities(multiplicities)) != tokens:
            raise ValueError(f"multiplicities must sum to tokens ({tokens}), got {sum(multiplicities)}")
        found, count = log10_distinct_orderings(multiplicities), f"{tokens}!/∏m!"
    return Certificate(
        kind="permutation_count",
        statement=f"σ-privacy over {count} = {_power(found)} orderings an image; {NOT_DP}",
        quantities={"log10_permutations": found, "log10_target_share": -found},
        assumptions=(
            "the permutation is uniform, fresh for every image and round, and unknown to the server",
            "tokens carry no position embedding",
            "no two patches of the image are equal: m equal ones divide the count by m!"
            if multiplicities is None
            else "equal patches, which no order can tell apart, are counted once",
            NO_POSTERIOR,
        ),
        source="Yao et al., patch shuffling, Def. 2, Prop. 1",
    )


def batch_shuffle(*, tokens: int, batch: int, kept: int, reading: Reading = "final_shuffle") -> Certificate:
    """Certificate of batch shuffling: the counts of Eq. 7 and 8, and what they count in this reading.

    `log10_permutations` is what the best guess is worth (Eq. 7, except for patches kept in place), and
    `log10_target_share` the odds that an output is its own image in order.

    Args:
        tokens: N ≥ 1.
        batch: B ≥ 2 images that were really mixed.
        kept: K in 0..N.
        reading: "algorithm_2", "final_shuffle" or "kept_in_place".

    Raises:
        ValueError: if the batch has one image: nothing is mixed, so that is patch shuffling.

    Source: Yao et al., patch shuffling, Eq. 7 and 8. Proposition 2 (σ-privacy over N·B patches) is false for K ≥ 1 and
    is not claimed here.

    >>> round(batch_shuffle(tokens=196, batch=50, kept=78).quantities["log10_permutations"], 3)
    28239.734
    """
    tokens, batch, kept = _shape(tokens, batch, kept)
    if batch < 2:
        raise ValueError("batch must be at least 2: a batch of one image mixes nothing (use patch_shuffle)")
    worth = log10_best_guess(tokens, batch, kept, reading=reading)
    share, published = log10_target_share(tokens, batch, kept), (" (Eq. 7)", " (Eq. 8)")
    if reading == "kept_in_place":  # the order inside the image is known for the kept patches
        share += (lgamma(tokens + 1) - lgamma(tokens - kept + 1)) / log(10)
        published = "", ""
    quantities = {
        "log10_permutations": worth,
        "log10_target_permutations": worth + share,
        "log10_target_share": share,
        "own_image_share": own_image_share(tokens, batch, kept),
    }
    if tokens > 1:
        odds = intersection_odds(tokens, batch, kept)
        quantities |= {"same_image_meets": odds.same_image, "other_image_meets": odds.other_image}
    try:
        outcomes = log10_distinct_outcomes(tokens, batch, kept, reading=reading)
        quantities["log10_outcomes"] = outcomes
        distinct = f"{_power(outcomes)} outcomes are distinct"
    except ValueError:  # too many to count, and the certificate stands without
        distinct = f"at least {_power(worth)} outcomes are distinct"
    even = equally_likely(tokens, batch, kept, reading=reading)
    return Certificate(
        kind="permutation_count",
        statement=(
            f"{_power(worth)} permutations of the batch{published[0]}, {_power(worth + share)} of them hold a given "
            f"image{published[1]}; {NOT_DP}"
        ),
        quantities=quantities,
        assumptions=(
            "the permutations are uniform, fresh for every batch, and unknown to the server",
            "tokens carry no position embedding, and no two patches of the batch are equal",
            READ_AS[reading],
            f"{distinct}, {'' if even else 'but not '}equally likely: the best guess is right once in {_power(worth)}",
            "Proposition 2, σ-privacy over all patches of the batch, is false as soon as a patch is kept",
            "two patches of one image share an output more often than strangers, and every round shows it anew",
            NO_POSTERIOR,
        ),
        source="Yao et al., patch shuffling, Eq. 7, Eq. 8, Algorithm 2",
    )


def _ratios(tokens: int, kept: int, reading: Reading) -> list[tuple[int, int]]:
    """−weight_{m+1}/weight_m of P(x) for m = K..N−1 as (numerator, denominator); K ≥ 1."""
    places = 2 if reading == "final_shuffle" else 1
    return [((tokens - m) ** places * m, (m + 1) * (m - kept + 1)) for m in range(kept, tokens)]


def _count(tokens: int, batch: int, kept: int, reading: Reading) -> int:
    """Σ_s [x^s] P(x)^B · (N·B − s)!, exactly."""
    if kept == 0:
        return factorial(tokens * batch)
    moved, degree = tokens - kept, batch * (tokens - kept)
    r = [comb(tokens, kept) * (comb(tokens, kept) * factorial(kept) if reading == "final_shuffle" else 1)]
    for up, down in _ratios(tokens, kept, reading):
        r.append(-r[-1] * up // down)  # a whole number, by its definition
    common = gcd(*r)  # at least K! with a final shuffle; without it the numbers below are much shorter
    r = [weight // common for weight in r]
    q = [r[0] ** batch]  # coefficients of the power: Q = R^B solves R·Q′ = B·R′·Q, term by term
    for j in range(1, degree + 1):
        total = sum(((batch + 1) * i - j) * r[i] * q[j - i] for i in range(1, min(j, moved) + 1))
        q.append(total // (j * r[0]))
    count = q[0]
    for j in range(1, degree + 1):  # Σ_j q_j·(degree − j)!, by Horner
        count = count * (degree - j + 1) + q[j]
    return count * common**batch


@lru_cache(maxsize=256)
def _log10_outcomes(tokens: int, batch: int, kept: int, reading: Reading) -> float | None:
    """log10 of the distinct outcomes of the two readings beyond Eq. 7; None where that is out of reach."""
    moved, ordered = tokens - kept, lgamma(tokens + 1) / log(10)
    if kept == 0:
        return lgamma(tokens * batch + 1) / log(10)
    if moved == 0:
        return batch * ordered if reading == "final_shuffle" else 0.0
    if tokens > MOST_TOKENS:
        return None
    if batch * moved > 200:  # below, the trapezoidal rule's error can be seen, and the integer is quick anyway
        if batch == 2 and reading == "final_shuffle":
            return log10(sum(comb(tokens, t) ** 2 for t in range(kept, tokens + 1))) + 2 * ordered
        if (found := _ln_integral(_ratios(tokens, kept, reading), batch)) is not None:
            first = _ln_choose(tokens, kept)
            if reading == "final_shuffle":
                first += lgamma(tokens + 1) - lgamma(moved + 1)
            return (found + batch * first) / log(10)
        if batch * moved**2 > LOG_WORK:
            return None
    return log10(_count(tokens, batch, kept, reading))


def _ln_integral(ratios: list[tuple[int, int]], batch: int) -> float | None:
    """ln ∫_0^∞ e^{−y} G(y)^B dy, G(y) = y^n·(1 − ratio_1/y + ratio_1·ratio_2/y² − …); None without a clear peak."""
    moved, negligible = len(ratios), 38.0
    degree = batch * moved

    def height(y: int) -> tuple[float, bool]:
        size, positive = _ln_series(ratios, y)
        return batch * size + degree * log(y) - y, positive

    step = max(1, isqrt(degree) // 4)  # the peak is about √degree wide: the trapezoidal rule is exact to rounding
    y = (degree + isqrt(degree**2 + 4 * batch * ratios[0][0] // ratios[0][1])) // 2  # the peak, to first order
    for side in (step, -step):
        while y + side > 0 and height(y + side)[0] > height(y)[0]:
            y += side
    top, total = height(y)[0], 1.0
    for side in (step, -step):
        x = y + side
        while x > 0 and (here := height(x))[0] > top - negligible:
            if not here[1]:
                return None
            total += exp(here[0] - top)
            x += side
    rest = [height(x * i // 64 + 1)[0] for i in range(64)]  # left of the peak, where G changes its sign
    return top + log(total * step) if x > 0 and max(rest) < top - negligible else None


def _ln_series(ratios: list[tuple[int, int]], y: int) -> tuple[float, bool]:
    """ln |1 − ratio_1/y + ratio_1·ratio_2/y² − …| and its sign, in as many bits as the cancellation takes."""
    bits = 256
    while True:
        term = total = largest = 1 << bits
        for up, down in ratios:
            term = -term * up // (down * y)
            total, largest = total + term, max(largest, abs(term))
        error = len(ratios) ** 2 * (1 + (largest >> bits))  # every step rounds by at most 1, and later steps magnify it
        if abs(total) >> 50 > error or bits > 1 << 15:
            return log(abs(total) + error) - bits * log(2), total > error
        bits *= 2


def _ln_choose(n: int, k: int) -> float:
    """Natural logarithm of C(n, k)."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _power(log10: float) -> str:
    """A count as a power of ten, for reading: 10^28239.7."""
    return f"10^{log10:.1f}"


def _shape(tokens: int, batch: int, kept: int) -> tuple[int, int, int]:
    """Refuse impossible shapes of a batch."""
    tokens, batch = validate.whole("tokens", tokens), validate.whole("batch", batch)
    return tokens, batch, validate.whole("kept", kept, least=0, most=tokens)


def _tokens(rows: Batch) -> int:
    """Labels of every row; refuse ragged rows and repeated labels."""
    labels = [x for row in rows for x in row]
    if not labels or len({len(row) for row in rows}) != 1 or len(set(labels)) != len(labels):
        raise ValueError("a batch must hold rows of equal length with distinct labels")
    return len(rows[0])


def _multiplicities(values: Sequence[int]) -> list[int]:
    """Whole numbers >= 1, at least one."""
    if not (found := [validate.whole("multiplicity", value) for value in values]):
        raise ValueError("multiplicities must hold at least one whole number >= 1, got none")
    return found
