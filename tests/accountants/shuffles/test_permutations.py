"""Permutation counts against the reference values and against brute-force enumeration of every variant's draws."""

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations, product
from math import comb, factorial, inf, log10, prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from privkit.accountants.shuffles import certificates, laws, variants
from privkit.accountants.shuffles import permutations as counts
from privkit.accountants.shuffles.variants import VARIANTS, Variant

Outcome = tuple[tuple[int, ...], ...]

SHAPES = [(2, 2, 1), (3, 2, 1), (3, 2, 2), (2, 3, 1), (4, 2, 2), (4, 2, 3), (3, 3, 2)]
"""(N, B, K) of the reference enumerations."""
EDGES = [(1, 2, 0), (1, 2, 1), (2, 2, 0), (2, 2, 2), (3, 1, 1), (3, 1, 2), (2, 1, 1), (3, 2, 0), (3, 2, 3)]
COUNTED = {
    "algorithm_2": dict(zip(SHAPES, [8, 216, 72, 48, 3456, 1152, 1296], strict=True)),
    "final_shuffle": dict(zip(SHAPES, [20, 684, 360, 232, 30528, 9792, 17712], strict=True)),
    "kept_in_place": {(2, 2, 1): 5, (3, 2, 1): 133, (3, 2, 2): 10, (2, 3, 1): 29},
}


@cache
def law(n: int, b: int, k: int, variant: Variant) -> dict[Outcome, Fraction]:
    """Probability of every outcome, by trying every draw; token t of image i is i·n+t, row j is output j."""
    seen: Counter[Outcome] = Counter()
    own = [range(i * n, (i + 1) * n) for i in range(b)]
    if variant == "algorithm_2":
        starts = product(*(permutations(image) for image in own))
        draws = ([list(order[:k]) for order in orders] for orders in starts)
    else:
        draws = ([list(kept) for kept in choice] for choice in product(*(combinations(image, k) for image in own)))
    for kept in draws:
        pool = [t for image, stay in zip(own, kept, strict=True) for t in image if t not in stay]
        for dealt in permutations(pool):
            hands = [list(dealt[i * (n - k) : (i + 1) * (n - k)]) for i in range(b)]
            if variant == "algorithm_2":
                seen[tuple(tuple(stay + hand) for stay, hand in zip(kept, hands, strict=True))] += 1
            elif variant == "final_shuffle":
                for orders in product(*(permutations(stay + hand) for stay, hand in zip(kept, hands, strict=True))):
                    seen[orders] += 1
            else:
                fill = iter(dealt)
                rows = zip(own, kept, strict=True)
                seen[tuple(tuple(t if t in stay else next(fill) for t in image) for image, stay in rows)] += 1
    draws_in_all = sum(seen.values())
    return {outcome: Fraction(count, draws_in_all) for outcome, count in seen.items()}


@pytest.mark.parametrize(("variant", "shape"), [(r, s) for r in VARIANTS for s in COUNTED[r]])
def test_outcomes_of_every_reading_are_those_of_enumeration(variant: Variant, shape: tuple[int, int, int]) -> None:
    found = variants.distinct_outcomes(*shape, variant=variant)
    assert found == COUNTED[variant][shape] == len(law(*shape, variant))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", EDGES)
def test_outcomes_at_the_edges(variant: Variant, shape: tuple[int, int, int]) -> None:
    found = variants.distinct_outcomes(*shape, variant=variant)
    assert found == len(law(*shape, variant))
    assert variants.log10_distinct_outcomes(*shape, variant=variant) == pytest.approx(log10(found), abs=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] < 4] + [(4, 2, 3)] + EDGES)
