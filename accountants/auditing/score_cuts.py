"""Sorted scores, the errors of thresholds on them, and exact confidence limits of an error probability."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

from privkit.accountants import validate
from privkit.shared.array import Array

_Counts = NDArray[np.int64]


def levels(confidence: float, delta: float) -> tuple[float, float]:
    """Check `confidence`, in [1e-15, 1), and δ, in [0, 1). Returns the error probability 1 − confidence, and δ."""
    error = 1 - validate.real("confidence", confidence, least=1e-15, below=1)  # less would round to an error of 1
    return error, validate.real("delta", delta, least=0, below=1)


def scores(name: str, values: ArrayLike) -> Array:
    """Sort n scores: float [n]. Anything but a list of finite numbers raises a ValueError, which quotes `name`."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be a list of numbers, got rows of different lengths") from None
    if isinstance(values, list | tuple) and any(isinstance(value, bool | np.bool_) for value in values):
        raise ValueError(f"{name} must hold finite numbers, got a boolean")
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} must be a list of at least one score, got shape {array.shape}")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must hold finite numbers, got values of type {array.dtype}")
    array = array.astype(np.float64)
    if not np.all(np.isfinite(array)):
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name} must hold finite numbers, got {array[at]!r} at position {at}")
    return np.sort(array)


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """J thresholds and their numbers of errors, if every score at or above the threshold is guessed "member"."""

    thresholds: Array  # [J] score thresholds
    missed: _Counts  # [J] number of members below the threshold
    alarms: _Counts  # [J] number of non-members at or above the threshold

    @classmethod
    def of(cls, members: Array, others: Array) -> Cuts:
        """All thresholds that the sorted scores distinguish, in increasing order; infinity is the last."""
        return cls.at(members, others, np.append(np.union1d(members, others), inf))

    @classmethod
    def at(cls, members: Array, others: Array, thresholds: ArrayLike) -> Cuts:
        """The numbers of errors at one threshold or several."""
        cuts = np.atleast_1d(np.asarray(thresholds, float))
        missed, beyond = np.searchsorted(members, cuts, "left"), others.size - np.searchsorted(others, cuts, "left")
        return cls(thresholds=cuts, missed=missed.astype(np.int64), alarms=beyond.astype(np.int64))

    @classmethod
    def at_ranks(cls, members: Array, others: Array) -> Cuts:
        """Thresholds at ranks that do not depend on the scores. For j = 0, 1, …, at most ⌈n/2^j⌉ − 1 of n non-members
        are at or above the threshold, or at most ⌈n/2^j⌉ − 1 of n members are below it. The limit itself is stored as
        the number of these errors."""
        alarms, missed = halved(others.size) - 1, halved(members.size) - 1
        above = np.nextafter(others[others.size - 1 - alarms], inf)
        at = members[missed]
        return cls(
            thresholds=np.concatenate([above, at]),
            missed=np.concatenate([np.searchsorted(members, above, "left"), missed]),
            alarms=np.concatenate([alarms, others.size - np.searchsorted(others, at, "left")]),
        )

    def __add__(self, other: Cuts) -> Cuts:
        return Cuts(
            thresholds=np.concatenate([self.thresholds, other.thresholds]),
            missed=np.concatenate([self.missed, other.missed]),
            alarms=np.concatenate([self.alarms, other.alarms]),
        )

    def hull(self) -> Cuts:
        """Keep the thresholds at the corners of the ROC curve's convex hull, both ends included."""
        corners: list[int] = []
        points = list(zip(self.missed.tolist(), (-self.alarms).tolist(), strict=True))
        for at, (x, y) in enumerate(points):
            while len(corners) > 1:
                (x0, y0), (x1, y1) = points[corners[-2]], points[corners[-1]]
                if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                    break
                corners.pop()
            corners.append(at)
        return Cuts(thresholds=self.thresholds[corners], missed=self.missed[corners], alarms=self.alarms[corners])


def lower(successes: ArrayLike, trials: int, error: ArrayLike) -> Array:
    """One-sided lower Clopper–Pearson limit of a probability, at error probability `error`; 0 without a success."""
    k = np.asarray(successes, float)
    return np.where(k > 0, betaincinv(np.maximum(k, 1), trials - np.maximum(k, 1) + 1, error), 0.0)


def upper(successes: ArrayLike, trials: int, error: ArrayLike) -> Array:
    """One-sided upper Clopper–Pearson limit of a probability, at error probability `error`; 1 without a failure."""
    k = np.asarray(successes, float)
    inside = np.minimum(k, trials - 1)
    return np.where(k < trials, betainccinv(inside + 1, trials - inside, error), 1.0)


def halved(number: int) -> _Counts:
    """The whole numbers ⌈n/2^j⌉ for j = 0, 1, …, from n down to 1."""
    shifts = np.arange((number - 1).bit_length() + 1)
    return -(-number // (1 << shifts.astype(np.int64)))
