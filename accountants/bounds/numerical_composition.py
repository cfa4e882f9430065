"""Numerical composition as a bound: privacy loss distributions (PLD) of all steps on a grid, composed by one FFT.

Upper bounds come from the grid (`loss_distribution`). The lower bound subtracts the largest error of the grid.
`fft_composition` does the composition. In all functions that take a `History`, `steps` holds at least one pair (privacy
profile of one round, number of such rounds), with 1 to 10¹¹ rounds in all; δ lies in (0, 1), ε is ≥ 0. `interval` is
the distance of the grid's nodes in nats; None chooses it. These functions raise ValueError for other arguments, and
`GridTooLarge` if no grid is small enough.

Source: Koskela, Jälkö and Honkela 2020 (composition by FFT); Doroshenko et al. 2022 (the grid).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import expm1, inf, log, sqrt
from typing import TypeAlias

import numpy as np

from privkit.accountants import validate
from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.fft_composition import ComposedLosses, compose
from privkit.accountants.bounds.loss_distribution import (
    GridTooLarge,
    Pair,
    Parts,
    Profile,
    both_directions,
    checked_steps,
    grid_interval,
)
from privkit.accountants.bounds.step import Pairs, Steps
from privkit.shared.array import Array

History: TypeAlias = Sequence[tuple[Profile | Pair, int]]
"""Pairs (privacy profile of one round, number of such rounds)."""
_MOST_ROUNDS = 10**11  # most rounds, so that their rounding errors, about 1e-14 each, stay below a thousandth of δ


@dataclass(frozen=True, kw_only=True, eq=False)
class ComposedBound(Bound):
    """The bound of a run from dominating privacy profiles of its rounds, composed by FFT. If the grid would be too
    large, the bound proves nothing."""

    pairs: Pairs  # profiles of single rounds, and how often each is composed
    # profiles that some two neighbors attain in every round; None if none are known. The value is the object `pairs`
    # itself if these neighbors attain `pairs` in both directions.
    attained: Pairs | None = None
    method: str = "numerical composition of privacy loss distributions"
    source: str = "Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022"
    exact: bool = False

    def epsilon(self, delta: float) -> Limit:
        try:
            lower, upper = composed_bounds(self.pairs, delta)
            if self.attained is None:
                return Limit(value=upper)
            if self.attained is not self.pairs:
                lower = composed_lower(self.attained, delta)
            return Limit(value=upper, lower=min(lower, upper))
        except GridTooLarge:
            return Limit(value=inf)

    def log_delta(self, epsilon: float) -> Limit:
        try:
            value = history_delta(self.pairs, epsilon)
        except GridTooLarge:
            return Limit(value=0.0)
        return Limit(value=log(value) if value > 0 else -inf)

    def log_deltas(self, epsilons: Array) -> Array:
        try:
            values = history_deltas(self.pairs, epsilons)
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


def composed_epsilon(profile: Profile | Pair, rounds: int, delta: float, interval: float | None = None) -> float:
    """Upper bound on the ε at δ of T = `rounds` rounds of one mechanism, from the privacy profile of one round."""
    return composed_bounds([(profile, rounds)], delta, interval)[1]


def history_delta(steps: History, epsilon: float, interval: float | None = None) -> float:
    """The δ at ε ≥ 0 of several mechanisms composed: an upper bound, exact except for the error of the loss grid.

    For T rounds in all, a result below about T·1e-280 only counts losses beyond the grid's end; the true δ may be far
    smaller.
    """
    e, checked = validate.real("epsilon", epsilon, least=0), checked_steps(steps)
    rounds = sum(count for _, count in checked)
    for tail in (1e-40, 1e-290):  # a grid that reaches further is coarser
        largest = max(composed.delta(e) for _, composed in _compositions(checked, tail, interval, epsilon=e))
        if largest > 1e8 * rounds * tail:
            break
    return float(largest)


def history_deltas(steps: History, epsilons: Array) -> Array:
    """The δ of several mechanisms composed, at J values of ε ≥ 0, from one composition: upper bounds, float [J]. They
    are exact except for the grid's error if δ is above 1e-12.

    >>> from privkit.accountants.bounds.gaussian import without_replacement_profile
    >>> history_deltas([(without_replacement_profile(0.2, 1.0), 100)], np.array([0.0, 16.0])).round(6).tolist()
    [0.823625, 1.1e-05]
    """
    composed = [each for _, each in _compositions(checked_steps(steps), 1e-20, None, epsilon=0.0)]
    return np.array([max(each.delta(epsilon) for each in composed) for epsilon in epsilons.tolist()])


def composed_bounds(steps: History, delta: float, interval: float | None = None) -> tuple[float, float]:
    """A lower and an upper bound on the ε at δ of several mechanisms composed. For T rounds they are about
    interval·√(8T) apart.

    The lower bound is proven if one pair of neighbors attains every profile in both directions. This fails for sampling
    without replacement, whose worst pair of neighbors has the profiles of `gaussian.poisson_profiles`.

    Source of the lower bound: derived. Let d be the grid's interval. Given the true losses, the losses on the grid are
    independent, within d of the true losses, and on average too large by at most b = d/(1−e^{−d}) − 1 −
    ln(d/(1−e^{−d})) ≈ d²/8. By Hoeffding's inequality, their sum exceeds the true sum by more than T·b +
    d·√(T·ln(1/δ₀)/2) with probability at most δ₀ = δ/1000.
    """
    target = validate.delta(delta)
    bounds = _for_delta(steps, target, interval)
    lower = max(_without_grid_error(parts, composed, target) for parts, composed in bounds)
    return lower, float(max(composed.epsilon(target) for _, composed in bounds))


def composed_lower(steps: History, delta: float, interval: float | None = None) -> float:
    """The lower bound on ε of `composed_bounds`, computed for neighbors in the order (P, Q) only. If the order (Q, P)
    has another profile, `composed_bounds` computes both, and takes twice the time."""
    target = validate.delta(delta)
    return _without_grid_error(*next(iter(_for_delta(steps, target, interval, first=True))), target)


def _without_grid_error(parts: Parts, composed: ComposedLosses, target: float) -> float:
    """A lower bound on ε: the smallest ε of the composed grid losses, minus the largest error of the grid."""
    total, d = sum(rounds for _, rounds in parts), composed.interval
    ratio = d / -expm1(-d)
    shift = total * (ratio - 1 - log(ratio)) + d * sqrt(total * log(1000 / target) / 2)
    lost = target / 1000 + sum(rounds * part.raised for part, rounds in parts)
    return float(max(0.0, composed.lower_epsilon(target + lost) - shift))


def _for_delta(
    steps: History, target: float, interval: float | None, *, first: bool = False
) -> list[tuple[Parts, ComposedLosses]]:
    checked = checked_steps(steps)
    tail = max(target * 1e-8 / sum(rounds for _, rounds in checked), 1e-290)
    return _compositions(checked, tail, interval, first=first, delta=target)


def _compositions(
    steps: History, tail: float, interval: float | None, *, first: bool = False, **target: float
) -> list[tuple[Parts, ComposedLosses]]:
    """A pair (loss distributions, their composition) for each direction, or for one direction only if `first`.

    If `interval` is None, the grid is made coarser until it fits.
    """
    if (rounds := sum(count for _, count in steps)) > _MOST_ROUNDS:
        raise GridTooLarge(inf, 0.0, f"{rounds:,} rounds are too many to compose numerically: use a Rényi curve")
    d = grid_interval(steps, tail, interval)
    for _ in range(5):
        try:
            wanted = both_directions(steps, d, tail)[: 1 if first else None]
            return [(parts, compose(parts, **target)) for parts in wanted]
        except GridTooLarge as refused:
            if interval is not None or d > 1:
                raise
            d *= max(2.0, refused.nodes / 2**21)
    raise GridTooLarge(inf, d)
