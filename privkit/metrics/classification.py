"""Scores of the classification task: accuracy, MCC and AUC, each with a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privkit.shared.interval import Interval, clopper_pearson

_CONFIDENCE = 0.95


def _delta_method(value: float, influence: Floats, within: tuple[float, float], scale: str) -> Interval | None:
    """Confidence interval of a statistic in the range `within`, from the N records' influences [N], with mean zero.

    The statistic's variance is estimated by the variance of the mean influence. The interval is computed on the logit
    scale of the range; on (-1, 1) this is Fisher's z. The result is None if all influences are 0, or if the value is an
    end of the range.

    Source: Hampel 1974 (the influence curve); Efron and Tibshirani 1993, §22 (the delta method).
    """
    low, high = within
    n, share = len(influence), (value - low) / (high - low)
    error = sqrt(float(influence @ influence) / (n * (n - 1))) if n > 1 else 0.0
    if error < 1e-12 or not 0 < share < 1:
        return None
    half = float(ndtri((1 + _CONFIDENCE) / 2)) * error / (high - low) / (share * (1 - share))
    center = log(share) - log1p(-share)
    ends = [low + (high - low) / (1 + exp(-min(max(at, -700.0), 700.0))) for at in (center - half, center + half)]
    method = f"delta method, on {scale}"
    return Interval(value=value, low=ends[0], high=ends[1], n=n, confidence=_CONFIDENCE, method=method)


def _unknown(value: float, n: int, within: tuple[float, float], reason: str) -> Interval:
    method = f"none: {reason}"
    return Interval(value=value, low=within[0], high=within[1], n=n, confidence=_CONFIDENCE, method=method)


def _error_limit(n: int, looks: int = 1) -> float:
    """Clopper–Pearson's upper limit of an error rate after n ≥ 1 trials without error. If `looks` such limits are
    computed, all of them hold together at the confidence level."""
    return 1 - float(((1 - _CONFIDENCE) / (2 * looks)) ** (1 / n))


Floats = NDArray[np.float64]
_Whole = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """How well a model solves its task on some records; higher is better."""

    # share in [0, 1] of records with the right class; with several labels per record, share of right labels; for
    # predicted texts, share of right tokens
    accuracy: Interval
    # Matthews' correlation coefficient in [-1, 1], 0 for a constant guess; None for predicted texts
    mcc: Interval | None = None
    # area under the ROC curve in [0, 1], mean over classes; None if no class has positive and negative records, or if a
    # score is NaN
    auc: Interval | None = None

    @property
    def defined(self) -> dict[str, Interval]:
        """The scores that are not None, by name."""
        scores = {"accuracy": self.accuracy, "mcc": self.mcc, "auc": self.auc}
        return {name: score for name, score in scores.items() if score is not None}


def task_scores(scores: Floats, labels: _Whole) -> TaskScores:
    """Accuracy, MCC and AUC of a classifier on N records, from its scores for L classes, [N, L], and the classes [N].

    If each record has L labels, `labels` is [N, L] of 0 and 1, and a score above 0 predicts a label.
    """
    if labels.ndim == 2:
        predicted, targets, classes = (scores > 0).astype(np.int64), labels, 2
    else:
        predicted, classes = scores.argmax(1), scores.shape[1]
        targets = labels[:, None] == np.arange(classes)
        with np.errstate(invalid="ignore"):  # a model may answer NaN or infinity
            scores = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)  # comparable from record to record
    return TaskScores(
        accuracy=accuracy(labels, predicted),
        mcc=mcc(labels, predicted, classes),
        auc=auc(scores, targets.astype(bool)),
    )


def token_scores(predicted: _Whole, tokens: _Whole) -> TaskScores:
    """Share of correct tokens in N texts [N, T], with a confidence interval; id 0 is padding and does not count.

    The interval treats texts, not tokens, as independent.

    >>> token_scores(np.array([[3, 4], [5, 0]]), np.array([[3, 9], [5, 0]])).accuracy.value
    0.6666666666666666
    """
    asked = tokens != 0
    right, each, n = ((predicted == tokens) & asked).sum(1), asked.sum(1), len(tokens)
    if not asked.any():
        return TaskScores(accuracy=_unknown(0.0, n, (0.0, 1.0), "no text has a second token"))
    value = float(right.sum() / each.sum())
    found = _delta_method(value, (right - value * each) / each.mean(), (0.0, 1.0), "the logit scale")
    return TaskScores(accuracy=found or _unknown(value, n, (0.0, 1.0), "the texts show no spread"))


def accuracy(labels: _Whole, predicted: _Whole) -> Interval:
    """Share of correct predictions, with a confidence interval over N records.

    Labels are classes [N], for which the interval is exact, or L labels per record, [N, L].

    Source: Clopper and Pearson 1934.
    """
    return clopper_pearson(int((predicted == labels).sum()) * len(labels) / labels.size, len(labels))


def mcc(labels: _Whole, predicted: _Whole, classes: int) -> Interval:
    """Matthews' correlation coefficient in [−1, 1], for any number of classes; 0 if predictions or labels are constant.

    If no prediction is wrong, the delta method does not apply. The interval's lower limit is then the MCC of a
    classifier with the observed class shares and with Clopper–Pearson's upper limit as error rate. L labels per record,
    [N, L], count as dependent.

    Source: Gorodkin 2004 (R_K); for two classes Yao et al., patch shuffling, §V-A.3. The influence and the limit
    without errors are privkit's derivation.
    """
    counts = np.bincount((labels * classes + predicted).ravel(), minlength=classes**2).reshape(classes, classes)
    counts, whole = counts.astype(float), (-1.0, 1.0)
    total, truth, guess = counts.sum(), counts.sum(1), counts.sum(0)
    spread = sqrt((total**2 - truth @ truth) * (total**2 - guess @ guess))
    if not spread:
        return _unknown(0.0, len(labels), whole, "one side is constant")
    value = float(total * np.trace(counts) - truth @ guess) / spread
    t, p = truth / total, guess / total
    right, both, of_truth, of_guess = np.trace(counts) / total, t @ p, 1 - t @ t, 1 - p @ p
    above = (labels == predicted) - right - (t[predicted] - both) - (p[labels] - both)
    beside = (t @ t - t[labels]) / of_truth + (p @ p - p[predicted]) / of_guess
    influence = above / sqrt(of_truth * of_guess) - value * beside
    found = _delta_method(value, influence.reshape(len(labels), -1).mean(1), whole, "Fisher's z")
    if found is not None:
        return found
    if abs(value) < 1 - 1e-9:
        return _unknown(value, len(labels), whole, "the records show no spread")
    errors = _error_limit(len(labels))
    least = max(-1.0, float(of_truth - 2 * errors) / sqrt(of_truth * (of_truth + 2 * errors)))
    low, high = (least, 1.0) if value > 0 else (-1.0, -least)
    return Interval(value=value, low=low, high=high, n=len(labels), method="Clopper–Pearson limit of the errors")


def auc(scores: Floats, targets: NDArray[np.bool_]) -> Interval | None:
    """Area under the ROC curve of L classes, each against the rest, averaged over classes; `scores` and `targets` [N,
    L].

    Ties count one half. If all pairs are ranked correctly, each class gets Clopper–Pearson's limit for its number of
    disjoint pairs; the limits hold jointly. The result is None if no class has both positive and negative records, or
    if a score is NaN, which has no rank.

    Source: Hanley and McNeil 1982 (Mann and Whitney's statistic); DeLong, DeLong and Clarke-Pearson 1988 (the
    contribution of each record to one area; the mean over classes is derived).
    """
    from scipy.stats import rankdata

    positive = targets.sum(0)
    negative = len(targets) - positive
    defined = (positive > 0) & (negative > 0)
    if not defined.any() or np.isnan(scores).any():
        return None
    scores, targets, positive, negative = scores[:, defined], targets[:, defined], positive[defined], negative[defined]
    ranks, whole = rankdata(scores, axis=0), (0.0, 1.0)
    areas = ((ranks * targets).sum(0) - positive * (positive + 1) / 2) / (positive * negative)
    value = float(areas.mean())
    pairs = np.minimum(positive, negative)
    if pairs.min() < 2:
        return _unknown(value, len(scores), whole, "one example of a kind tells no variance")
    among = np.where(targets, rankdata(np.where(targets, scores, np.inf), axis=0), 0.0)  # ranks among their own kind
    among += np.where(targets, 0.0, rankdata(np.where(targets, np.inf, scores), axis=0))
    beaten = np.where(targets, (ranks - among) / negative, 1 - (ranks - among) / positive)
    influence = (beaten - areas) * len(scores) / np.where(targets, positive, negative)
    found = _delta_method(value, influence.mean(1), whole, "the logit scale")
    if found is not None:
        return found
    if 0 < value < 1:
        return _unknown(value, len(scores), whole, "the scores all tie")
    least = float(np.mean([1 - _error_limit(int(n), len(pairs)) for n in pairs]))
    low, high = (least, 1.0) if value == 1 else (0.0, 1 - least)
    return Interval(value=value, low=low, high=high, n=len(scores), method="Clopper–Pearson of disjoint pairs")
