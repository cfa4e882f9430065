"""Accuracy of guesses among several labels, also after the best renaming of the labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privkit.shared.interval import Interval, clopper_pearson

Labels = NDArray[np.int64]


def label_accuracy(labels: Labels, guesses: Labels) -> Interval:
    """Share of right guesses, with its exact interval over records.

    Args:
        labels: int64 [N].
        guesses: int64 [N].

    Source: Clopper and Pearson 1934.

    >>> label_accuracy(np.array([0, 1, 1, 2]), np.array([0, 1, 1, 0])).value
    0.75
    """
    return clopper_pearson(int((labels == guesses).sum()), len(labels))


def cluster_accuracy(labels: Labels, guesses: Labels) -> Interval:
    """Share of right guesses after the best one-to-one renaming of the guessed labels, which the truth chooses.

    It measures how well records of one label are separated from others, whatever the names of labels. The renaming is
    fitted to the same records, so the result is above chance even if nothing is learned.

    Args:
        labels: int64 [N].
        guesses: int64 [N].

    Source: Kuhn 1955 for the assignment; the measure is the clustering accuracy of Xie et al. 2016, "Unsupervised deep
    embedding for clustering analysis", §5.2.

    >>> cluster_accuracy(np.array([0, 0, 1, 2]), np.array([2, 2, 0, 1])).value
    1.0
    """
    from scipy.optimize import linear_sum_assignment

    count = int(max(labels.max(), guesses.max())) + 1
    pairs = np.bincount(guesses * count + labels, minlength=count**2).reshape(count, count)
    renamed = linear_sum_assignment(-pairs)[1]
    return clopper_pearson(int(pairs[np.arange(count), renamed].sum()), len(labels))
