"""Numerical composition as a bound: privacy loss distributions of all steps, composed on a grid."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

import numpy as np

from privkit.accountants.bounds import pld
from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.loss_distribution import GridTooLarge
from privkit.accountants.bounds.step import Pairs, Steps
from privkit.shared.array import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class ComposedBound(Bound):
    """Dominating pairs of all rounds, composed by FFT. If the grid would be too large, there is no limit.

    Attributes:
        pairs: profiles of single rounds and their counts.
        attained: profiles that one pair of neighbors attains in every round: `pairs` itself if it attains both
            directions; None if no lower limit is known.
    """

    pairs: Pairs
    attained: Pairs | None = None
    method: str = "numerical composition of privacy loss distributions"
    source: str = "Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022"
    exact: bool = False

    def epsilon(self, delta: float) -> Limit:
        try:
            lower, upper = pld.composed_bounds(self.pairs, delta)
            if self.attained is None:
                return Limit(value=upper)
            if self.attained is not self.pairs:
                lower = pld.composed_lower(self.attained, delta)
            return Limit(value=upper, lower=min(lower, upper))
        except GridTooLarge:
            return Limit(value=inf)

    def log_delta(self, epsilon: float) -> Limit:
        try:
            value = pld.history_delta(self.pairs, epsilon)
        except GridTooLarge:
            return Limit(value=0.0)
        return Limit(value=log(value) if value > 0 else -inf)

    def log_deltas(self, epsilons: Array) -> Array:
        try:
            values = pld.history_deltas(self.pairs, epsilons)
        except GridTooLarge:
            return np.zeros(len(epsilons))
        with np.errstate(divide="ignore"):
            return np.log(values)


def composed_bound(steps: Steps) -> ComposedBound | None:
    """The numerical composition of all steps; None if a step has no profile.

    Source: Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022.

    >>> from privkit.accountants.bounds.sampled import GaussianRelease
    >>> composed_bound([(GaussianRelease(mu=0.1, sampling="poisson", rate=0.5), 4)]).pairs[0][1]
    4
    """
    pairs = [step.pairs(count) for step, count in steps]
    if any(part is None for part in pairs):
        return None
    ours = [pair for part in pairs for pair in part or ()]
    if all(step.reached for step, _ in steps):
        return ComposedBound(pairs=ours, attained=ours)
    lower = [pair if step.reached else step.attained(count) for pair, (step, count) in zip(pairs, steps, strict=True)]
    known = all(part is not None for part in lower)
    return ComposedBound(pairs=ours, attained=[pair for part in lower for pair in part or ()] if known else None)
