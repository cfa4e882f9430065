"""Entropy that an attack leaves, against laws on all permutations; confidence limits, by coverage; distinguisher."""

import json
from collections.abc import Callable
from itertools import permutations
from math import comb, exp, factorial, log, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binom, binomtest
from scipy.stats import entropy as shannon

from privkit.accountants.shuffles import entropy


def fixed_points(n: int) -> np.ndarray:
    """Number of fixed points of every permutation of n elements."""
    return np.array([sum(i == x for i, x in enumerate(order)) for order in permutations(range(n))])


def shares() -> st.SearchStrategy[float]:
    return st.floats(0, 1)


@pytest.mark.parametrize("n", range(1, 8))
def test_rencontres_numbers_are_those_of_enumeration(n: int) -> None:
    moved = np.bincount(n - fixed_points(n), minlength=n + 1)
    assert np.exp(entropy._ln_rencontres(n)) == pytest.approx(moved, rel=1e-13)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("theta", [0.01, 0.3, 1.0, 2.5, 6.0])
def test_the_tilted_law_attains_the_patch_bound(n: int, theta: float) -> None:
    fixed = fixed_points(n)
    law = np.exp(theta * fixed)
    law /= law.sum()
    assert entropy.patch_entropy_bits(n, float(law @ fixed) / n) == pytest.approx(shannon(law, base=2), rel=1e-9)


@settings(deadline=None)
@given(n=st.integers(2, 5), seed=st.integers(0, 10**6), spread=st.floats(0.01, 5), bonus=st.floats(0, 3))
def test_no_law_exceeds_the_bounds(n: int, seed: int, spread: float, bonus: float) -> None:
    """Any law of the order given the release, any guess: its entropy is below each bound at the guess's success."""
    fixed = fixed_points(n)
    law = np.random.default_rng(seed).gamma(spread, size=len(fixed)) * np.exp(bonus * fixed)
    assume(law.sum() > 0)
    law /= law.sum()
    bits, room = shannon(law, base=2), 1e-9
    accuracy, success = min(1.0, float(law @ fixed) / n), min(1.0, float(law[0]))  # the guess is the identity
    assert bits <= entropy.patch_entropy_bits(n, accuracy) + room
    assert bits <= entropy.per_patch_fano_bits(n, accuracy) + room
    assert bits <= entropy.fano_bits(n, success) + room
    assert -log2(law.max()) <= entropy.min_entropy_bits(n, success) + room


@pytest.mark.parametrize(("n", "p"), [(2, 0.7), (3, 0.5), (3, 0.2), (4, 0.9), (5, 0.01), (5, 1.0)])
def test_fano_is_attained(n: int, p: float) -> None:
    law = np.array([p] + [(1 - p) / (factorial(n) - 1)] * (factorial(n) - 1))
    assert entropy.fano_bits(n, p) == pytest.approx(shannon(law, base=2), rel=1e-12)


@pytest.mark.parametrize(("n", "a"), [(196, 0.9), (196, 0.5), (16, 0.3), (50, 0.021), (1000, 0.4), (1000, 0.999)])
def test_patch_bound_is_the_dual_in_exact_integers(n: int, a: float) -> None:
    derangements = [1, 0]
    for m in range(2, n + 1):
        derangements.append((m - 1) * (derangements[-1] + derangements[-2]))
    logs = {n - d: log(comb(n, d) * derangements[d]) for d in range(n + 1) if derangements[d]}

    def dual(theta: float) -> float:
        top = max(value + theta * j for j, value in logs.items())
        return top + log(sum(exp(value + theta * j - top) for j, value in logs.items())) - theta * a * n

    found = minimize_scalar(dual, bounds=(0, 30), method="bounded", options={"xatol": 1e-9})
    assert entropy.patch_entropy_bits(n, a) == pytest.approx(found.fun / log(2), rel=1e-8)


@given(n=st.integers(1, 2000), a=shares())
@settings(deadline=None, max_examples=60)
def test_never_more_than_a_uniform_order_and_never_less_than_nothing(n: int, a: float) -> None:
    most = entropy.orderings_bits(n)
    tight = entropy.patch_entropy_bits(n, a)
    for bits in (tight, entropy.per_patch_fano_bits(n, a), entropy.fano_bits(n, a), entropy.min_entropy_bits(n, a)):
        assert isinstance(bits, float)
        assert 0 <= bits <= most
    assert tight <= entropy.per_patch_fano_bits(n, a) * (1 + 1e-12) + 1e-9
    if a <= 1 / n:
        assert tight == most


@pytest.mark.parametrize("bound", [entropy.fano_bits, entropy.patch_entropy_bits, entropy.per_patch_fano_bits])
@pytest.mark.parametrize("n", [1, 2, 3, 9, 196, 1000, 5000])
def test_bounds_fall_with_success_in_one_call(bound: Callable[[int, Any], Any], n: int) -> None:
    grid = np.linspace(0, 1, 41)
    bits = bound(n, grid)
    assert bits.shape == grid.shape
    assert np.all(np.diff(bits) <= 1e-9 * (1 + bits[0]))
    assert bits[0] == entropy.orderings_bits(n)
    assert bits[-1] == 0
    assert bits[[7, 30]] == pytest.approx([bound(n, grid[7]), bound(n, grid[30])], rel=1e-12)
    assert bound(n, grid[1:].reshape(8, 5)) == pytest.approx(bits[1:].reshape(8, 5))


