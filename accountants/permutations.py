"""σ-privacy: how many permutations an adversary would have to tell apart, and why that is no differential privacy."""

from __future__ import annotations

from decimal import Decimal
from math import comb, factorial, isfinite, lgamma, log

from privkit.accountants.base import Certificate

NOT_DP = "this is no differential privacy: patch contents are released as they are (ε = ∞ for every δ < 1)"
NO_POSTERIOR = (
    "equal likelihood of orderings is not equal posterior: natural patches fit together, so a solver may still "
    "recover the order"
)


def kept_tokens(tokens: int, keep: float) -> int:
    """⌊keep·tokens⌋ with `keep` read as the decimal that was written, so that 0.29·100 is 29 and not 28.

    Args:
        tokens: N ≥ 1.
        keep: k in [0, 1].

    Source: Yao et al., patch shuffling, Algorithm 2 (line 7).

    >>> kept_tokens(196, 0.4), kept_tokens(100, 0.29)
    (78, 29)
    """
    _count("tokens", tokens)
    if isinstance(keep, bool) or not (isfinite(keep) and 0 <= keep <= 1):
        raise ValueError(f"keep must be a number in [0, 1], got {keep!r}")
    return int(Decimal(repr(float(keep))) * tokens)


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
    _check(tokens, batch, kept)
    return (comb(tokens, kept) * factorial(kept)) ** batch * factorial(batch * (tokens - kept))


def target_permutations(tokens: int, batch: int, kept: int) -> int:
    """Permutations that contain one given image in order: (C(N,K)·K!)^(B−1) · ((B−1)·N′)!.

    Source: Yao et al., patch shuffling, Eq. 8.

    >>> target_permutations(3, 3, 2)
    72
    """
    _check(tokens, batch, kept)
    return total_permutations(tokens, batch - 1, kept) if batch > 1 else 1


def log10_total_permutations(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 7 without the integer, for any size.

    >>> round(log10_total_permutations(196, 50, 78), 6)
    28239.734373
    """
    _check(tokens, batch, kept)
    ordered = lgamma(tokens + 1) - lgamma(tokens - kept + 1)  # ln of C(N,K)·K! = N!/(N−K)!
    return (batch * ordered + lgamma(batch * (tokens - kept) + 1)) / log(10)


def log10_target_share(tokens: int, batch: int, kept: int) -> float:
    """log10 of Eq. 8 / Eq. 7, the share of permutations that hold one image in order: −log10(N!·C(B·N′, N′)).

    >>> round(log10_target_share(196, 50, 78), 6)
    -615.484214
    """
    _check(tokens, batch, kept)
    pooled, moved = batch * (tokens - kept), tokens - kept
    choose = lgamma(pooled + 1) - lgamma(moved + 1) - lgamma(pooled - moved + 1)
    return -(lgamma(tokens + 1) + choose) / log(10)


def own_image_share(tokens: int, batch: int, kept: int) -> float:
    """Expected share of an output's tokens that come from its own image: k′ + (1 − k′)/B, with k′ = K/N.

    Pooled patches may come home.

    Source: derived from Algorithm 2; a test counts it on the defense itself.

    >>> round(own_image_share(196, 50, 78), 4)
    0.41
    """
    _check(tokens, batch, kept)
    share = kept / tokens
    return share + (1 - share) / batch


def patch_shuffle(*, tokens: int) -> Certificate:
    """Certificate of patch shuffling: N! orderings an image, equally likely given the patches.

    Source: Yao et al., patch shuffling, Definition 2 and Proposition 1.

    >>> patch_shuffle(tokens=16).quantities["log10_permutations"] > 13
    True
    """
    _check(tokens, 1, 0)
    log10 = lgamma(tokens + 1) / log(10)
    return Certificate(
        kind="permutation_count",
        statement=f"σ-privacy over {tokens}! = {_power(log10)} orderings an image; {NOT_DP}",
        quantities={"log10_permutations": log10, "log10_target_share": -log10},
        assumptions=(
            "the permutation is uniform, fresh for every image and round, and unknown to the server",
            "tokens carry no position embedding",
            NO_POSTERIOR,
        ),
        source="Yao et al., patch shuffling, Def. 2, Prop. 1",
    )


def batch_shuffle(*, tokens: int, batch: int, kept: int) -> Certificate:
    """Certificate of batch shuffling with a final shuffle inside each image: the counts of Eq. 7 and 8.

    Args:
        tokens: N ≥ 1.
        batch: B ≥ 2 images that were really mixed.
        kept: K in 0..N.

    Raises:
        ValueError: if the batch has one image: nothing is mixed, so that is patch shuffling.

    Source: Yao et al., patch shuffling, Eq. 7 and 8. Proposition 2 (σ-privacy over N·B patches) is false for K ≥ 1 and
    is not claimed here.

    >>> round(batch_shuffle(tokens=196, batch=50, kept=78).quantities["log10_permutations"], 3)
    28239.734
    """
    _check(tokens, batch, kept)
    if batch < 2:
        raise ValueError("batch must be at least 2: a batch of one image mixes nothing (use patch_shuffle)")
    total, share = log10_total_permutations(tokens, batch, kept), log10_target_share(tokens, batch, kept)
    return Certificate(
        kind="permutation_count",
        statement=(
            f"{_power(total)} permutations of the batch (Eq. 7), {_power(total + share)} of them hold a given image "
            f"(Eq. 8); {NOT_DP}"
        ),
        quantities={
            "log10_permutations": total,
            "log10_target_permutations": total + share,
            "log10_target_share": share,
            "own_image_share": own_image_share(tokens, batch, kept),
        },
        assumptions=(
            "the permutations are uniform, fresh for every batch, and unknown to the server",
            "tokens carry no position embedding",
            "σ-privacy holds for permutations inside an image; Proposition 2, over all patches of the batch, is false "
            "as soon as a patch is kept",
            "Eq. 7 counts the outcomes of Algorithm 2 without its final shuffle inside each image; with it there are "
            "more, and they are not equally likely",
            "two patches of one image share an output more often than strangers, and every round shows it anew",
            NO_POSTERIOR,
        ),
        source="Yao et al., patch shuffling, Eq. 7, Eq. 8, Algorithm 2",
    )


def _power(log10: float) -> str:
    """A count as a power of ten, for reading: 10^28239.7."""
    return f"10^{log10:.1f}"


def _count(name: str, value: int, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")


def _check(tokens: int, batch: int, kept: int) -> None:
    """Refuse impossible shapes of a batch."""
    _count("tokens", tokens)
    _count("batch", batch)
    _count("kept", kept, least=0)
    if kept > tokens:
        raise ValueError(f"kept must be at most tokens ({tokens}), got {kept}")
