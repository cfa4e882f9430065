"""What a permutation hides: total variation, odds of intersections, certificates."""

import json
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import permutations
from math import inf, log10
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants.shuffles import certificates
from privkit.accountants.shuffles import permutations as counts
from privkit.accountants.shuffles.variants import VARIANTS, Variant
from privkit.defenses.receipts import Permuted
from tests.accountants.shuffles import release_laws
from tests.accountants.shuffles.enumeration import Outcome, law


def law_of(batch: tuple[tuple[int, ...], ...], k: int, variant: Variant) -> dict[Outcome, Fraction]:
    """The law of releases if the batch's patches stood like this before."""
    flat = [x for row in batch for x in row]
    found = law(len(batch[0]), len(batch), k, variant)
    return {tuple(tuple(flat[t] for t in row) for row in outcome): odds for outcome, odds in found.items()}


def variation(p: dict[Outcome, Fraction], q: dict[Outcome, Fraction]) -> Fraction:
    """Total variation distance of two laws."""
    return sum((abs(p.get(z, Fraction(0)) - q.get(z, Fraction(0))) for z in p.keys() | q.keys()), Fraction(0)) / 2


def test_proposition_2_is_false() -> None:
    one, swapped, crossed = ((0, 1), (2, 3)), ((2, 3), (0, 1)), ((0, 2), (1, 3))
    written = law_of(one, 1, "algorithm_2")
    assert written[one] == Fraction(1, 8)
    assert one not in law_of(swapped, 1, "algorithm_2")
    assert variation(written, law_of(swapped, 1, "algorithm_2")) == 1
    assert variation(written, law_of(crossed, 1, "algorithm_2")) == Fraction(3, 4)
    assert variation(law_of(one, 1, "final_shuffle"), law_of(crossed, 1, "final_shuffle")) == Fraction(1, 2)
    for variant in VARIANTS:
        for other in (swapped, crossed, one):
            enumerated = variation(law_of(one, 1, variant), law_of(other, 1, variant))
            assert release_laws.total_variation(one, other, kept=1, variant=variant) == enumerated


@settings(deadline=None, max_examples=15)
@given(order=st.permutations(range(6)), k=st.integers(0, 3), variant=st.sampled_from(VARIANTS))
def test_total_variation_is_that_of_enumeration(order: list[int], k: int, variant: Variant) -> None:
    one, other = ((0, 1, 2), (3, 4, 5)), (tuple(order[:3]), tuple(order[3:]))
    found = release_laws.total_variation(one, other, kept=k, variant=variant)
    assert found == variation(law_of(one, k, variant), law_of(other, k, variant))
    if k == 0:
        assert found == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_orders_inside_an_image_are_hidden_unless_patches_stay_in_place(variant: Variant) -> None:
    found = release_laws.total_variation(((0, 1, 2), (3, 4, 5)), ((1, 2, 0), (3, 5, 4)), kept=1, variant=variant)
    assert (found == 0) == (variant != "kept_in_place")


def test_other_patches_have_disjoint_releases() -> None:
    assert release_laws.total_variation([[1, 2], [3, 4]], [[1, 2], [3, 5]], kept=0, variant="final_shuffle") == 1
    assert release_laws.release_probability([[1, 2], [3, 5]], [[1, 2], [3, 4]], kept=0, variant="final_shuffle") == 0


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 2, 1), (3, 2, 2), (2, 3, 1), (3, 2, 0), (2, 2, 2)])
def test_intersection_odds_are_those_of_enumeration(variant: Variant, shape: tuple[int, int, int]) -> None:
    n, _, _ = shape
    same_image, other_image = counts.intersection_odds(*shape)
    for first, second, expected in ((0, 1, same_image), (0, n, other_image)):
        together = sum(
            p for outcome, p in law(*shape, variant).items() if any({first, second} <= set(row) for row in outcome)
        )
        assert expected == pytest.approx(float(together), abs=1e-15)


