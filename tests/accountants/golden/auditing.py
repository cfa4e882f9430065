"""Empirical lower bounds on ε from scores."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privkit.accountants.auditing import many_runs
from privkit.accountants.golden import read_cases
from tests.accountants.auditing import published, roc_area


@cache
def _gaussian_quantiles() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A thousand Gaussian quantiles each, members one standard deviation higher."""
    out = ndtri((np.arange(1000) + 0.5) / 1000)
    return out + 1, out


def auroc() -> float:
    """Area under the ROC curve's convex hull."""
    return roc_area.auroc(*_gaussian_quantiles(), convex_hull=True)


def clopper_pearson(threshold: float | None = None) -> float:
    """ε at δ = 0 and confidence 0.95; without a threshold as published."""
    scores = _gaussian_quantiles()
    if threshold is None:
        return published.epsilon_clopper_pearson(*scores, confidence=0.95, delta=0.0)
    return many_runs.epsilon_clopper_pearson(*scores, confidence=0.95, delta=0.0, threshold=threshold).epsilon


def one_run() -> float:
    """ε at δ = 1e-5 and confidence 0.95."""
    return published.epsilon_one_run(*_gaussian_quantiles(), confidence=0.95, delta=1e-5)


CASES = read_cases(__package__, "auditing.jsonl", globals())
