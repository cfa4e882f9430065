"""Empirical lower bounds: laws, definitions that share no code, and bad input."""

import json
from collections.abc import Callable
from math import inf, log, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import binom, binomtest

from privkit.accountants.auditing import many_runs, one_run
from privkit.shared.empirical_bound import EmpiricalBound
from tests.accountants.auditing import published, roc_area
from tests.accountants.auditing.mechanisms import BOUNDS
from tests.accountants.golden import auditing, others

CASES = (*auditing.CASES, *(case for case in others.CASES if case.id.startswith("gdp_")))

INTEGERS = st.lists(st.integers(-3, 3), min_size=1, max_size=12)
FLOATS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_reference_values_are_those_of_the_table(shared: Path) -> None:
    table = {case["name"]: case for case in json.loads((shared / "oracles.json").read_text())["cases"]}
    for case in CASES:
        row = table[case.id]
        assert case.expected == row[row["kind"]]
        assert (case.rel, case.abs) == (row["tolerance"]["rtol"], row["tolerance"]["atol"] or 0)
    assert {name for name in table if name.startswith(("audit_", "gdp_"))} == {case.id for case in CASES}


# Definitions that share no code


@given(members=INTEGERS, others=INTEGERS)
def test_auroc_by_counting_pairs(members: list[int], others: list[int]) -> None:
    wins = sum((a > b) + (a == b) / 2 for a in members for b in others)
    assert roc_area.auroc(members, others) == pytest.approx(wins / len(members) / len(others), abs=1e-12)
    assert roc_area.auroc(others, members) == pytest.approx(1 - roc_area.auroc(members, others), abs=1e-12)


@given(members=INTEGERS, others=INTEGERS)
def test_convex_hull_by_all_chords(members: list[int], others: list[int]) -> None:
    points = [
        (sum(b >= t for b in others) / len(others), sum(a >= t for a in members) / len(members))
        for t in [*members, *others, inf]
    ]

    def best(x: float) -> float:
        """Highest point above x on a chord between two thresholds."""
        return max(
            y0 if x0 == x1 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
            for x0, y0 in points
            for x1, y1 in points
            if (x0 < x1 and x0 <= x <= x1) or (x0 == x1 == x)
        )

    nodes = np.arange(len(others) + 1) / len(others)
    expected = float(trapezoid([best(float(x)) for x in nodes], nodes))
    found = roc_area.auroc(members, others, convex_hull=True)
    assert found == pytest.approx(expected, abs=1e-9)
    assert found >= max(0.5, roc_area.auroc(members, others)) - 1e-12


def exact_limit(successes: int, trials: int, error: float, side: str) -> float:
    """Clopper–Pearson limit by inverting scipy's exact test."""
    interval = binomtest(successes, trials, alternative="less" if side == "high" else "greater")
    return float(getattr(interval.proportion_ci(1 - error, method="exact"), side))


@given(members=INTEGERS, others=INTEGERS, threshold=st.integers(-3, 4), delta=st.sampled_from([0.0, 1e-3, 0.2]))
def test_a_fixed_threshold_by_its_definition(
    members: list[int], others: list[int], threshold: int, delta: float
) -> None:
    kept, alarms = sum(a >= threshold for a in members), sum(b >= threshold for b in others)
    n, k, error = len(members), len(others), 0.3 / 2
    expected = 0.0
    for hits, of, false, among in ((kept, n, alarms, k), (k - alarms, k, n - kept, n)):
        numerator = exact_limit(hits, of, error, "low") - delta
        if numerator > 0:
            expected = max(expected, log(numerator / exact_limit(false, among, error, "high")))
    found = many_runs.epsilon_clopper_pearson(members, others, confidence=0.7, delta=delta, threshold=threshold)
    assert found.epsilon == pytest.approx(expected, rel=1e-9, abs=1e-12)


def p_value(epsilon: float, correct: int, asked: int, canaries: int, delta: float) -> float:
    """Theorem 5.2 term by term."""
    masses = binom.pmf(np.arange(asked + 1), asked, 1 / (1 + np.exp(-epsilon)))
    windows = [masses[max(0, correct - i) : correct].sum() / i for i in range(1, canaries + 1)]
    return min(1.0, float(masses[correct:].sum()) + 2 * canaries * delta * max(windows))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), asked=st.integers(1, 40), spare=st.integers(0, 20), epsilon=st.floats(0, 8))
