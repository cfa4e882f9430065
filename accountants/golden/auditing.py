"""Empirical lower bounds on ε from scores, and the parameter of Gaussian differential privacy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privkit.accountants.auditing import many_runs, rates
from privkit.accountants.auditing.one_run import epsilon_one_run
from privkit.accountants.golden import published_gdp
from privkit.accountants.golden.case import read


@cache
def _scores() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A thousand Gaussian quantiles each, members one standard deviation higher."""
    out = ndtri((np.arange(1000) + 0.5) / 1000)
    return out + 1, out


def auroc() -> float:
    """Area under the ROC curve's convex hull."""
    return rates.auroc(*_scores(), convex_hull=True)


def clopper_pearson(**options: Any) -> float:
    """ε at δ = 0 and confidence 0.95."""
    return many_runs.epsilon_clopper_pearson(*_scores(), confidence=0.95, delta=0.0, **options).epsilon


def one_run() -> float:
    """ε at δ = 1e-5 and confidence 0.95."""
    return epsilon_one_run(*_scores(), confidence=0.95, delta=1e-5, correction="as_published").epsilon


def published_mu(rate: float, sigma: float, rounds: int) -> float:
    """μ of DP-SGD as gdpnum computes it."""
    return published_gdp.published_mu(rate, sigma, rounds).mu


def limit_theorem(rate: float, sigma: float, rounds: int, delta: float) -> float:
    """ε of the central limit theorem."""
    return published_gdp.limit_theorem(rate, sigma, rounds, delta).epsilon


CASES = read(__package__, "auditing.jsonl", globals())
