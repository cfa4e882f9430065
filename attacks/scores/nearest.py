"""Identification: whether a guess is nearer to its own record than to all other attacked records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privkit.attacks.scores.image import Values

_TIE = 1e-9  # distances that differ by less than this share of their mean count as equal, because of rounding


def found(distances: Values, own: NDArray[np.int64]) -> Values:
    """The probability that each guess identifies its own record as the nearest one, if ties are broken at random.

    The mean over G guesses is the expected share of identified records. Guesses that are independent of their records
    reach 1/N on average, for N records. Equal records count as a tie. `distances` are [G, N]; `own` [G] is the column
    of a guess's record.

    >>> found(np.array([[0.1, 0.5, 0.9], [0.2, 0.2, 0.9], [0.1, 0.5, 0.9]]), np.arange(3))
    array([1. , 0.5, 0. ])
    """
    near = distances <= distances.min(1, keepdims=True) + _TIE * np.abs(distances).mean(1, keepdims=True)
    values: Values = near[np.arange(len(own)), own] / near.sum(1)
    return values