def test_p_value_by_its_definition(data: st.DataObject, asked: int, spare: int, epsilon: float) -> None:
    correct = data.draw(st.integers(1, asked))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-3, 0.05]))
    expected = p_value(epsilon, correct, asked, asked + spare, delta)
    found = one_run._p_value(epsilon, correct, asked, asked + spare, delta)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-14)


@settings(deadline=None)
@given(data=st.data(), asked=st.integers(1, 30), delta=st.sampled_from([0.0, 1e-4, 1e-2]))
def test_one_run_bound_is_where_the_p_value_crosses(data: st.DataObject, asked: int, delta: float) -> None:
    wrong = data.draw(st.integers(0, asked // 3))
    members, others = [1.0] * (asked - wrong) + [0.0] * 5, [1.0] * wrong + [0.0] * (asked - 2 * wrong + 5)
    guesses = (asked, 0)
    found = one_run.epsilon_one_run(members, others, confidence=0.95, delta=delta, guesses=guesses)
    canaries = len(members) + len(others)
    if found.epsilon > 0:
        assert p_value(found.epsilon - 1e-7, asked - wrong, asked, canaries, delta) <= 0.05
        assert p_value(found.epsilon + 1e-7, asked - wrong, asked, canaries, delta) >= 0.05
        assert found.guesses == guesses
        assert found.threshold == 1.0
    else:
        assert p_value(1e-9, asked - wrong, asked, canaries, delta) >= 0.05


# Laws


@given(scores=INTEGERS, data=st.data())
def test_guesses_do_not_depend_on_who_is_a_member(scores: list[int], data: st.DataObject) -> None:
    """Ties at the border are left out whole, whoever they are; otherwise as many guesses as asked for."""
    top = data.draw(st.integers(0, len(scores)))
    bottom = data.draw(st.integers(0, len(scores) - top))
    coins = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))
    values = np.array(scores, float)
    found = one_run._trial(np.sort(values[coins]), np.sort(values[~coins]), top, bottom)
    high = [s for s in scores if sum(other >= s for other in scores) <= top]
    low = [s for s in scores if sum(other <= s for other in scores) <= bottom]
    assert found.asked == (len(high), len(low))
    in_high, in_low = np.isin(values, high), np.isin(values, low)
    assert found.correct == int(np.sum(coins & in_high) + np.sum(~coins & in_low))
    assert found.threshold == (min(high) if high else None)


@settings(deadline=None)
@given(members=FLOATS, others=FLOATS, shift=st.floats(0.0, 1e6), seed=st.integers(0, 9))
@pytest.mark.parametrize("correction", ["proven", "as_published"])
def test_laws_of_error_rates(
    correction: str, members: list[float], others: list[float], shift: float, seed: int
) -> None:
    ins = np.array(members) + shift

    def bound(a: Any, b: Any, confidence: float = 0.5, delta: float = 1e-3) -> float:
        if correction == "as_published":
            return published.epsilon_clopper_pearson(a, b, confidence=confidence, delta=delta)
        return many_runs.epsilon_clopper_pearson(a, b, confidence=confidence, delta=delta).epsilon

    base, rng = bound(ins, others), np.random.default_rng(seed)
    assert bound(rng.permutation(ins), rng.permutation(others)) == base
    ranks = {score: rank for rank, score in enumerate(sorted({*ins.tolist(), *others}))}
    assert bound([ranks[s] for s in ins.tolist()], [ranks[s] for s in others]) == base
    assert bound(ins, others, confidence=0.9) <= base
    assert bound(ins, others, delta=0.1) <= base
    if correction == "proven":  # the published one looks at one tail only
        assert bound(-np.array(others), -ins) == pytest.approx(base, rel=1e-12, abs=1e-15)