@pytest.mark.parametrize("n", [4, 196, 1000])
def test_near_certainty_nothing_cancels(n: int) -> None:
    # Two wrong patches with probability q, none else: mean accuracy 1 − 2q/n, entropy h(q) + q·log2 C(n, 2).
    for q in (1e-4, 1e-8, 1e-12):
        a = 1 - 2 * q / n
        q = (1 - a) * n / 2  # as the float has it
        expected = (-q * log(q) - (1 - q) * np.log1p(-q)) / log(2) + q * log2(comb(n, 2))
        assert entropy.patch_entropy_bits(n, a) == pytest.approx(expected, rel=20 * n * q**0.5)
        assert entropy.patch_entropy_bits(n, a) >= expected * (1 - 1e-9)


def test_reference_values(shared: Path) -> None:
    cases = {case["id"]: case for case in json.loads((shared / "checks.json").read_text())}
    found = {
        "F16": entropy.fano_bits(cases["F16"]["params"]["N"], cases["F16"]["params"]["ps"]),
        "F17": entropy.patch_entropy_bits(cases["F17"]["params"]["N"], cases["F17"]["params"]["a"]),
        "F18": entropy.patch_entropy_bits(cases["F18"]["params"]["N"], cases["F18"]["params"]["a"]),
    }
    for name, bits in found.items():
        assert bits == pytest.approx(cases[name]["expected"], rel=cases[name]["tolerance"])


@given(word=st.lists(st.integers(0, 2), min_size=1, max_size=6), p=shares())
def test_equal_patches_leave_fewer_orders(word: list[int], p: float) -> None:
    multiplicities = list(np.unique(word, return_counts=True)[1])
    orders = len(set(permutations(word)))
    n = len(word)
    most = entropy.orderings_bits(n, multiplicities)
    assert most == pytest.approx(log2(orders), abs=1e-12)
    rest = [(1 - p) / (orders - 1)] * (orders - 1) if orders > 1 else []
    expected = shannon([p, *rest], base=2) if p > 1 / orders else log2(orders)
    assert entropy.fano_bits(n, p, multiplicities) == pytest.approx(expected, abs=1e-9)
    assert entropy.min_entropy_bits(n, p, multiplicities) <= most