def test_intersection_odds_are_those_of_a_simulation() -> None:
    n, b, k, rounds, generator = 20, 6, 8, 20_000, np.random.default_rng(0)
    orders = generator.permuted(np.tile(np.arange(n), (rounds, b, 1)), axis=2) + n * np.arange(b)[:, None]
    pool = generator.permuted(orders[:, :, k:].reshape(rounds, -1), axis=1).reshape(rounds, b, n - k)
    home = np.empty((rounds, n * b), dtype=int)
    released = np.concatenate([orders[:, :, :k], pool], axis=2).reshape(rounds, -1)
    np.put_along_axis(home, released, np.broadcast_to(np.repeat(np.arange(b), n), released.shape), axis=1)
    for other, expected in zip((1, n), counts.intersection_odds(n, b, k), strict=True):
        error = np.sqrt(expected * (1 - expected) / rounds)
        assert abs(np.mean(home[:, 0] == home[:, other]) - expected) < 4 * error


@given(n=st.integers(2, 400), b=st.integers(2, 100), data=st.data())
def test_patches_of_one_image_meet_more_often(n: int, b: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    same_image, other_image = counts.intersection_odds(n, b, k)
    assert 0 <= other_image <= same_image <= 1
    assert (same_image == other_image) == (k == 0)
    assert (other_image == 0) == (k == n)


def test_averaging_over_releases(shared: Path) -> None:
    (case,) = (c for c in json.loads((shared / "checks.json").read_text()) if c["id"] == "F14")
    found = release_laws.averaged_noise_std(case["params"]["var"] ** 0.5, case["params"]["e"])
    assert found == pytest.approx(case["expected"], rel=case["tolerance"])
    noise = np.random.default_rng(0).normal(0, 2, size=(60, 100_000)).mean(axis=0)
    assert noise.std() == pytest.approx(found, rel=0.02)


@given(word=st.lists(st.integers(0, 3), min_size=1, max_size=7))
def test_equal_patches_are_counted_once(word: list[int]) -> None:
    multiplicities = list(Counter(word).values())
    expected = len(set(permutations(word)))
    assert counts.log10_distinct_orderings(multiplicities) == pytest.approx(log10(expected), abs=1e-12)
    certificate = certificates.patch_shuffle(tokens=len(word), multiplicities=multiplicities)
    assert certificate.quantities["log10_permutations"] == pytest.approx(log10(expected), abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_patches_of_a_batch_weaken_every_number(variant: Variant) -> None:
    """Only the best guess was corrected: the target's probability and the outcomes were those of different patches."""
    word = (0, 0, 1, 0, 0, 2)
    seen: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for outcome, odds in law(3, 2, 1, variant).items():
        seen[tuple(word[token] for row in outcome for token in row)] += odds
    certificate = certificates.batch_shuffle(tokens=3, batch=2, kept=1, variant=variant, multiplicities=[4, 1, 1])
    found = certificate.quantities
    target = log10(sum(odds for release, odds in seen.items() if release[:3] == word[:3]))
    assert found["log10_permutations"] <= -log10(max(seen.values())) + 1e-12
    assert found["log10_target_share"] >= target - 1e-12
    assert found["log10_target_permutations"] <= found["log10_permutations"]
    assert found["log10_outcomes"] <= log10(len(seen))
    assert not any("equally likely" in sentence for sentence in certificate.assumptions)


@pytest.mark.parametrize("variant", VARIANTS)
def test_certificates_of_every_reading(variant: Variant) -> None:
    certificate = certificates.batch_shuffle(tokens=16, batch=4, kept=6, variant=variant)
    assert certificate.epsilon == inf
    assert "no differential privacy" in certificate.statement
    evenly = any(", equally likely" in sentence for sentence in certificate.assumptions)
    assert evenly == (variant == "algorithm_2")
    assert ("Eq. 7" in certificate.statement) == (variant != "kept_in_place")


def test_certificates_say_that_this_is_no_differential_privacy() -> None:
    for certificate in (
        certificates.patch_shuffle(tokens=16),
        certificates.batch_shuffle(tokens=16, batch=50, kept=6),
    ):
        assert certificate.kind == "permutation_count"
        assert certificate.epsilon == float("inf")
        assert certificate.delta is None
        assert "no differential privacy" in certificate.statement
        assert "\n" not in certificate.statement
        assert certificate.source


def test_one_order_is_no_secret() -> None:
    """A network that made one token of each image was said to prove 10^0 orders."""
    for certificate in (
        certificates.patch_shuffle(tokens=1),
        certificates.patch_shuffle(tokens=4, multiplicities=[4]),
        Permuted(source=torch.arange(5).view(1, 5, 1)).certificate(),
    ):
        assert certificate.kind == "nothing"
        assert certificate.statement.startswith("nothing is claimed: an image has a single token")
    assert certificates.patch_shuffle(tokens=2).kind == "permutation_count"


def test_a_batch_of_one_has_no_batch_certificate() -> None:
    with pytest.raises(ValueError, match="mixes nothing"):
        certificates.batch_shuffle(tokens=4, batch=1, kept=1)


@pytest.mark.parametrize(("tokens", "kept", "said"), [(4, 0, False), (1, 1, False), (4, 1, True), (4, 4, True)])
def test_patches_that_meet_more_often_are_reported_only_if_they_do(tokens: int, kept: int, said: bool) -> None:
    found = certificates.batch_shuffle(tokens=tokens, batch=3, kept=kept)
    assert any("more often than patches of two images" in line for line in found.assumptions) == said
    if tokens > 1:
        assert (found.quantities["same_image_meets"] > found.quantities["other_image_meets"]) == said


def test_what_is_likely_before_the_patches_are_seen_depends_on_the_variant() -> None:
    """All variants were said to make orders equally likely, also those whose outcomes are not."""
    for variant in VARIANTS:
        last = certificates.batch_shuffle(tokens=3, batch=2, kept=1, variant=variant).assumptions[-1]
        assert (last == certificates.NO_POSTERIOR) == (variant == "algorithm_2")
        assert ("the original order is the most likely" in last) == (variant == "kept_in_place")
        assert ("only the orders inside an image" in last) == (variant == "final_shuffle")
        unkept = certificates.batch_shuffle(tokens=3, batch=2, kept=0, variant=variant)
        assert unkept.assumptions[-1] == certificates.NO_POSTERIOR


@pytest.mark.parametrize("multiplicities", [None, [2, 2]])
def test_a_batch_in_which_nothing_moves_hides_nothing(multiplicities: list[int] | None) -> None:
    """It was said to prove one order, or to have too many equal tokens."""
    for shape in ({"tokens": 2, "batch": 2, "kept": 2}, {"tokens": 1, "batch": 4, "kept": 1}):
        found = certificates.batch_shuffle(**shape, variant="kept_in_place", multiplicities=multiplicities)
        assert (found.kind, found.statement) == ("nothing", certificates._UNMOVED)
        assert not any("10^-0" in sentence or "equally likely before" in sentence for sentence in found.assumptions)
    assert certificates.batch_shuffle(tokens=1, batch=4, kept=1).kind == "nothing"


def test_counts_are_rounded_to_the_side_that_hides_less() -> None:
    """36 was printed as 10^1.6."""
    assert [certificates.ten_to(log10(count)) for count in (1, 6, 36, 1000)] == [
        "10^0.0",
        "10^0.7",
        "10^1.5",
        "10^3.0",
    ]
    assert [certificates.ten_to(log10(count), up=True) for count in (6, 1000)] == ["10^0.8", "10^3.0"]
    assert certificates.ten_to(-1e-16) == "10^0.0"
