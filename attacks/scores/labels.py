"""Accuracy of guesses among several labels, also after the best renaming of the labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from privkit.shared.interval import Interval, clopper_pearson

Labels = NDArray[np.int64]


def label_accuracy(labels: Labels, guesses: Labels) -> Interval:
    """Share of right guesses in [0, 1], with its exact confidence interval over N records.

    Source: Clopper and Pearson 1934.
    """
    return clopper_pearson(int((labels == guesses).sum()), len(labels))


def cluster_accuracy(labels: Labels, guesses: Labels) -> Interval:
    """Share of right guesses in [0, 1] after the best one-to-one renaming of the guesses, chosen with the true labels.

    It measures how well records of one label are separated from others; the names of labels do not matter. The renaming
    is fitted to the same records, so the value is above chance even if nothing is learned. The lower confidence limit
    avoids this bias: each half of the records is scored with the best renaming of the other half.

    Source: Kuhn 1955 for the assignment; the measure is the clustering accuracy of Xie et al. 2016, "Unsupervised deep
    embedding for clustering analysis", §5.2.
    """
    from scipy.optimize import linear_sum_assignment

    count, odd = int(max(labels.max(), guesses.max())) + 1, np.arange(len(labels)) % 2 == 1
    halves = [
        np.bincount(guesses[part] * count + labels[part], minlength=count**2).reshape(count, count)
        for part in (odd, ~odd)
    ]

    def hits(pairs: Labels, fitted: Labels) -> int:
        return int(pairs[linear_sum_assignment(-fitted)].sum())

    first, second = halves
    best, apart = hits(first + second, first + second), hits(first, second) + hits(second, first)
    found, least = clopper_pearson(best, len(labels)), clopper_pearson(apart, len(labels))
    return replace(
        found, low=min(found.low, least.low), method=f"{found.method}, with the lower limit from halves of the examples"
    )
