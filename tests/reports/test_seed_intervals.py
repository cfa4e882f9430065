"""Intervals over seeds: inside their range, and as sure as they say."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privkit.reports.seed_intervals import over_intervals, over_records, over_values
from privkit.shared.interval import Interval, clopper_pearson
from privkit.shared.measures import MEASURES, UNBOUNDED, UNIT, measure

REPEATS = 4_000


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize(("mean", "size"), [(0.5, 10), (0.8, 10), (0.8, 100), (0.95, 100)])
def test_shares_of_seeds_are_covered_as_often_as_said(mean: float, size: float, n: int) -> None:
    """Beta laws of mean .5 to .95 and standard deviation .02 to .15."""
    assert coverage(mean, size, n, UNIT) >= 0.95 - 4 * (0.95 * 0.05 / REPEATS) ** 0.5


@pytest.mark.parametrize("n", [2, 3, 5])
def test_at_the_end_of_a_range_more_is_covered_than_by_students_interval(n: int) -> None:
    """A Beta law with half of its mass above .993: .93 and more here, .87 to .92 there."""
    own, students = coverage(0.99, 100, n, UNIT), coverage(0.99, 100, n, UNBOUNDED)
    assert own >= 0.93
    assert own >= students + 0.03


def coverage(mean: float, size: float, n: int, within: tuple[float, float]) -> float:
    """How often the interval of n draws of Beta(mean·size, (1 - mean)·size) holds the mean."""
    draws = np.random.default_rng(0).beta(mean * size, (1 - mean) * size, (REPEATS, n))
    return float(np.mean([(found := over_values(row, 0.95, within)).low <= mean <= found.high for row in draws]))


def test_errors_of_seeds_are_covered_as_often_as_said() -> None:
    """Gamma laws, as of bits and PSNR, with a coefficient of variation of .1 and .3."""
    for shape in (100, 11):
        draws = np.random.default_rng(1).gamma(shape, 1 / shape, (REPEATS, 3))
        covered = np.mean([(found := over_values(row, 0.95, (0, inf))).low <= 1 <= found.high for row in draws])
        assert covered >= 0.935


@given(st.sampled_from(sorted(MEASURES)), st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_no_interval_leaves_its_range_or_its_mean(name: str, values: list[float]) -> None:
    low, high = MEASURES[name].within
    found = over_values(values, 0.95, MEASURES[name].within)
    assert low <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= high


@pytest.mark.parametrize("end", [1.0, -1.0])
def test_a_mean_next_to_an_end_of_the_range_has_an_interval(end: float) -> None:
    """Its share of the range rounds to 0 or 1, which has no logit."""
    found = over_records([end, end * (1 - 2**-52)], 0.95, (-1.0, 1.0))
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low < 1e-9


def test_what_was_seen_over_two_seeds() -> None:
    """Accuracies whose Student interval is -.325 to 1.010, and an AUC that reached 2.69."""
    accuracy, auc = over_values([0.29, 0.395], 0.95, (0, 1)), over_values([0.55, 0.90], 0.95, (0, 1))
    assert 0 < accuracy.low < 0.29
    assert 0.395 < accuracy.high < 1
    assert 0.725 < auc.high < 1


def test_infinite_and_equal_values() -> None:
    assert over_values([20.0, inf], 0.95, MEASURES["psnr"].within).high == inf
    exact = over_values([1.0, 1.0], 0.95, (0, 1))
    assert (exact.low, exact.high) == (1.0, 1.0)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.98, 0.995])
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("records", [20, 100])
def test_shares_that_agree_by_chance_are_no_certainty(share: float, seeds: int, records: int) -> None:
    """Student's interval of shares of 20 records near 1 is a point in most runs, and covers 20 to 84 %."""
    hits = np.random.default_rng(0).binomial(records, share, (500, seeds))
    found = [over_intervals([clopper_pearson(int(k), records) for k in row], 0.95, UNIT) for row in hits]
    assert np.mean([one.low - 1e-12 <= share <= one.high + 1e-12 for one in found]) > 0.92


def test_a_best_threshold_is_above_chance_at_every_seed() -> None:
    """Advantages of scores without a leak: their own limits hold 0, and so does the mean of them."""
    own = [Interval(value=value, low=0.0, high=0.6, n=100, method="bands") for value in (0.16, 0.17, 0.18)]
    assert over_intervals(own, 0.95, measure("advantage").within, fitted=measure("advantage").fitted).low <= 0
    assert over_intervals(own, 0.95).low > 0
