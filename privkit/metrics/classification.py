"""How well the task is solved: accuracy with an exact interval, MCC and AUC."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Proportion:
    """A share of `n` trials with its Clopper–Pearson interval, all in [0, 1]."""

    value: float
    low: float
    high: float
    n: int
    confidence: float


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """How well a model solves its task on some records; higher is better.

    Attributes:
        accuracy: share of records whose class is right; of several labels a record, the share of labels that are right.
        mcc: Matthews' correlation coefficient in [-1, 1], 0 for a constant guess.
        auc: area under the ROC curve in [0, 1], the mean over classes; None where no class has both kinds of records.
    """

    accuracy: Proportion
    mcc: float
    auc: float | None

    def numbers(self) -> dict[str, float]:
        """Name -> value, of those that are defined."""
        values = {"accuracy": self.accuracy.value, "mcc": self.mcc, "auc": self.auc}
        return {name: value for name, value in values.items() if value is not None}


def accuracy(correct: float, trials: int, *, confidence: float = 0.95) -> Proportion:
    """Top-1 accuracy and its exact (Clopper–Pearson) interval over the test images; higher is better.

    Args:
        correct: 0..trials; the sum of shares where a record has several labels. The interval then holds for records,
            whose labels depend on each other, and rounds outwards.
        trials: test images, ≥ 1.
        confidence: in (0, 1).

    Source: Clopper and Pearson 1934, computed by scipy `binomtest`.

    >>> accuracy(90, 100).low > 0.82
    True
    """
    from scipy.stats import binomtest

    if trials < 1:
        raise ValueError("accuracy needs at least one test image: there is nothing to count")
    low, high = (
        binomtest(count, trials).proportion_ci(confidence_level=confidence, method="exact")
        for count in (floor(correct), ceil(correct))
    )
    return Proportion(
        value=correct / trials, low=float(low.low), high=float(high.high), n=trials, confidence=confidence
    )


def task_scores(scores: Floats, labels: Whole) -> TaskScores:
    """Accuracy, MCC and AUC of a classifier.

    Args:
        scores: [N, L], one a class, higher where the model believes in it; of several labels a record, above 0 for yes.
        labels: [N], the class of each record; or [N, L] of 0 and 1, several labels a record.

    >>> found = task_scores(np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1]))
    >>> round(found.accuracy.value, 3), found.mcc, found.auc
    (0.667, 0.5, 0.75)
    """
    if labels.ndim == 2:
        predicted, targets = (scores > 0).astype(np.int64).ravel(), labels
        truth, classes = labels.ravel(), 2
    else:
        predicted, truth, classes = scores.argmax(1), labels, scores.shape[1]
        targets = truth[:, None] == np.arange(classes)
        scores = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)  # comparable from record to record
    return TaskScores(
        accuracy=accuracy(int((predicted == truth).sum()) * len(labels) / truth.size, len(labels)),
        mcc=mcc(truth, predicted, classes),
        auc=auc(scores, targets.astype(bool)),
    )


def mcc(labels: Whole, predicted: Whole, classes: int) -> float:
    """Matthews' correlation coefficient, for any number of classes; 0 where one side is constant.

    Args:
        labels: [N], 0..classes−1.
        predicted: [N], likewise.
        classes: L ≥ 1.

    Source: Gorodkin 2004 (R_K); for two classes Yao et al., patch shuffling, §V-A.3.

    >>> mcc(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 2)
    0.5773502691896258
    """
    counts = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes).astype(float)
    total, truth, guess = counts.sum(), counts.sum(1), counts.sum(0)
    spread = sqrt((total**2 - truth @ truth) * (total**2 - guess @ guess))
    return float(total * np.trace(counts) - truth @ guess) / spread if spread else 0.0


def auc(scores: Floats, targets: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve, the mean over classes, one against the rest; ties count one half.

    Args:
        scores: [N, L].
        targets: [N, L].

    Returns:
        None where no class has both kinds of records.

    Source: Hanley and McNeil 1982 (Mann and Whitney's statistic).

    >>> auc(np.array([[0.1], [0.4], [0.35], [0.8]]), np.array([[False], [False], [True], [True]]))
    0.75
    """
    from scipy.stats import rankdata

    positive = targets.sum(0)
    negative = len(targets) - positive
    defined = (positive > 0) & (negative > 0)
    if not defined.any():
        return None
    above = (rankdata(scores, axis=0) * targets).sum(0) - positive * (positive + 1) / 2
    return float((above[defined] / (positive * negative)[defined]).mean())
