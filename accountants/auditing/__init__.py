"""Lower bounds on ε from the scores of an attack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.accountants.auditing.families import Approximate, Gaussian, ScaledNoise
    from privkit.accountants.auditing.independent import ceiling_independent, epsilon_independent
    from privkit.accountants.auditing.many_runs import ceiling_many_runs, epsilon_clopper_pearson
    from privkit.accountants.auditing.one_run import ceiling_one_run, epsilon_one_run
    from privkit.accountants.auditing.one_run_curve import (
        ceiling_one_run_curve,
        epsilon_one_run_curve,
        planned_guesses,
    )
    from privkit.accountants.auditing.rates import auroc
    from privkit.shared.empirical_bound import EmpiricalBound

__all__ = [
    "Approximate",
    "EmpiricalBound",
    "Gaussian",
    "ScaledNoise",
    "auroc",
    "ceiling_independent",
    "ceiling_many_runs",
    "ceiling_one_run",
    "ceiling_one_run_curve",
    "epsilon_clopper_pearson",
    "epsilon_independent",
    "epsilon_one_run",
    "epsilon_one_run_curve",
    "planned_guesses",
]

__getattr__ = lazy(__name__)