def test_odds_of_outcomes_are_those_of_enumeration(variant: Variant, shape: tuple[int, int, int]) -> None:
    n, b, k = shape
    enumerated, plain = law(*shape, variant), [tuple(range(i * n, (i + 1) * n)) for i in range(b)]
    for outcome, odds in enumerated.items():
        assert laws.release_probability(outcome, plain, kept=k, variant=variant) == odds
    assert variants.equally_likely(*shape, variant=variant) == (len(set(enumerated.values())) == 1)
    best = variants.log10_best_guess(*shape, variant=variant)
    assert best == pytest.approx(-log10(max(enumerated.values())), abs=1e-12)
    if b > 1:
        certificate = certificates.batch_shuffle(tokens=n, batch=b, kept=k, variant=variant)
        in_order = sum(odds for outcome, odds in enumerated.items() if outcome[0] == plain[0])
        assert certificate.quantities["log10_target_share"] == pytest.approx(log10(in_order), abs=1e-12)
        assert certificate.quantities["log10_outcomes"] == pytest.approx(log10(len(enumerated)), abs=1e-12)
        assert certificate.quantities["log10_permutations"] == best


@cache
def assignments(n: int, b: int, k: int) -> int:
    """A: ways to deal b·n tokens into b outputs of n so that each holds at least k of its own, one image at a time."""
    rows = [row for row in product(range(n + 1), repeat=b) if sum(row) == n]
    states: Counter[tuple[int, ...]] = Counter({(n,) * b: 1})
    for image in range(b):
        following: Counter[tuple[int, ...]] = Counter()
        for room, ways in states.items():
            for row in rows:
                if row[image] >= k and all(x <= y for x, y in zip(row, room, strict=True)):
                    multinomial = factorial(n) // prod(factorial(x) for x in row)
                    following[tuple(y - x for x, y in zip(row, room, strict=True))] += ways * multinomial
        states = following
    return states[(0,) * b]


@settings(deadline=None)
@given(n=st.integers(1, 5), b=st.integers(1, 4), data=st.data())
def test_final_shuffle_counts_contingency_tables(n: int, b: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    expected = factorial(n) ** b * assignments(n, b, k)
    assert variants.distinct_outcomes(n, b, k, variant="final_shuffle") == expected


@given(n=st.integers(1, 120), data=st.data())
def test_final_shuffle_of_two_images_has_a_closed_form(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    expected = factorial(n) ** 2 * sum(comb(n, t) ** 2 for t in range(k, n + 1))
    assert variants.distinct_outcomes(n, 2, k, variant="final_shuffle") == expected
    found = variants.log10_distinct_outcomes(n, 2, k, variant="final_shuffle")
    assert found == pytest.approx(log10(expected), rel=1e-12, abs=1e-13)


def in_place_by_derangements(n: int, b: int, k: int, terms: int = 1_000) -> int:
    """Σ_f [x^f](Σ_{t≥k} C(n,t) x^t)^b · D_{nb−f}: choose the places that hold their own patch, derange the rest.

    Only the first terms are summed, f = bk, bk + 1, …; all are positive, and they fall like 1/j!.
    """
    power = [1]
    for _ in range(b):
        grown = [0] * min(len(power) + n - k, terms)
        for i, ways in enumerate(power):
            for t in range(min(n - k + 1, len(grown) - i)):
                grown[i + t] += ways * comb(n, k + t)
        power = grown
    derangements = [1, 0]
    for m in range(2, n * b + 1):
        derangements.append((m - 1) * (derangements[-1] + derangements[-2]))
    return sum(ways * derangements[n * b - b * k - f] for f, ways in enumerate(power))


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 24), b=st.integers(1, 12), data=st.data())
def test_kept_in_place_counts_derangements(n: int, b: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    expected = in_place_by_derangements(n, b, k)
    assert variants.distinct_outcomes(n, b, k, variant="kept_in_place") == expected
    found = variants.log10_distinct_outcomes(n, b, k, variant="kept_in_place")
    assert found == pytest.approx(log10(expected), rel=1e-12, abs=1e-13)


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 40), b=st.integers(2, 16), variant=st.sampled_from(VARIANTS), data=st.data())
def test_logarithms_of_outcomes_equal_the_integers(n: int, b: int, variant: Variant, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    found = variants.log10_distinct_outcomes(n, b, k, variant=variant)
    assert found == pytest.approx(log10(variants.distinct_outcomes(n, b, k, variant=variant)), rel=1e-12, abs=1e-12)
    assert found >= variants.log10_best_guess(n, b, k, variant=variant) - 1e-9
    if k:
        assert found <= variants.log10_distinct_outcomes(n, b, k - 1, variant=variant) + 1e-9


@pytest.mark.parametrize("variant", ["final_shuffle", "kept_in_place"])
@pytest.mark.parametrize("shape", [(64, 16, 25), (196, 3, 117), (196, 4, 78), (30, 40, 1), (100, 5, 90), (128, 3, 40)])
def test_large_logarithms_equal_the_integers(variant: Variant, shape: tuple[int, int, int]) -> None:
    exact = log10(variants.distinct_outcomes(*shape, variant=variant))
    assert variants.log10_distinct_outcomes(*shape, variant=variant) == pytest.approx(exact, rel=1e-13)


def test_the_papers_size() -> None:
    # The integer itself, which takes 90 s by the recurrence, has log10 30987.704122262465.
    found = variants.log10_distinct_outcomes(196, 50, 78, variant="final_shuffle")
    assert found == pytest.approx(30987.704122262465, rel=1e-13)
    found = variants.log10_distinct_outcomes(196, 50, 78, variant="kept_in_place")
    assert found == pytest.approx(log10(in_place_by_derangements(196, 50, 78, terms=60)), rel=1e-13)


@pytest.mark.parametrize(("n", "b"), [(4096, 64), (1024, 512), (196, 10**6), (576, 3)])
def test_any_size_has_a_logarithm(n: int, b: int) -> None:
    k = int(0.4 * n)
    outcomes = variants.log10_distinct_outcomes(n, b, k, variant="final_shuffle")
    # Choosing K own patches and their places in every output, and dealing the rest, reaches each outcome at least once.
    pairs = counts.log10_total_permutations(n, b, k) + b * log10(comb(n, k))
    assert counts.log10_total_permutations(n, b, k) < outcomes < pairs


def test_what_is_out_of_reach_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="use log10_distinct_outcomes"):
        variants.distinct_outcomes(1024, 64, 100, variant="final_shuffle")
    with pytest.raises(ValueError, match="log10_best_guess"):
        variants.log10_distinct_outcomes(5000, 3, 100, variant="final_shuffle")
    certificate = certificates.batch_shuffle(tokens=5000, batch=3, kept=100)
    assert "log10_outcomes" not in certificate.quantities
    assert any("at least 10^" in sentence for sentence in certificate.assumptions)


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
            assert laws.total_variation(one, other, kept=1, variant=variant) == enumerated


