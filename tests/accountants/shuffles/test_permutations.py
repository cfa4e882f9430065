"""Permutation counts against the reference values and against brute-force enumeration."""

import json
from collections.abc import Callable
from fractions import Fraction
from math import comb, factorial, log10
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privkit.accountants.shuffles import certificates, variants
from privkit.accountants.shuffles import permutations as counts
from privkit.accountants.shuffles.variants import VARIANTS, Variant
from tests.accountants.shuffles import release_laws
from tests.accountants.shuffles.enumeration import COUNTED, EDGES, SHAPES, assignments, law


@pytest.mark.parametrize(("variant", "shape"), [(r, s) for r in VARIANTS for s in COUNTED[r]])
def test_outcomes_of_every_reading_are_those_of_enumeration(variant: Variant, shape: tuple[int, int, int]) -> None:
    found = release_laws.distinct_outcomes(*shape, variant=variant)
    assert found == COUNTED[variant][shape] == len(law(*shape, variant))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", EDGES)
def test_outcomes_at_the_edges(variant: Variant, shape: tuple[int, int, int]) -> None:
    found = release_laws.distinct_outcomes(*shape, variant=variant)
    assert found == len(law(*shape, variant))
    assert variants.log10_distinct_outcomes(*shape, variant=variant) == pytest.approx(log10(found), abs=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] < 4] + [(4, 2, 3)] + EDGES)
def test_odds_of_outcomes_are_those_of_enumeration(variant: Variant, shape: tuple[int, int, int]) -> None:
    n, b, k = shape
    enumerated, plain = law(*shape, variant), [tuple(range(i * n, (i + 1) * n)) for i in range(b)]
    for outcome, odds in enumerated.items():
        assert release_laws.release_probability(outcome, plain, kept=k, variant=variant) == odds
    assert variants.equally_likely(*shape, variant=variant) == (len(set(enumerated.values())) == 1)
    best = variants.log10_best_guess(*shape, variant=variant)
    assert best == pytest.approx(-log10(max(enumerated.values())), abs=1e-12)
    if b > 1:
        certificate = certificates.batch_shuffle(tokens=n, batch=b, kept=k, variant=variant)
        in_order = sum(odds for outcome, odds in enumerated.items() if outcome[0] == plain[0])
        assert certificate.quantities["log10_target_share"] == pytest.approx(log10(in_order), abs=1e-12)
        assert certificate.quantities["log10_outcomes"] == pytest.approx(log10(len(enumerated)), abs=1e-12)
        assert certificate.quantities["log10_permutations"] == best


