"""Accuracy and its exact interval."""

import pytest
from scipy.stats import beta

from privkit.metrics.classification import accuracy


@pytest.mark.parametrize(("correct", "trials"), [(0, 10), (3, 10), (10, 10), (440, 500)])
def test_interval_is_clopper_pearson(correct: int, trials: int) -> None:
    found = accuracy(correct, trials)
    low = beta.ppf(0.025, correct, trials - correct + 1) if correct else 0.0
    high = beta.ppf(0.975, correct + 1, trials - correct) if correct < trials else 1.0
    assert (found.low, found.value, found.high) == pytest.approx((low, correct / trials, high))
    assert found.n == trials


def test_nothing_to_count_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        accuracy(0, 0)
