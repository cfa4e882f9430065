"""Permutation counts against the reference values and against brute-force enumeration of Algorithm 2."""

import json
from itertools import permutations, product
from math import comb, factorial, log10
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privkit.accountants import permutations as counts


def algorithm_2(n: int, b: int, k: int) -> set[tuple[tuple[int, ...], ...]]:
    """Every outcome of Algorithm 2 as written (no final shuffle), by trying every draw; token t of image i is i·n+t."""
    outcomes = set()
    for orders in product(permutations(range(n)), repeat=b):
        images = [[i * n + t for t in order] for i, order in enumerate(orders)]
        pool = [token for image in images for token in image[k:]]
        for dealt in permutations(pool):
            m = n - k
            outcomes.add(tuple(tuple(images[i][:k]) + dealt[i * m : (i + 1) * m] for i in range(b)))
    return outcomes


@pytest.mark.parametrize(("n", "b", "k"), [(2, 2, 1), (3, 2, 1), (3, 2, 2), (2, 3, 1), (4, 2, 3), (3, 2, 3)])
def test_eq_7_counts_the_outcomes_of_algorithm_2(n: int, b: int, k: int) -> None:
    assert counts.total_permutations(n, b, k) == len(algorithm_2(n, b, k))


@pytest.mark.parametrize(("n", "b", "k"), [(2, 2, 1), (3, 2, 1), (3, 2, 2), (2, 3, 1), (4, 2, 3)])
def test_eq_8_counts_the_outcomes_that_hold_the_first_image_in_order(n: int, b: int, k: int) -> None:
    target = tuple(range(n))
    assert counts.target_permutations(n, b, k) == sum(outcome[0] == target for outcome in algorithm_2(n, b, k))


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
    for certificate in (counts.patch_shuffle(tokens=16), counts.batch_shuffle(tokens=16, batch=50, kept=6)):
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
        counts.batch_shuffle(tokens=4, batch=1, kept=1)
