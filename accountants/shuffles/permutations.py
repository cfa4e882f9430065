"""Permutation counts as published: Eq. 7 and Eq. 8 of batch shuffling, exact and as logarithms."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import comb, factorial, lgamma, log

from privkit.accountants import validate


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


def log10_total_permutations(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 7 without the integer, for any size.

    >>> round(log10_total_permutations(196, 50, 78), 6)
    28239.734373
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    ordered = lgamma(tokens + 1) - lgamma(tokens - kept + 1)  # ln of C(N,K)·K! = N!/(N−K)!
    return (batch * ordered + lgamma(batch * (tokens - kept) + 1)) / log(10)


def log10_target_share(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 8 / Eq. 7, the share of permutations that hold one image in order: −log10(N!·C(B·N′, N′)).

    >>> round(log10_target_share(196, 50, 78), 6)
    -615.484214
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    return -(lgamma(tokens + 1) + ln_choose(batch * (tokens - kept), tokens - kept)) / log(10)


def own_image_share(tokens: int, batch: int, kept: int) -> float:
    """Expected share of an output's tokens that come from its own image: k′ + (1 − k′)/B, with k′ = K/N.

    Pooled patches may come home.

    Source: derived from Algorithm 2; a test counts it on the defense itself.

    >>> round(own_image_share(196, 50, 78), 4)
    0.41
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    share = kept / tokens
    return share + (1 - share) / batch


def log10_distinct_orderings(multiplicities: Sequence[int]) -> float:
    """log10 of N!/∏m!, the orderings of an image with equal patches that can be told apart, for any size.

    Args:
        multiplicities: how often each different patch occurs, each ≥ 1; they sum to N.

    Source: the multinomial coefficient.

    >>> round(log10_distinct_orderings([2, 1, 1]), 6)
    1.079181
    """
    counts = checked_multiplicities(multiplicities)
    return max(0.0, (lgamma(sum(counts) + 1) - sum(lgamma(m + 1) for m in counts)) / log(10))


def ln_choose(n: int, k: int) -> float:
    """Natural logarithm of C(n, k)."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def shape(tokens: int, batch: int, kept: int) -> tuple[int, int, int]:
    """Refuse impossible shapes of a batch."""
    tokens, batch = validate.whole("tokens", tokens), validate.whole("batch", batch)
    return tokens, batch, validate.whole("kept", kept, least=0, most=tokens)


def checked_multiplicities(values: Sequence[int]) -> list[int]:
    """Whole numbers >= 1, at least one."""
    if not (counts := [validate.whole("multiplicity", value) for value in values]):
        raise ValueError("multiplicities must hold at least one whole number >= 1, got none")
    return counts