@settings(deadline=None, max_examples=30)
@given(order=st.permutations(range(6)), k=st.integers(0, 3), variant=st.sampled_from(VARIANTS))
def test_total_variation_is_that_of_enumeration(order: list[int], k: int, variant: Variant) -> None:
    one, other = ((0, 1, 2), (3, 4, 5)), (tuple(order[:3]), tuple(order[3:]))
    found = laws.total_variation(one, other, kept=k, variant=variant)
    assert found == variation(law_of(one, k, variant), law_of(other, k, variant))
    if k == 0:
        assert found == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_orders_inside_an_image_are_hidden_unless_patches_stay_in_place(variant: Variant) -> None:
    found = laws.total_variation(((0, 1, 2), (3, 4, 5)), ((1, 2, 0), (3, 5, 4)), kept=1, variant=variant)
    assert (found == 0) == (variant != "kept_in_place")


def test_other_patches_have_disjoint_releases() -> None:
    assert laws.total_variation([[1, 2], [3, 4]], [[1, 2], [3, 5]], kept=0, variant="final_shuffle") == 1
    assert laws.release_probability([[1, 2], [3, 5]], [[1, 2], [3, 4]], kept=0, variant="final_shuffle") == 0


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(2, 2, 1), (3, 2, 1), (3, 2, 2), (2, 3, 1), (3, 2, 0), (2, 2, 2)])
def test_intersection_odds_are_those_of_enumeration(variant: Variant, shape: tuple[int, int, int]) -> None:
    n, _, _ = shape
    odds = laws.intersection_odds(*shape)
    for first, second, expected in ((0, 1, odds.same_image), (0, n, odds.other_image)):
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
    odds = laws.intersection_odds(n, b, k)
    for other, expected in ((1, odds.same_image), (n, odds.other_image)):
        error = np.sqrt(expected * (1 - expected) / rounds)
        assert abs(np.mean(home[:, 0] == home[:, other]) - expected) < 4 * error
    assert odds.ratio == pytest.approx(odds.same_image / odds.other_image)


