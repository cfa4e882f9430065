"""σ-privacy: counts, odds and entropies that enumeration or a second derivation confirmed."""

from __future__ import annotations

from collections.abc import Sequence

from privkit.accountants.golden.case import read
from privkit.accountants.shuffles import entropy, laws, permutations, variants
from privkit.accountants.shuffles.variants import Variant

Images = Sequence[Sequence[str]]
"""Patches of each image of a batch."""


def log10_permutations(tokens: int, batch: int, keep: float) -> float:
    """log10 of Eq. 7."""
    return permutations.log10_total_permutations(tokens, batch, permutations.kept_tokens(tokens, keep))


def log10_target_share(tokens: int, batch: int, keep: float) -> float:
    """log10 of Eq. 8 over Eq. 7."""
    return permutations.log10_target_share(tokens, batch, permutations.kept_tokens(tokens, keep))


def release_probability(release: Images, images: Images, kept: int, variant: Variant) -> float:
    """Probability of a release if the images were these."""
    return float(laws.release_probability(_tuples(release), _tuples(images), kept=kept, variant=variant))


def total_variation(images: Images, others: Images, kept: int, variant: Variant) -> float:
    """Of the releases of two batches."""
    return float(laws.total_variation(_tuples(images), _tuples(others), kept=kept, variant=variant))


def same_image_odds(tokens: int, batch: int, keep: float) -> float:
    """Probability that two patches of one image share an output."""
    return laws.intersection_odds(tokens, batch, permutations.kept_tokens(tokens, keep)).same_image


def _tuples(images: Images) -> tuple[tuple[str, ...], ...]:
    """JSON has lists only."""
    return tuple(tuple(image) for image in images)


# Evaluators that lie elsewhere, by the names that the cases have for them.
distinct_outcomes = variants.distinct_outcomes
fano_bits = entropy.fano_bits
patch_entropy_bits = entropy.patch_entropy_bits
target_permutations = permutations.target_permutations

CASES = read(__package__, "permutations.jsonl", globals())
