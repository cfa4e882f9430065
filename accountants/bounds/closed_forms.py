"""Bounds in closed form: one Gaussian of shift √Σμ² that dominates a run, and the sum of the steps' largest losses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Self

import numpy as np

from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.bound import Bound, ClosedForm, Limit
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.bounds.step import Steps
from privkit.shared.array import Array

BALLE_WANG = "Balle and Wang 2018, Theorem 8"


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianBound(Bound):
    """The bound of one Gaussian release whose shift is μ ≥ 0 standard deviations of the noise."""

    mu: float
    sampling: str | None = None  # bounds with equal texts are computed in one pass; None is computed alone
    method: str = "exact Gaussian profile"
    source: str = BALLE_WANG
    exact: bool = False

    @property
    def batch(self) -> Hashable:
        return self.sampling or id(self)

    @classmethod
    def epsilons(cls, bounds: Sequence[Self], deltas: Array) -> list[Limit]:
        values = gaussian.epsilon(deltas, np.array([bound.mu for bound in bounds]))
        return [Limit(value=value) for value in values.tolist()]

    def epsilon(self, delta: float) -> Limit:
        return Limit(value=gaussian.epsilon(delta, self.mu))

    def log_delta(self, epsilon: float) -> Limit:
        return Limit(value=float(gaussian.log_delta(epsilon, self.mu)))

    def log_deltas(self, epsilons: Array) -> Array:
        return gaussian.log_delta(epsilons, self.mu)


def gaussian_bound(steps: Steps) -> GaussianBound | None:
    """The bound by one Gaussian release that dominates the whole run; None if no Gaussian dominates one of the steps.

    Source: Balle and Wang 2018, Theorem 8; √Σμ²: Dong, Roth and Su 2022, Corollary 3.3.
    """
    shifts = [step.shift(count) for step, count in steps]
    mu = shifts[0] if len(shifts) == 1 else sqrt(sum([shift**2 for shift in shifts]))
    if mu == inf:
        return None
    remark = "".join(dict.fromkeys([step.remark for step, _ in steps]))
    first = steps[0][0]
    sampling = first.sampling if isinstance(first, GaussianRelease) else None
    return GaussianBound(mu=mu, sampling=sampling, method=f"exact Gaussian profile{remark}", exact=not remark)


def pure_bound(steps: Steps) -> ClosedForm | None:
    """The (ε, 0)-DP bound of a run, in which ε is the sum of the largest privacy losses of the steps; None if a step's
    loss is unbounded.

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