@settings(deadline=None)
@given(
    scores=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60), shift=st.floats(0.0, 1e6), seed=st.integers(0, 9)
)
def test_laws_of_one_run(scores: list[float], shift: float, seed: int) -> None:
    half = len(scores) // 2
    ins, others, rng = np.array(scores[:half]) + shift, np.array(scores[half:]), np.random.default_rng(seed)

    def bound(a: Any, b: Any, confidence: float = 0.5, delta: float = 1e-3) -> float:
        return one_run.epsilon_one_run(a, b, confidence=confidence, delta=delta).epsilon

    base = bound(ins, others)
    assert bound(rng.permutation(ins), rng.permutation(others)) == base
    assert bound(-others, -ins) == pytest.approx(base, rel=1e-9)
    ranks = {score: rank for rank, score in enumerate(sorted({*ins.tolist(), *others.tolist()}))}
    assert bound([ranks[s] for s in ins.tolist()], [ranks[s] for s in others.tolist()]) == base
    assert bound(ins, others, delta=0.1) <= base + 1e-12
    if base > 0:
        fixed = one_run.epsilon_one_run(ins, others, confidence=0.9, delta=1e-3, guesses=(half, len(scores) - half))
        looser = one_run.epsilon_one_run(ins, others, confidence=0.5, delta=1e-3, guesses=(half, len(scores) - half))
        assert fixed.epsilon <= looser.epsilon


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("scores", [([1], [0]), ([0], [1]), ([3] * 20, [3] * 20), ([1, 2], [0])])
def test_too_little_to_say_anything(bound: Callable[..., EmpiricalBound], scores: tuple[list[int], list[int]]) -> None:
    found = bound(*scores, confidence=0.95, delta=1e-5)
    assert found.epsilon == 0
    assert found.threshold is None
    assert found.guesses is None


@pytest.mark.parametrize(
    ("bound", "delta", "low", "high"),
    [
        (many_runs.epsilon_clopper_pearson, 0.0, 8, 10),
        (many_runs.epsilon_clopper_pearson, 0.5, 8, 10),
        (many_runs.epsilon_clopper_pearson, 0.999, 1, 3),
        (one_run.epsilon_one_run, 0.0, 9, 11),
        (one_run.epsilon_one_run, 1e-5, 4, 5),  # 2mδ = 2: a guess may be right for free
        (one_run.epsilon_one_run, 0.5, 0, 0),
    ],
)
def test_perfect_attacks_stay_finite(
    bound: Callable[..., EmpiricalBound], delta: float, low: float, high: float
) -> None:
    found = bound(np.arange(50_000) + 1e9, np.arange(50_000), confidence=0.95, delta=delta)
    assert low <= found.epsilon <= high


def test_bounds_carry_what_they_rest_on() -> None:
    members, others = np.arange(100) + 80.0, np.arange(100)
    fixed = many_runs.epsilon_clopper_pearson(members, others, confidence=0.9, delta=1e-5, threshold=100.0)
    assert (fixed.confidence, fixed.delta, fixed.threshold) == (0.9, 1e-5, 100.0)
    assert any("fixed before the scores were seen" in line for line in fixed.assumptions)
    assert any("independent and identically distributed" in line for line in fixed.assumptions)
    run = one_run.epsilon_one_run(members, others, confidence=0.9, delta=1e-5, guesses=(50, 50))
    assert run.guesses == (50, 50)
    assert any("fixed before the coins were known" in line for line in run.assumptions)
    assert any("fair coin" in line for line in run.assumptions)


# Bad input

FUNCTIONS: list[Callable[[Any, Any], object]] = [
    roc_area.auroc,
    lambda a, b: many_runs.epsilon_clopper_pearson(a, b, confidence=0.9, delta=0.0),
    lambda a, b: one_run.epsilon_one_run(a, b, confidence=0.9, delta=0.0),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "bad",
    [
        [],
        [nan],
        [1.0, inf],
        [-inf],
        [True, False],
        [True, 1.5],
        np.array([True]),
        ["1"],
        [None],
        [[1.0]],
        3.0,
        [1j],
        None,
        np.zeros((2, 2)),
        [[1.0], [1.0, 2.0]],
    ],
    ids=repr,
)
def test_refuses_what_is_no_score(function: Callable[[Any, Any], object], bad: Any) -> None:
    with pytest.raises(ValueError, match="in_scores"):
        function(bad, [1.0])
    with pytest.raises(ValueError, match="out_scores"):
        function([1.0], bad)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(
    "options",
    [
        {"confidence": 0.0},
        {"confidence": 1.0},
        {"confidence": nan},
        {"confidence": True},
        {"delta": -1e-9},
        {"delta": 1.0},
        {"delta": nan},
    ],
    ids=repr,
)
def test_refuses_bad_levels(bound: Callable[..., object], options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name):
        bound([1.0], [0.0], **{"confidence": 0.9, "delta": 0.0, **options})


