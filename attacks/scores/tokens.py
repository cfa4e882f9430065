"""Compare sequences of token ids without regard to their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PADDING = 0  # the id behind the end of a text, in every domain of token sequences


def rouge_1(truth: NDArray[np.int64], guess: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many token ids two texts share in any order: the F-measure ROUGE-1 of each of N pairs, float64 [N] in [0, 1].

    Padding does not count. Token ids are [N, T] for the truth and [N, S] for the guess, or [1, S] for all rows.

    Source: Lin 2004, "ROUGE: a package for automatic evaluation of summaries", §2 (equal weights of precision and
    recall).

    >>> rouge_1(np.array([[2, 3, 0]]), np.array([[3, 3, 2]])).tolist()
    [0.8]
    """
    before = np.tril(truth[:, :, None] == truth[:, None, :], -1).sum(2)  # equal tokens in front of each one
    there = (truth[:, :, None] == guess[:, None, :]).sum(2)
    shared = ((before < there) & (truth != PADDING)).sum(1)
    both = (truth != PADDING).sum(1) + (guess != PADDING).sum(1)
    return np.asarray(2 * shared / np.maximum(both, 1))
