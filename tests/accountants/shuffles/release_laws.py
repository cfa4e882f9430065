"""Exact laws of what batch shuffling releases: counts, probabilities of a release, and the distance of two batches."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction
from itertools import permutations
from math import comb, factorial, prod, sqrt

from privkit.accountants import validate
from privkit.accountants.shuffles.permutations import shape
from privkit.accountants.shuffles.variants import VARIANTS, Variant, _count

Batch = Sequence[Sequence[Hashable]]
_MOST_ENUMERATED = 8
"""Most patches whose orders are enumerated."""
_EXACT_WORK, _MOST_TOKENS = 1_000_000, 4096
"""Largest B·N′² of an exact integer, half a minute or more; and most tokens per image."""


def total_permutations(tokens: int, batch: int, kept: int) -> int:
    """Permutations to traverse for the whole batch: (C(N,K)·K!)^B · (B·N′)!, with N′ = N − K.

    Args:
        tokens: N ≥ 1 patches per image.
        batch: B ≥ 1 images per batch.
        kept: K in 0..N patches that stay with their image.

    Source: Yao et al., patch shuffling, Eq. 7. It counts the outcomes of Algorithm 2 as written exactly (checked by
    enumeration); with the text's final shuffle inside each image it undercounts them.

    >>> total_permutations(3, 2, 1)
    216
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    return int((comb(tokens, kept) * factorial(kept)) ** batch * factorial(batch * (tokens - kept)))


def target_permutations(tokens: int, batch: int, kept: int) -> int:
    """Permutations that contain one given image in order: (C(N,K)·K!)^(B−1) · ((B−1)·N′)!.

    Source: Yao et al., patch shuffling, Eq. 8.

    >>> target_permutations(3, 3, 2)
    72
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    return total_permutations(tokens, batch - 1, kept) if batch > 1 else 1


def distinct_outcomes(tokens: int, batch: int, kept: int, *, variant: Variant) -> int:
    """Distinct releases of a batch under a variant, as an exact integer; all patches differ.

    Under "algorithm_2" that is Eq. 7. The other two variants can release every arrangement in which each output holds
    at least K patches of its own image (for "kept_in_place": at their own place). They are counted with the rook
    numbers of one image's own places, r_m = C(N,m)²·m! or C(N,m): with P(x) = Σ_{m≥K} (−1)^{m−K} C(m−1,K−1) r_m x^m
    there are Σ_s [x^s]P(x)^B·(N·B − s)!. For B = 2 and a final shuffle that is (N!)²·Σ_{t≥K} C(N,t)².

    Args:
        tokens: N ≥ 1 patches per image.
        batch: B ≥ 1 images per batch.
        kept: K in 0..N.
        variant: "algorithm_2", "final_shuffle" or "kept_in_place".

    Raises:
        ValueError: also where the exact integer would take minutes (B·N′² > 10⁶ or N > 4096); the logarithm is
            quick.

    Source: derived by inclusion and exclusion; equals enumeration in the tests.

    >>> [distinct_outcomes(3, 2, 1, variant=variant) for variant in VARIANTS]
    [216, 684, 133]
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    if validate.choice("variant", variant, VARIANTS) == "algorithm_2":
        return total_permutations(tokens, batch, kept)
    if kept and (tokens > _MOST_TOKENS or batch * (tokens - kept) ** 2 > _EXACT_WORK):
        raise ValueError(
            f"batch·(tokens − kept)² must be at most {_EXACT_WORK} and tokens at most {_MOST_TOKENS} for an exact "
            f"integer, got tokens={tokens}, batch={batch}, kept={kept}: use log10_distinct_outcomes"
        )
    return _count(tokens, batch, kept, variant)


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
