"""Compares table rows cell by cell, and finds the guess that is right in most cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CLOSE = 0.05  # a dense cell counts as recovered if the guess is off by at most this share of its column's range
_WINDOW = 2 * CLOSE * (1 - 1e-5)  # width of the values that one guess recovers, without rounding errors


def right_cells(truth: NDArray[np.floating], guess: NDArray[np.floating], sizes: Sequence[int]) -> NDArray[np.bool_]:
    """Which cells of N guessed rows count as recovered, bool [N, C]; both arguments are [N, C] or [1, C].

    `sizes` has the number of categories of each of the C columns, 0 for a dense column with values in [0, 1].

    >>> right_cells(np.array([[0.5, 0.5, 1.0]]), np.array([[0.54, 0.6, 1.0]]), (0, 0, 3)).tolist()
    [[True, False, True]]
    """
    off = np.abs(truth.astype(np.float64) - guess.astype(np.float64))
    return np.asarray(np.where(np.array(sizes) == 0, off <= CLOSE, off < 0.5))


def commonest_values(rows: NDArray[np.float32], sizes: Sequence[int]) -> NDArray[np.float32]:
    """The constant guess [C] that is right in most cells of the N ≥ 1 rows [N, C]: the most frequent category of each
    column, or the middle of the window of a dense column that holds most values. `sizes` is as in `right_cells`.

    >>> commonest_values(np.array([[0, 2], [0, 1], [0.9, 1]], dtype=np.float32), (0, 3)).tolist()
    [0.0, 1.0]
    """
    guess = np.empty(rows.shape[1], dtype=np.float32)
    for place, size in enumerate(sizes):
        column = np.sort(rows[:, place].astype(np.float64))
        if size:
            guess[place] = np.bincount(column.astype(np.int64)).argmax()
            continue
        ends = np.searchsorted(column, column + _WINDOW, side="right")
        first = int((ends - np.arange(len(column))).argmax())
        guess[place] = (column[first] + column[ends[first] - 1]) / 2
    return guess
