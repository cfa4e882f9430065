"""Patch shuffling's Proposition 2 and its baseline."""

from itertools import permutations, product

import pytest

from privkit.papers.patch_shuffling import claims as patch_shuffling
from tests.accountants.one_release import profile


def outcomes(batch: tuple[tuple[int, ...], ...], kept: int) -> dict[tuple[tuple[int, ...], ...], float]:
    """Law of Algorithm 2 as written, by trying every draw."""
    found: dict[tuple[tuple[int, ...], ...], float] = {}
    draws = 0
    for orders in product(*(permutations(image) for image in batch)):
        pool = [token for image in orders for token in image[kept:]]
        for dealt in permutations(pool):
            moved = len(batch[0]) - kept
            result = tuple(image[:kept] + dealt[i * moved : (i + 1) * moved] for i, image in enumerate(orders))
            found[result] = found.get(result, 0) + 1
            draws += 1
    return {key: count / draws for key, count in found.items()}


def test_proposition_2_fails_as_soon_as_a_patch_is_kept() -> None:
    identity, swapped = ((1, 2), (3, 4)), ((3, 4), (1, 2))
    first, second = outcomes(identity, 1), outcomes(swapped, 1)
    assert first[identity] == pytest.approx(1 / 8)
    assert identity not in second
    assert not patch_shuffling.proposition_2(tokens=2, batch=2, kept=1).sound
    assert outcomes(identity, 0) == pytest.approx(outcomes(swapped, 0))
    assert patch_shuffling.proposition_2(tokens=2, batch=2, kept=0).sound


def test_the_published_count_is_rounded_down() -> None:
    """The exponent is 2.857."""
    found = patch_shuffling.proposition_2(tokens=3, batch=2, kept=0)
    assert "3·2 patches, 10^2.8 permutations (Eq. 7)" in found.statement


def test_the_printed_epsilon_of_the_baseline() -> None:
    certificate = patch_shuffling.dp_baseline()
    assert (certificate.epsilon, certificate.delta, certificate.sound) == (6.68, None, False)
    assert "could not be matched" in certificate.objection
    assert profile(6.68, certificate.quantities["mu"]) == pytest.approx(1e-5, rel=1e-6, abs=0)
