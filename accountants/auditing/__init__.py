"""Lower bounds on ε from the scores that an attack gives to members and non-members.

A canary is a record that the auditor inserts or leaves out. The attack gives it a score, which is high if the attack
believes "member" (inserted). Scores are finite numbers. There must be a score of at least one member and of at least
one non-member. A bound holds with the stated confidence in (0, 1) over the draw of the scores. A small bound is no
evidence that the mechanism is private.

Without a `family`, a bound is for (ε, δ)-DP at δ in [0, 1). With a family, it assumes that the mechanism's trade-off
curve (the least false negative rate at each false positive rate) belongs to this family. If this assumption is wrong,
the bound may lie far above the truth. The curve's parameter is reported as an ε at δ > 0.

In a single run, a fair coin makes each canary a member. A split into members and non-members is refused if fair coins
give so uneven a split with probability below 1e-9. The functions `ceiling_…` give the largest ε that a bound can reach
with the given number of canaries or runs. An audit cannot refute a claimed ε at or above this ceiling, so passing the
audit says nothing about such a claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.accountants.auditing.families import Approximate, Gaussian, ScaledNoise
    from privkit.accountants.auditing.independent import ceiling_independent, epsilon_independent
    from privkit.accountants.auditing.many_runs import ceiling_many_runs, epsilon_clopper_pearson
    from privkit.accountants.auditing.one_run import (
        ceiling_one_run,
        ceiling_one_run_curve,
        epsilon_one_run,
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
