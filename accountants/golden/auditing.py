"""Empirical lower bounds on ε from scores, and the parameter of Gaussian differential privacy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privkit.accountants.auditing import empirical
from privkit.accountants.bounds import gdp
from privkit.accountants.golden.case import Case

_REFERENCE = "google-deepmind/jax_privacy@8967688, jax_privacy/auditing.py"


@cache
def _scores() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A thousand Gaussian quantiles each, members one standard deviation higher."""
    out = ndtri((np.arange(1000) + 0.5) / 1000)
    return out + 1, out


def _clopper_pearson(**options: Any) -> float:
    """ε at δ = 0 and confidence 0.95."""
    return empirical.epsilon_clopper_pearson(*_scores(), confidence=0.95, delta=0.0, **options).epsilon


def _one_run() -> float:
    """ε at δ = 1e-5 and confidence 0.95."""
    found = empirical.epsilon_one_run(*_scores(), confidence=0.95, delta=1e-5, correction="as_published")
    return found.epsilon


CASES: tuple[Case, ...] = (
    Case(
        id="audit_auroc",
        what="area under the ROC curve's convex hull",
        compute=lambda: empirical.auroc(*_scores(), convex_hull=True),
        expected=0.7610745,
        rel=1e-9,
        source=_REFERENCE,
    ),
    Case(
        id="audit_eps_cp_bonferroni",
        what="ε lower bound from error rates, best threshold, as published (divided by the hull's corners; not proven)",
        compute=lambda: _clopper_pearson(correction="as_published"),
        expected=1.0497220039319926,
        rel=1e-6,
        source=_REFERENCE,
    ),
    Case(
        id="audit_eps_cp_explicit",
        what="ε lower bound from error rates at a threshold of 1.5",
        compute=lambda: _clopper_pearson(threshold=1.5),
        expected=1.201923172252101,
        rel=1e-6,
        source=_REFERENCE,
    ),
    Case(
        id="audit_eps_one_run",
        what="ε lower bound from one run, as published (divided by the hull's corners; not proven)",
        compute=_one_run,
        expected=0.8938429738607501,
        rel=1e-4,
        source=_REFERENCE,
    ),
    Case(
        id="gdp_mu_q.01_s1_T1000",
        what="μ of DP-SGD as gdpnum computes it (no bound)",
        compute=lambda: gdp.published_mu(0.01, 1.0, 1000).mu,
        expected=0.4393596052561093,
        rel=1e-3,
        source="gdpnum 0.1.2",
    ),
    Case(
        id="gdp_clt_opacus_q.01_s1_T1000",
        what="ε of the central limit theorem (no bound)",
        compute=lambda: gdp.limit_theorem(0.01, 1.0, 1000, 1e-5).epsilon,
        expected=1.6177118087467202,
        rel=1e-6,
        source="opacus 1.6.0, GaussianAccountant",
    ),
)