@pytest.mark.parametrize("threshold", [nan, inf, True, "1"])
def test_refuses_bad_thresholds(threshold: Any) -> None:
    with pytest.raises(ValueError, match="threshold"):
        many_runs.epsilon_clopper_pearson([1.0], [0.0], confidence=0.9, delta=0.0, threshold=threshold)


@pytest.mark.parametrize("guesses", [(0, 0), (2, 1), (-1, 2), (1.0, 0), (True, 0), (1,), [1, 0], 1, "ab"])
def test_refuses_bad_guesses(guesses: Any) -> None:
    with pytest.raises(ValueError, match="guesses"):
        one_run.epsilon_one_run([1.0], [0.0], confidence=0.9, delta=0.0, guesses=guesses)


def test_one_run_refuses_canaries_without_coins() -> None:
    """Guessing "member" every time is right in nine of ten without any leak."""
    with pytest.raises(ValueError, match="fair coins: 900 members of 1000"):
        one_run.epsilon_one_run([0.0] * 900, [0.0] * 100, confidence=0.95, delta=0.0)


@pytest.mark.parametrize("guesses", [None, (20, 20), (60, 60), (0, 40)])
def test_no_scores_show_more_than_the_ceiling(guesses: tuple[int, int] | None) -> None:
    """Right or wrong, tied or not; and a perfect attack on balanced coins reaches it."""
    draws = np.random.default_rng(0)
    for trial in range(40):
        coins = draws.random(120) < 0.5
        scores = np.round(4 * coins + draws.normal(size=120) * (trial % 4) / 2, trial % 3)
        bound = one_run.epsilon_one_run(scores[coins], scores[~coins], confidence=0.95, delta=1e-5, guesses=guesses)
        most = one_run.ceiling_one_run(
            int(coins.sum()), int((~coins).sum()), confidence=0.95, delta=1e-5, guesses=guesses
        )
        assert bound.epsilon <= most * (1 + 1e-12)
    perfect = one_run.epsilon_one_run(
        np.arange(60) + 60, np.arange(60), confidence=0.95, delta=1e-5, guesses=guesses
    ).epsilon
    assert perfect == pytest.approx(
        one_run.ceiling_one_run(60, 60, confidence=0.95, delta=1e-5, guesses=guesses), rel=1e-9
    )


@pytest.mark.parametrize(("canaries", "most"), [(50, 2.167), (200, 3.494), (500, 4.336), (1000, 4.868)])
def test_ceilings_of_usual_numbers_of_canaries(canaries: int, most: float) -> None:
    half = canaries // 2
    assert one_run.ceiling_one_run(half, half, confidence=0.95, delta=1e-5) == pytest.approx(most, abs=1e-3)


def test_one_run_says_that_both_relations_are_covered_and_that_rows_stand_alone() -> None:
    found = one_run.epsilon_one_run(np.arange(50) + 50.0, np.arange(50), confidence=0.95, delta=1e-5)
    told = " ".join(found.assumptions)
    assert "under add-or-remove" in told
    assert "under replace-one" in told
    assert "for this bound alone" in told


def test_a_confidence_whose_error_rounds_to_one_is_refused() -> None:
    """It rejected every ε, so the search for the largest one never ended."""
    with pytest.raises(ValueError, match="confidence must be a finite number >= 1e-15"):
        one_run.epsilon_one_run(np.arange(50) + 50.0, np.arange(50), confidence=1e-17, delta=1e-5, guesses=(1, 0))