@settings(deadline=None)
@given(n=st.integers(1, 5), b=st.integers(1, 4), data=st.data())
def test_final_shuffle_counts_contingency_tables(n: int, b: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    expected = factorial(n) ** b * assignments(n, b, k)
    assert release_laws.distinct_outcomes(n, b, k, variant="final_shuffle") == expected


@given(n=st.integers(1, 120), data=st.data())
def test_final_shuffle_of_two_images_has_a_closed_form(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    expected = factorial(n) ** 2 * sum(comb(n, t) ** 2 for t in range(k, n + 1))
    assert release_laws.distinct_outcomes(n, 2, k, variant="final_shuffle") == expected
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
    assert release_laws.distinct_outcomes(n, b, k, variant="kept_in_place") == expected
    found = variants.log10_distinct_outcomes(n, b, k, variant="kept_in_place")
    assert found == pytest.approx(log10(expected), rel=1e-12, abs=1e-13)


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 40), b=st.integers(2, 16), variant=st.sampled_from(VARIANTS), data=st.data())
def test_logarithms_of_outcomes_equal_the_integers(n: int, b: int, variant: Variant, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    found = variants.log10_distinct_outcomes(n, b, k, variant=variant)
    assert found == pytest.approx(log10(release_laws.distinct_outcomes(n, b, k, variant=variant)), rel=1e-12, abs=1e-12)
    assert found >= variants.log10_best_guess(n, b, k, variant=variant) - 1e-9
    if k:
        assert found <= variants.log10_distinct_outcomes(n, b, k - 1, variant=variant) + 1e-9


@pytest.mark.parametrize("variant", ["final_shuffle", "kept_in_place"])
@pytest.mark.parametrize("shape", [(64, 16, 25), (196, 3, 117), (196, 4, 78), (30, 40, 1), (100, 5, 90), (128, 3, 40)])
def test_large_logarithms_equal_the_integers(variant: Variant, shape: tuple[int, int, int]) -> None:
    exact = log10(release_laws.distinct_outcomes(*shape, variant=variant))
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
        release_laws.distinct_outcomes(1024, 64, 100, variant="final_shuffle")
    with pytest.raises(ValueError, match="log10_best_guess"):
        variants.log10_distinct_outcomes(5000, 3, 100, variant="final_shuffle")
    certificate = certificates.batch_shuffle(tokens=5000, batch=3, kept=100)
    assert "log10_outcomes" not in certificate.quantities
    assert any("at least 10^" in sentence for sentence in certificate.assumptions)


@pytest.mark.parametrize("variant", ["", "final", None, 2])
def test_refuses_an_unknown_reading(variant: object) -> None:
    for call in (release_laws.distinct_outcomes, variants.log10_distinct_outcomes, variants.equally_likely):
        with pytest.raises(ValueError, match="variant must be one of algorithm_2"):
            call(3, 2, 1, variant=variant)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: release_laws.release_probability([[1, 2], [3]], [[1, 2], [3, 4]], kept=1, variant="algorithm_2"),
            "equal",
        ),
        (lambda: release_laws.release_probability([[1, 2]], [[1, 2], [3, 4]], kept=1, variant="algorithm_2"), "shape"),
        (lambda: release_laws.release_probability([[1, 1]], [[1, 2]], kept=1, variant="algorithm_2"), "distinct"),
        (lambda: release_laws.release_probability([], [], kept=0, variant="algorithm_2"), "rows"),
        (lambda: release_laws.release_probability([[1, 2]], [[1, 2]], kept=3, variant="algorithm_2"), "kept"),
        (lambda: release_laws.total_variation([range(9)], [range(9)], kept=0, variant="final_shuffle"), "at most 8"),
        (lambda: counts.intersection_odds(1, 2, 0), "tokens"),
        (lambda: counts.intersection_odds(4, 1, 0), "batch"),
        (lambda: counts.intersection_odds(4, 2, 5), "kept"),
        (lambda: variants.log10_distinct_outcomes(True, 2, 1, variant="final_shuffle"), "tokens"),
        (lambda: release_laws.averaged_noise_std(0.0, 60), "std"),
        (lambda: release_laws.averaged_noise_std(float("nan"), 60), "std"),
        (lambda: release_laws.averaged_noise_std(2.0, 0), "releases"),
        (lambda: counts.log10_distinct_orderings([]), "multiplicities"),
        (lambda: counts.log10_distinct_orderings([2, 0]), "multiplicity"),
        (lambda: certificates.patch_shuffle(tokens=4, multiplicities=[2, 1]), "sum to tokens"),
    ],
)
def test_refuses_bad_input(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize(("n", "b", "k"), [*SHAPES, (3, 2, 3)])
def test_eq_7_and_8_count_outcomes_of_algorithm_2_as_written(n: int, b: int, k: int) -> None:
    outcomes = law(n, b, k, "algorithm_2")
    assert release_laws.total_permutations(n, b, k) == len(outcomes)
    assert release_laws.target_permutations(n, b, k) == sum(outcome[0] == tuple(range(n)) for outcome in outcomes)
    assert set(outcomes.values()) == {Fraction(1, len(outcomes))}


@given(n=st.integers(1, 60), b=st.integers(1, 12), data=st.data())
def test_logarithms_equal_the_exact_integers(n: int, b: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    total, target = release_laws.total_permutations(n, b, k), release_laws.target_permutations(n, b, k)
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
        assert release_laws.total_permutations(p["N"], p["B"], p["K"]) == cases[name]["expected"]
    p = cases["F10"]["params"]
    assert release_laws.target_permutations(p["N"], p["B"], p["K"]) == cases["F10"]["expected"]


@given(tokens=st.integers(1, 500), percent=st.integers(0, 100))
def test_kept_tokens_is_exact_in_decimals(tokens: int, percent: int) -> None:
    assert counts.kept_tokens(tokens, percent / 100) == tokens * percent // 100


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), float("inf"), True])
def test_refuses_a_share_that_is_none(bad: float) -> None:
    with pytest.raises(ValueError, match="keep must be"):
        counts.kept_tokens(10, bad)


@pytest.mark.parametrize(("n", "b", "k"), [(0, 2, 0), (4, 0, 1), (4, 2, 5), (4, 2, -1), (True, 2, 0), (4.0, 2, 1)])
def test_refuses_impossible_batches(n: int, b: int, k: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        release_laws.total_permutations(n, b, k)
