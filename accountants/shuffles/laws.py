"""Laws of what shuffling releases: probabilities of a release, distance of two batches, and what fresh rounds show."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from math import comb, factorial, floor, inf, log, log1p, log10, prod, sqrt

from privkit.accountants import validate
from privkit.accountants.shuffles.permutations import shape, total_permutations
from privkit.accountants.shuffles.variants import VARIANTS, Variant

Batch = Sequence[Sequence[Hashable]]


_MOST_ENUMERATED = 8
"""Most patches whose orders are enumerated."""


def release_probability(release: Batch, batch: Batch, *, kept: int, variant: Variant) -> Fraction:
    """Exact probability that batch shuffling turns a batch into a release.

    Args:
        release: B rows of N labels; row j is output j.
        batch: B rows of N distinct labels; row j is image j.
        kept: K in 0..N.
        variant: "algorithm_2", "final_shuffle" or "kept_in_place".

    Returns:
        A fraction in [0, 1]; 0 also where the release holds other patches.

    Raises:
        ValueError: if rows are ragged, shapes differ or labels repeat.

    Source: derived from Algorithm 2; equals enumeration in the tests. It refutes Proposition 2: the second line below
    would have to equal the first.

    >>> z = ["a1", "a2"], ["b1", "b2"]
    >>> release_probability(z, (["a1", "a2"], ["b1", "b2"]), kept=1, variant="algorithm_2")
    Fraction(1, 8)
    >>> release_probability(z, (["b1", "b2"], ["a1", "a2"]), kept=1, variant="algorithm_2")
    Fraction(0, 1)
    """
    tokens, b, kept = shape(_tokens(batch), len(batch), kept)
    validate.choice("variant", variant, VARIANTS)
    if (_tokens(release), len(release)) != (tokens, b):
        raise ValueError(f"release must have the batch's shape, {b} rows of {tokens}, got {len(release)} rows")
    if {x for row in release for x in row} != {x for row in batch for x in row}:
        return Fraction(0)
    pairs, moved = list(zip(release, batch, strict=True)), tokens - kept
    if variant == "algorithm_2":
        possible = all(set(out[:kept]) <= set(image) for out, image in pairs)
        return Fraction(int(possible), total_permutations(tokens, b, kept))
    if variant == "final_shuffle":
        own = [len(set(out) & set(image)) for out, image in pairs]
        deals = Fraction(factorial(moved), comb(tokens, kept) * factorial(tokens)) ** b
    else:
        own = [sum(x == y for x, y in zip(out, image, strict=True)) for out, image in pairs]
        deals = Fraction(1, comb(tokens, kept)) ** b
    return prod(comb(t, kept) for t in own) * deals / factorial(b * moved)


def total_variation(batch_a: Batch, batch_b: Batch, *, kept: int, variant: Variant) -> Fraction:
    """Total variation distance between the releases of two batches, by enumeration: at most 8 patches in all.

    Raises:
        ValueError: as `release_probability`, and for more than 8 patches.

    Source: Yao et al., patch shuffling, Proposition 2, which claims 0 for every rearrangement of a batch's patches; it
    is 1 for exchanged images, for patches dealt crosswise 3/4, and with a final shuffle still 1/2:

    >>> one, crossed = [["a1", "a2"], ["b1", "b2"]], [["a1", "b1"], ["a2", "b2"]]
    >>> total_variation(one, one[::-1], kept=1, variant="algorithm_2")
    Fraction(1, 1)
    >>> [str(total_variation(one, crossed, kept=1, variant=variant)) for variant in VARIANTS[:2]]
    ['3/4', '1/2']
    """
    tokens, labels = _tokens(batch_a), [x for row in batch_a for x in row]
    release_probability(batch_a, batch_b, kept=kept, variant=variant)  # refuses shapes that do not match
    if set(labels) != {x for row in batch_b for x in row}:
        return Fraction(1)
    if len(labels) > _MOST_ENUMERATED:
        raise ValueError(f"batch must hold at most {_MOST_ENUMERATED} patches to be enumerated, got {len(labels)}")
    gap = Fraction(0)
    for order in permutations(labels):
        out = [order[i : i + tokens] for i in range(0, len(order), tokens)]
        odds = [release_probability(out, x, kept=kept, variant=variant) for x in (batch_a, batch_b)]
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
    """How much more often two patches share an output if they belong to one image; every variant has the same odds.

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

    tokens, batch, kept = shape(validate.whole("tokens", tokens, least=2), batch, kept)
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


def _tokens(rows: Batch) -> int:
    """Labels of every row; refuse ragged rows and repeated labels."""
    labels = [x for row in rows for x in row]
    if not labels or len({len(row) for row in rows}) != 1 or len(set(labels)) != len(labels):
        raise ValueError("a batch must hold rows of equal length with distinct labels")
    return len(rows[0])
