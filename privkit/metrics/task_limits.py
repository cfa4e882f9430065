"""Confidence limits of MCC and AUC: the delta method, on a scale on which the limits stay in range."""

from __future__ import annotations

from math import exp, log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privkit.shared.interval import Interval

Floats = NDArray[np.float64]

CONFIDENCE = 0.95


def delta_method(value: float, influence: Floats, within: tuple[float, float], scale: str) -> Interval | None:
    """A statistic's interval from what each record contributes to it.

    The variance of the statistic is that of the mean influence. The half width is carried to the logit scale of the
    range, and the limits are carried back; on (-1, 1) that is Fisher's z.

    Args:
        value: of the statistic, inside its range.
        influence: [N], derivative of the statistic in the weight of each record, of mean zero.
        within: the range of the statistic.
        scale: its name, for `method`.

    Returns:
        None where the influence has no spread, or the value lies at an end of the range.

    Source: Hampel 1974 (the influence curve); Efron and Tibshirani 1993, §22 (the delta method).
    """
    low, high = within
    n, share = len(influence), (value - low) / (high - low)
    error = sqrt(float(influence @ influence) / (n * (n - 1))) if n > 1 else 0.0
    if error < 1e-12 or not 0 < share < 1:
        return None
    half = float(ndtri((1 + CONFIDENCE) / 2)) * error / (high - low) / (share * (1 - share))
    center = log(share) - log1p(-share)
    ends = [low + (high - low) / (1 + exp(-min(max(at, -700.0), 700.0))) for at in (center - half, center + half)]
    method = f"delta method, on {scale}"
    return Interval(value=value, low=ends[0], high=ends[1], n=n, confidence=CONFIDENCE, method=method)


def unknown(value: float, n: int, within: tuple[float, float], reason: str) -> Interval:
    """The whole range, with the reason why nothing narrower is known."""
    method = f"none: {reason}"
    return Interval(value=value, low=within[0], high=within[1], n=n, confidence=CONFIDENCE, method=method)


def error_limit(n: int, looks: int = 1) -> float:
    """Clopper–Pearson's upper limit of an error rate of which n trials showed none.

    Args:
        n: trials, ≥ 1.
        looks: how many such limits are to hold together.

    >>> round(error_limit(100), 4)
    0.0362
    """
    return 1 - float(((1 - CONFIDENCE) / (2 * looks)) ** (1 / n))
