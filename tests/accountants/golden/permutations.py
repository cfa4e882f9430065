"""σ-privacy: counts, odds and entropies that enumeration or a second derivation confirmed."""

from __future__ import annotations

from collections.abc import Sequence

from privkit.accountants.golden import read_cases
from privkit.accountants.shuffles import permutations
from privkit.accountants.shuffles.variants import Variant
from tests.accountants.shuffles import release_laws

Images = Sequence[Sequence[str]]
"""Patches of each image of a batch."""


def release_probability(release: Images, images: Images, kept: int, variant: Variant) -> float:
    """Probability of a release if the images were these."""
    return float(release_laws.release_probability(_tuples(release), _tuples(images), kept=kept, variant=variant))


def total_variation(images: Images, others: Images, kept: int, variant: Variant) -> float:
    """Of the releases of two batches."""
    return float(release_laws.total_variation(_tuples(images), _tuples(others), kept=kept, variant=variant))


def same_image_odds(tokens: int, batch: int, keep: float) -> float:
    """Probability that two patches of one image share an output."""
    return permutations.intersection_odds(tokens, batch, permutations.kept_tokens(tokens, keep))[0]


def _tuples(images: Images) -> tuple[tuple[str, ...], ...]:
    """JSON has lists only."""
    return tuple(tuple(image) for image in images)


distinct_outcomes = release_laws.distinct_outcomes
target_permutations = release_laws.target_permutations

CASES = read_cases(__package__, "permutations.jsonl", globals())