@given(trials=st.integers(1, 10_000), confidence=st.floats(0.5, 0.9999), data=st.data())
def test_lower_limit_is_clopper_pearson(trials: int, confidence: float, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    found = entropy.success_lower_limit(hits, trials, confidence)
    oracle = binomtest(hits, trials, alternative="greater").proportion_ci(confidence, "exact").low
    assert found == pytest.approx(oracle, rel=1e-9, abs=1e-11)  # scipy's root finder stops at 2e-12
    if hits:  # the definition itself, to more digits
        assert binom.sf(hits - 1, trials, found) == pytest.approx(1 - confidence, rel=1e-9)


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_both_limits_cover(trials: int, confidence: float) -> None:
    """Exactly, for every true success: the limit is at or below it in at least `confidence` of all samples."""
    hits = range(trials + 1)
    exact = np.array([entropy.success_lower_limit(h, trials, confidence) for h in hits])
    mean = np.array([entropy.accuracy_lower_limit(h / trials, trials, confidence) for h in hits])
    assert np.all(mean <= exact + 1e-12)  # coin flips are its worst case, where it is looser
    for p in np.linspace(0.005, 0.995, 199):
        law = binom.pmf(list(hits), trials, p)
        assert law[exact <= p].sum() >= confidence - 1e-12
        assert law[mean <= p].sum() >= confidence - 1e-12


@given(mean=st.floats(1e-6, 1), images=st.integers(1, 10_000), confidence=st.floats(0.01, 0.999))
def test_accuracy_limit_solves_hoeffdings_bound(mean: float, images: int, confidence: float) -> None:
    found = entropy.accuracy_lower_limit(mean, images, confidence)
    assert 0 <= found < mean
    if found > 1e-12 * mean:
        assert images * shannon([mean, 1 - mean], [found, 1 - found]) == pytest.approx(-log(1 - confidence), rel=1e-3)


def test_patches_of_one_image_are_one_trial() -> None:
    """Orders that are wholly right or wholly wrong: pooling their patches overstates, the limit on means does not."""
    images, patches, p = 20, 50, 0.5
    hits = np.random.default_rng(0).binomial(images, p, size=2_000)
    pooled = np.mean([entropy.success_lower_limit(int(h) * patches, images * patches, 0.95) <= p for h in hits])
    by_image = np.mean([entropy.accuracy_lower_limit(h / images, images, 0.95) <= p for h in hits])
    assert pooled < 0.75
    assert by_image >= 0.94


def test_a_failed_attack_proves_nothing() -> None:
    for counted in ("orders", "patches"):
        for hits, trials in ((0, 10), (0, 10**6), (5, 1000)):
            found = entropy.entropy_after_attack(tokens=196, hits=hits, trials=trials, counted=counted)  # type: ignore[arg-type]
            assert found.kind == "nothing"
            assert found.epsilon == float("inf")
            if counted == "patches" or hits == 0:
                assert found.quantities["entropy_bits_at_most"] == found.quantities["orderings_bits"]
                assert "this proves nothing" in found.statement


@given(tokens=st.integers(2, 300), trials=st.integers(1, 500), data=st.data())
@settings(deadline=None, max_examples=60)
def test_bits_after_an_attack_use_the_lower_limit(tokens: int, trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    low = entropy.success_lower_limit(hits, trials, 0.99)
    orders = entropy.entropy_after_attack(tokens=tokens, hits=hits, trials=trials, confidence=0.99).quantities
    assert orders["success_at_least"] == low
    assert orders["entropy_bits_at_most"] == entropy.fano_bits(tokens, low)
    assert orders["min_entropy_bits_at_most"] == entropy.min_entropy_bits(tokens, low)
    found = entropy.entropy_after_attack(tokens=tokens, hits=hits, trials=trials, confidence=0.99, counted="patches")
    assert found.quantities["entropy_bits_at_most"] == entropy.patch_entropy_bits(tokens, low)
    assert found.quantities["entropy_bits_at_most"] >= entropy.patch_entropy_bits(tokens, hits / trials) - 1e-9


@given(seed=st.integers(0, 10**6), batch=st.integers(1, 4), tokens=st.integers(1, 9), width=st.integers(1, 4))
def test_one_patch_tells_two_batches_apart(seed: int, batch: int, tokens: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, size=(batch, tokens, width)).astype(np.float32)  # with equal patches and equal coordinates
    b = a.copy()
    b[rng.integers(batch), rng.integers(tokens), rng.integers(width)] += 1
    for name, batch_in in (("a", a), ("b", b)):
        release = rng.permutation(batch_in.reshape(-1, width)).reshape(a.shape)
        assert entropy.distinguish(release, a, b) == name
        assert entropy.distinguish(release, b, a) == {"a": "b", "b": "a"}[name]
    again = rng.permutation(a.reshape(-1, width))
    assert entropy.distinguish(again, a, again) == "both"
    assert entropy.distinguish(a + 10, a, b) == "neither"


def test_equal_sums_do_not_deceive_the_distinguisher() -> None:
    a, b = np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([[0.0, 3.0], [2.0, 1.0]])  # the same columns, other patches
    assert entropy.distinguish(a[::-1], a, b) == "a"


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), float("inf"), True, "0.5", None, [0.5, float("nan")]])
@pytest.mark.parametrize(
    "bound",
    [entropy.fano_bits, entropy.min_entropy_bits, entropy.patch_entropy_bits, entropy.per_patch_fano_bits],
)
def test_refuses_what_is_no_share(bound: Callable[[int, Any], Any], bad: object) -> None:
    with pytest.raises(ValueError, match=r"must hold numbers in \[0, 1\]"):
        bound(4, bad)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, float("nan"), None])
@pytest.mark.parametrize(
    "bound",
    [entropy.fano_bits, entropy.min_entropy_bits, entropy.patch_entropy_bits, entropy.per_patch_fano_bits],
)
def test_refuses_what_is_no_number_of_tokens(bound: Callable[[Any, float], Any], bad: object) -> None:
    with pytest.raises(ValueError, match="tokens must be a whole number"):
        bound(bad, 0.5)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: entropy.success_lower_limit(3, 2), "hits"),
        (lambda: entropy.success_lower_limit(-1, 2), "hits"),
        (lambda: entropy.success_lower_limit(0, 0), "trials"),
        (lambda: entropy.success_lower_limit(1, 2, 1.0), "confidence"),
        (lambda: entropy.success_lower_limit(1, 2, float("nan")), "confidence"),
        (lambda: entropy.accuracy_lower_limit(1.5, 2), "accuracy"),
        (lambda: entropy.accuracy_lower_limit(0.5, 0), "images"),
        (lambda: entropy.accuracy_lower_limit(0.5, 2, 0.0), "confidence"),
        (lambda: entropy.orderings_bits(4, [2, 1]), "sum to tokens"),
        (lambda: entropy.orderings_bits(4, [2, 2.0]), "multiplicity"),  # type: ignore[list-item]
        (lambda: entropy.entropy_after_attack(tokens=4, hits=1, trials=2, counted="bits"), "counted"),  # type: ignore[arg-type]
        (
            lambda: entropy.entropy_after_attack(tokens=4, hits=1, trials=2, counted="patches", multiplicities=[2, 2]),
            "multiplicities need",
        ),
        (lambda: entropy.distinguish([1.0, 2.0], [[1.0]], [[2.0]]), "released_tokens"),
        (lambda: entropy.distinguish([[1.0]], [[float("nan")]], [[2.0]]), "candidate_a"),
        (lambda: entropy.distinguish([[1.0]], [[1.0]], []), "candidate_b"),
    ],
)
def test_refuses_bad_input(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()
