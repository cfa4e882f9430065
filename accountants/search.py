"""Bisection for the largest value at which a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar

Number = TypeVar("Number", int, float)
_STEPS = 200  # most halvings: enough to reach two neighboring floats, except near zero


def doubled(holds: Callable[[Number], bool], low: Number, high: Number, *, most: float = inf) -> tuple[Number, Number]:
    """Double `high` until a condition fails there. Returns the last value at which it held, and `high`.

    `holds` must be true from `low` up to some value, and false above it. `high` > 0 is the first value to try. Values
    above `most` are not tested, so the condition may still hold at a returned `high` above `most`.
    """
    while high <= most and holds(high):
        low, high = high, 2 * high
    return low, high


def narrowed(
    holds: Callable[[Number], bool],
    low: Number,
    high: Number,
    *,
    near: Callable[[Number, Number], bool] = lambda low, high: False,
    middle: Callable[[Number, Number], Number] | None = None,
) -> tuple[Number, Number]:
    """Bisect (`low`, `high`) to two close numbers: a condition holds at the lower and fails at the upper number.

    `holds` is true at `low` and false at `high`, and changes only once between them. `near` says whether two ends are
    close enough; neighboring numbers always are. `middle` gives a value between two ends; by default the (floored)
    mean.

    >>> narrowed(lambda value: value * value <= 2, 1, 100)
    (1, 2)
    >>> [round(end, 9) for end in narrowed(lambda value: value * value <= 2, 1.0, 2.0)]
    [1.414213562, 1.414213562]
    """
    for _ in range(_STEPS):
        between = middle(low, high) if middle else (low + high) // 2 if isinstance(low, int) else (low + high) / 2
        if between in (low, high) or near(low, high):
            break
        low, high = (between, high) if holds(between) else (low, between)
    return low, high
