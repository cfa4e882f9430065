"""Lower bounds on ε from the scores of members and non-members: what an attack's success rules out.

A score is high where the attack believes "member": scores are finite numbers, at least one of each. A bound holds with
the stated confidence in (0, 1) over their draw; a small bound proves nothing in favor of the mechanism. It is for
(ε, δ)-DP at δ in [0, 1), or, if a `family` is claimed, for a mechanism whose trade-off curve is of this family: it may
lie far above the truth if the curve is of another one. With a family, the curve's strength is said as an ε at δ > 0.

A canary of one run is a member by its own fair coin; a split into members and non-members that fair coins give with
probability below 1e-9 is refused. `ceiling_…` is the largest ε that the bound can hold against a claim with so many
canaries or runs, whatever they score: a claim that is not below it cannot be refuted, and that it stands says nothing.
"""

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
    from privkit.shared.empirical_bound import EmpiricalBound

__all__ = [
    "Approximate",
    "EmpiricalBound",
    "Gaussian",
    "ScaledNoise",
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
