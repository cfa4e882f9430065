"""Published permutation counts of batch shuffling (Eq. 7 and 8), and the probability that two patches share an output.

An image has N ≥ 1 patches (`tokens`), and a batch has B ≥ 1 images. K patches of each image, 0 to N, stay with their
image (`kept`). The other N′ = N − K patches of all images are pooled and dealt out over the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from math import lgamma, log

from privkit.accountants import validate


def kept_tokens(tokens: int, keep: float) -> int:
    """⌊keep·tokens⌋, the number of patches that stay with their image, for `keep` in [0, 1]. It is computed in
    decimals, so that 0.29·100 is 29, not 28.

    Source: Yao et al., patch shuffling, Algorithm 2 (line 7).
    """
    tokens = validate.whole("tokens", tokens)
    return int(Decimal(repr(validate.real("keep", keep, least=0, most=1))) * tokens)


def log10_total_permutations(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 7, the number of permutations of a batch that an adversary has to search.

    The number is (C(N,K)·K!)^B · (B·N′)! for B images of N patches, of which K stay with their image and N′ = N − K are
    dealt out. This is the exact number of outcomes of Algorithm 2 as written (checked by enumeration). The final
    shuffle that the text adds inside each image gives more outcomes.

    Source: Yao et al., patch shuffling, Eq. 7.

    >>> round(log10_total_permutations(196, 50, 78), 6)
    28239.734373
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    ordered = lgamma(tokens + 1) - lgamma(tokens - kept + 1)  # ln of C(N,K)·K! = N!/(N−K)!
    return (batch * ordered + lgamma(batch * (tokens - kept) + 1)) / log(10)


def log10_target_share(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 8 / Eq. 7, the share of permutations that return one given image in order. The result is
    −log10(N!·C(B·N′, N′)) for B images of N patches, of which N′ = N − `kept` are dealt out.

    Source: Yao et al., patch shuffling, Eq. 7 and 8.

    >>> round(log10_target_share(196, 50, 78), 6)
    -615.484214
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    return -(lgamma(tokens + 1) + ln_choose(batch * (tokens - kept), tokens - kept)) / log(10)


def own_image_share(tokens: int, batch: int, kept: int) -> float:
    """The expected share, in [0, 1], of a shuffled image's patches that come from the image itself: K/N + (1 − K/N)/B
    for B images of N patches, of which K are kept. The second term counts dealt patches that return to their image.

    Source: derived from Algorithm 2; a test counts the tokens that the defense itself releases.
    """
    tokens, batch, kept = shape(tokens, batch, kept)
    share = kept / tokens
    return share + (1 - share) / batch


def log10_distinct_orderings(multiplicities: Sequence[int]) -> float:
    """log10 of N!/∏m!, the number of different orders of an image with N patches, if different patches occur m times
    each. `multiplicities` holds the m: whole numbers ≥ 1 that sum to N.

    Source: the multinomial coefficient.
    """
    counts = checked_multiplicities(multiplicities)
    return max(0.0, lgamma(sum(counts) + 1) / log(10) - log10_orders_alike(counts))


def log10_orders_alike(multiplicities: Iterable[int]) -> float:
    """log10 of ∏m!, the number of orders that look the same if patches occur m times each."""
    return sum(lgamma(m + 1) for m in multiplicities) / log(10)


def intersection_odds(tokens: int, batch: int, kept: int) -> tuple[float, float]:
    """The probabilities that two patches share an output (a shuffled image) in one round of batch shuffling: first for
    two patches of one image, then for patches of two images.

    All variants of batch shuffling have the same odds. N ≥ 2 patches (`tokens`) and B ≥ 2 images (`batch`) are needed.

    Source: derived from Algorithm 2, which a test simulates.
    """
    tokens, batch, kept = shape(validate.whole("tokens", tokens, least=2), batch, kept)
    validate.whole("batch", batch, least=2)
    moved = tokens - kept
    dealt_together = (moved - 1) / max(1, batch * moved - 1)
    pairs = tokens * (tokens - 1)
    both_kept, one_kept = kept * (kept - 1) / pairs, 2 * kept * moved / pairs
    same = both_kept + one_kept / batch + moved * (moved - 1) / pairs * dealt_together
    other = 2 * kept * moved / tokens**2 / batch + (moved / tokens) ** 2 * dealt_together
    return (same if kept else other), other  # without kept patches both are equal; this keeps the last bit equal, too


def ln_choose(n: int, k: int) -> float:
    """Natural logarithm of C(n, k)."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def shape(tokens: int, batch: int, kept: int) -> tuple[int, int, int]:
    """Check the numbers of tokens (≥ 1), images (≥ 1) and kept tokens (0 to `tokens`), and return them."""
    tokens, batch = validate.whole("tokens", tokens), validate.whole("batch", batch)
    return tokens, batch, validate.whole("kept", kept, least=0, most=tokens)


def checked_multiplicities(values: Sequence[int]) -> list[int]:
    """Check that there is at least one multiplicity, and that all are whole numbers ≥ 1. Return them as a list."""
    if not (counts := [validate.whole("multiplicity", value) for value in values]):
        raise ValueError("multiplicities must hold at least one whole number >= 1, got none")
    return counts
