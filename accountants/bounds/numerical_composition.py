"""Numerical composition as a bound: privacy loss distributions of all steps, composed on a grid."""

from __future__ import annotations

from collections.abc import Iterable
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
    """The bound of a run from dominating privacy profiles of its rounds, composed by FFT. If the grid would be too
    large, the bound proves nothing."""

    pairs: Pairs  # profiles of single rounds, and how often each is composed
    # profiles that some two neighbors attain in every round; None if none are known. It is the object `pairs` itself if
    # they attain both directions.
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
    """The bound by numerical composition of all steps of a run; None if a step has no privacy profile.

    Source: Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022.
    """
    pairs = _all(step.pairs(count) for step, count in steps)
    if pairs is None:
        return None
    source = "; ".join(dict.fromkeys([ComposedBound.source, *filter(None, (step.profile_source for step, _ in steps))]))
    if all(step.reached for step, _ in steps):
        return ComposedBound(pairs=pairs, attained=pairs, source=source)
    attained = _all(step.pairs(count) if step.reached else step.attained(count) for step, count in steps)
    return ComposedBound(pairs=pairs, attained=attained, source=source)


def third_record_bound(steps: Steps) -> ComposedBound | None:
    """The bound by numerical composition in which several rounds of k of n clients share one joint profile.

    The result is None if no step has a joint profile, or if another step has no profile.

    Source: derived, in `third_record`.
    """
    joined = [step.joined(count) for step, count in steps]
    if all(some is None for some in joined):
        return None
    pairs = _all(some or step.pairs(count) for some, (step, count) in zip(joined, steps, strict=True))
    if pairs is None:
        return None
    how = ComposedBound.method + ", with the third record of each round chosen in advance"
    return ComposedBound(pairs=pairs, method=how, source=f"{ComposedBound.source}; derived: third_record.py")


def tight_bounds(steps: Steps) -> list[ComposedBound]:
    """The bounds `composed_bound` and `third_record_bound` of a run, without those that are None."""
    return [one for one in (composed_bound(steps), third_record_bound(steps)) if one is not None]


def _all(parts: Iterable[Pairs | None]) -> Pairs | None:
    listed = list(parts)
    return None if any(part is None for part in listed) else [pair for part in listed for pair in part or ()]
