"""Intervals of the task's scores: exact for accuracy, and of MCC and AUC as wide as repeated draws spread."""

import numpy as np
import pytest
from scipy.stats import beta

from privkit.metrics.classification import auc, mcc, task_scores
from privkit.shared.interval import Interval, clopper_pearson


@pytest.mark.parametrize(("correct", "trials"), [(0, 10), (3, 10), (10, 10), (440, 500)])
def test_a_share_has_the_interval_of_clopper_and_pearson(correct: int, trials: int) -> None:
    found = clopper_pearson(correct, trials)
    low = beta.ppf(0.025, correct, trials - correct + 1) if correct else 0.0
    high = beta.ppf(0.975, correct + 1, trials - correct) if correct < trials else 1.0
    assert (found.low, found.value, found.high) == pytest.approx((low, correct / trials, high))
    assert found.n == trials


def test_nothing_to_count_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        clopper_pearson(0, 0)


def drawn(draws: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a classifier that is right more often than not, on three classes of different sizes."""
    labels = draws.choice(3, size=n, p=[0.6, 0.3, 0.1])
    return draws.normal(size=(n, 3)) + 1.5 * np.eye(3)[labels], labels


def test_limits_cover_the_true_scores_as_often_as_they_say() -> None:
    draws = np.random.default_rng(0)
    scores, labels = drawn(draws, 200_000)
    truth, targets = mcc(labels, scores.argmax(1), 3).value, labels[:, None] == np.arange(3)
    area = auc(scores, targets)
    assert area is not None
    hits = np.zeros(2)
    for _ in range(400):
        scores, labels = drawn(draws, 120)
        one, other = mcc(labels, scores.argmax(1), 3), auc(scores, labels[:, None] == np.arange(3))
        assert other is not None
        hits += [one.low <= truth <= one.high, other.low <= area.value <= other.high]
    assert (hits / 400 > 0.92).all(), hits
    assert (hits / 400 < 0.985).all(), hits


def test_labels_of_one_record_stand_or_fall_together() -> None:
    """The same label said four times a record is no more evidence than said once."""
    draws = np.random.default_rng(1)
    labels = draws.integers(2, size=(150, 1))
    scores = draws.normal(size=(150, 1)) + labels
    once, often = task_scores(scores, labels), task_scores(np.tile(scores, 4), np.tile(labels, 4))
    for one, other in ((once.mcc, often.mcc), (once.auc, often.auc)):
        assert one is not None
        assert other is not None
        assert (other.value, other.low, other.high) == pytest.approx((one.value, one.low, one.high))


@pytest.mark.parametrize("right", [True, False])
def test_a_classifier_without_a_counted_error_has_limits_all_the_same(right: bool) -> None:
    labels = np.arange(100) % 2
    said = labels if right else 1 - labels
    found = [mcc(labels, said, 2), auc(np.eye(2)[said], labels[:, None] == np.arange(2))]
    for one in found:
        assert one is not None
        assert one.high - one.low < 0.25
        assert one.value == (one.high if right else one.low)
        assert "Clopper–Pearson" in one.method


def test_what_shows_no_spread_has_the_whole_range() -> None:
    constant = mcc(np.array([0, 1]), np.array([0, 0]), 2)
    tied = auc(np.zeros((4, 1)), np.array([[True], [True], [False], [False]]))
    alone = auc(np.arange(4.0)[:, None], np.array([[False], [False], [False], [True]]))
    for found, low in ((constant, -1.0), (tied, 0.0), (alone, 0.0)):
        assert isinstance(found, Interval)
        assert (found.low, found.high) == (low, 1.0)
        assert found.method.startswith("none: ")


def test_a_logit_that_is_no_number_has_no_rank_and_no_auc() -> None:
    scores, labels = drawn(np.random.default_rng(0), 60)
    assert task_scores(scores, labels).auc is not None
    scores[3, 1] = np.nan
    assert task_scores(scores, labels).defined.keys() == {"accuracy", "mcc"}
