"""Pure ε as a bound: a privacy loss that never exceeds the sum of the steps' largest losses."""

from __future__ import annotations

from math import inf

from privkit.accountants.bounds.bound import ClosedForm
from privkit.accountants.bounds.step import Steps


def pure_bound(steps: Steps) -> ClosedForm | None:
    """The sum of the largest losses; None if a step's loss has no limit.

    Source: Dwork et al. 2006 (basic composition).

    >>> from privkit.accountants.bounds.laplace import LaplaceRelease
    >>> pure_bound([(LaplaceRelease(parts=((0.5, 2),)), 3)]).epsilon(1e-5).value
    3.0
    """
    most = sum([step.pure(count) for step, count in steps])
    if most == inf:
        return None
    return ClosedForm(
        method="pure ε, δ not used",
        source="Dwork et al. 2006",
        to_epsilon=lambda delta: most,
        to_log_delta=lambda epsilon: -inf if epsilon >= most else 0.0,
        exact=False,
    )