@given(n=st.integers(2, 400), b=st.integers(2, 100), rounds=st.integers(1, 300), data=st.data())
def test_rounds_help_the_adversary_as_two_binomials_differ(n: int, b: int, rounds: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    odds = laws.intersection_odds(n, b, k, rounds=rounds)
    assert 0 <= odds.other_image <= odds.same_image <= 1
    j = np.arange(rounds + 1)
    gap = np.abs(binom.pmf(j, rounds, odds.same_image) - binom.pmf(j, rounds, odds.other_image)).sum() / 2
    assert odds.advantage == pytest.approx(gap, abs=1e-11)
    assert odds.ratio >= 1
    if k == 0:
        assert (odds.ratio, odds.advantage) == (1, 0)
    if k == n:
        assert (odds.ratio, odds.advantage) == (inf, 1)


def test_rounds_by_the_million_do_not_overflow() -> None:
    odds = laws.intersection_odds(196, 50, 78, rounds=10**6)
    assert odds.advantage == pytest.approx(1, abs=1e-12)
    assert odds.log10_ratio == pytest.approx(10**6 * log10(odds.ratio))


def test_averaging_over_releases(shared: Path) -> None:
    (case,) = (c for c in json.loads((shared / "checks.json").read_text()) if c["id"] == "F14")
    found = laws.averaged_noise_std(case["params"]["var"] ** 0.5, case["params"]["e"])
    assert found == pytest.approx(case["expected"], rel=case["tolerance"])
    noise = np.random.default_rng(0).normal(0, 2, size=(60, 100_000)).mean(axis=0)
    assert noise.std() == pytest.approx(found, rel=0.02)


@given(word=st.lists(st.integers(0, 3), min_size=1, max_size=7))
def test_equal_patches_are_counted_once(word: list[int]) -> None:
    multiplicities = list(Counter(word).values())
    expected = len(set(permutations(word)))
    assert counts.distinct_orderings(multiplicities) == expected
    assert counts.log10_distinct_orderings(multiplicities) == pytest.approx(log10(expected), abs=1e-12)
    certificate = certificates.patch_shuffle(tokens=len(word), multiplicities=multiplicities)
    assert certificate.quantities["log10_permutations"] == pytest.approx(log10(expected), abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_certificates_of_every_reading(variant: Variant) -> None:
    certificate = certificates.batch_shuffle(tokens=16, batch=4, kept=6, variant=variant)
    assert certificate.epsilon == inf
    assert "no differential privacy" in certificate.statement
    evenly = any(", equally likely" in sentence for sentence in certificate.assumptions)
    assert evenly == (variant == "algorithm_2")
    assert ("Eq. 7" in certificate.statement) == (variant != "kept_in_place")


@pytest.mark.parametrize("variant", ["", "final", None, 2])
def test_refuses_an_unknown_reading(variant: object) -> None:
    for call in (variants.distinct_outcomes, variants.log10_distinct_outcomes, variants.equally_likely):
        with pytest.raises(ValueError, match="variant must be one of algorithm_2"):
            call(3, 2, 1, variant=variant)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: laws.release_probability([[1, 2], [3]], [[1, 2], [3, 4]], kept=1, variant="algorithm_2"),
            "equal",
        ),
        (lambda: laws.release_probability([[1, 2]], [[1, 2], [3, 4]], kept=1, variant="algorithm_2"), "shape"),
        (lambda: laws.release_probability([[1, 1]], [[1, 2]], kept=1, variant="algorithm_2"), "distinct"),
        (lambda: laws.release_probability([], [], kept=0, variant="algorithm_2"), "rows"),
        (lambda: laws.release_probability([[1, 2]], [[1, 2]], kept=3, variant="algorithm_2"), "kept"),
        (lambda: laws.total_variation([range(9)], [range(9)], kept=0, variant="final_shuffle"), "at most 8"),
        (lambda: laws.intersection_odds(1, 2, 0), "tokens"),
        (lambda: laws.intersection_odds(4, 1, 0), "batch"),
        (lambda: laws.intersection_odds(4, 2, 0, rounds=0), "rounds"),
        (lambda: laws.intersection_odds(4, 2, 5), "kept"),
        (lambda: variants.log10_distinct_outcomes(True, 2, 1, variant="final_shuffle"), "tokens"),
        (lambda: laws.averaged_noise_std(0.0, 60), "std"),
        (lambda: laws.averaged_noise_std(float("nan"), 60), "std"),
        (lambda: laws.averaged_noise_std(2.0, 0), "releases"),
        (lambda: counts.distinct_orderings([]), "multiplicities"),
        (lambda: counts.distinct_orderings([2, 0]), "multiplicity"),
        (lambda: certificates.patch_shuffle(tokens=4, multiplicities=[2, 1]), "sum to tokens"),
    ],
)
def test_refuses_bad_input(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize(("n", "b", "k"), [*SHAPES, (3, 2, 3)])
def test_eq_7_and_8_count_outcomes_of_algorithm_2_as_written(n: int, b: int, k: int) -> None:
    outcomes = law(n, b, k, "algorithm_2")
    assert counts.total_permutations(n, b, k) == len(outcomes)
    assert counts.target_permutations(n, b, k) == sum(outcome[0] == tuple(range(n)) for outcome in outcomes)
    assert set(outcomes.values()) == {Fraction(1, len(outcomes))}


@given(n=st.integers(1, 60), b=st.integers(1, 12), data=st.data())
def test_logarithms_equal_the_exact_integers(n: int, b: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    total, target = counts.total_permutations(n, b, k), counts.target_permutations(n, b, k)
    assert counts.log10_total_permutations(n, b, k) == pytest.approx(log10(total), rel=1e-12, abs=1e-12)
    share = log10(target) - log10(total)
    assert counts.log10_target_share(n, b, k) == pytest.approx(share, rel=1e-9, abs=1e-9)
    assert counts.log10_target_share(n, b, k) == pytest.approx(
        -log10(factorial(n) * comb(b * (n - k), n - k)), rel=1e-9, abs=1e-9
    )


def test_reference_values(shared: Path) -> None:
    cases = {case["id"]: case for case in json.loads((shared / "checks.json").read_text())}
    for name in ("F01", "F02", "F03", "F04"):
        p = cases[name]["params"]
        found = counts.log10_total_permutations(p["N"], p["B"], counts.kept_tokens(p["N"], p["k"]))
        assert found == pytest.approx(cases[name]["expected"], rel=cases[name]["tolerance"])
    p = cases["F05"]["params"]
    found = counts.log10_target_share(p["N"], p["B"], counts.kept_tokens(p["N"], p["k"]))
    assert found == pytest.approx(cases["F05"]["expected"], rel=cases["F05"]["tolerance"])
    for name in ("F06", "F07"):
        p = cases[name]["params"]
        assert counts.total_permutations(p["N"], p["B"], p["K"]) == cases[name]["expected"]
    p = cases["F10"]["params"]
    assert counts.target_permutations(p["N"], p["B"], p["K"]) == cases["F10"]["expected"]


@given(tokens=st.integers(1, 500), percent=st.integers(0, 100))
def test_kept_tokens_is_exact_in_decimals(tokens: int, percent: int) -> None:
    assert counts.kept_tokens(tokens, percent / 100) == tokens * percent // 100


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


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), float("inf"), True])
def test_refuses_a_share_that_is_none(bad: float) -> None:
    with pytest.raises(ValueError, match="keep must be"):
        counts.kept_tokens(10, bad)


@pytest.mark.parametrize(("n", "b", "k"), [(0, 2, 0), (4, 0, 1), (4, 2, 5), (4, 2, -1), (True, 2, 0), (4.0, 2, 1)])
def test_refuses_impossible_batches(n: int, b: int, k: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        counts.total_permutations(n, b, k)


def test_a_batch_of_one_has_no_batch_certificate() -> None:
    with pytest.raises(ValueError, match="mixes nothing"):
        certificates.batch_shuffle(tokens=4, batch=1, kept=1)
