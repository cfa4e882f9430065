"""Lower bounds on ε from the scores of an attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.accountants.auditing.many_runs import epsilon_clopper_pearson
    from privkit.accountants.auditing.many_runs_gdp import ceiling_many_runs, mu_many_runs
    from privkit.accountants.auditing.one_run import ceiling_one_run, epsilon_one_run
    from privkit.accountants.auditing.one_run_gdp import ceiling_one_run_gdp, epsilon_one_run_gdp
    from privkit.accountants.auditing.rates import auroc
    from privkit.empirical_bound import EmpiricalBound

__all__ = [
    "EmpiricalBound",
    "auroc",
    "ceiling_many_runs",
    "ceiling_one_run",
    "ceiling_one_run_gdp",
    "epsilon_clopper_pearson",
    "epsilon_one_run",
    "epsilon_one_run_gdp",
    "mu_many_runs",
]

__getattr__ = lazy(__name__)
