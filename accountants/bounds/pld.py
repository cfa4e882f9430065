"""Tight composition: privacy loss distributions on a grid, composed by one FFT.

Upper bounds come from the grid (`loss_distribution`). The lower bound subtracts the largest error of the grid.
`fft_composition` does the composition. In all functions, `steps` holds at least one pair (privacy profile of one round,
number of such rounds), with 1 to 10¹¹ rounds in all; δ lies in (0, 1), ε is ≥ 0. `interval` is the distance of the
grid's nodes in nats; None chooses it. The functions raise ValueError for other arguments, and `GridTooLarge` if no grid
is small enough.

Source: Koskela, Jälkö and Honkela 2020 (composition by FFT); Doroshenko et al. 2022 (the grid).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import expm1, inf, log, sqrt
from typing import TypeAlias

import numpy as np

from privkit.accountants import validate
from privkit.accountants.bounds.fft_composition import ComposedLosses, compose
from privkit.accountants.bounds.loss_distribution import (
    GridTooLarge,
    Pair,
    Parts,
    Profile,
    both_directions,
    grid_interval,
)
from privkit.shared.array import Array

History: TypeAlias = Sequence[tuple[Profile | Pair, int]]
"""Pairs (privacy profile of one round, number of such rounds)."""
_MOST_ROUNDS = 10**11  # most rounds, so that their rounding errors, about 1e-14 each, stay below a thousandth of δ


def composed_epsilon(profile: Profile | Pair, rounds: int, delta: float, interval: float | None = None) -> float:
    """Upper bound on the ε at δ of T = `rounds` rounds of one mechanism, from the privacy profile of one round."""
    return composed_bounds([(profile, rounds)], delta, interval)[1]


def history_delta(steps: History, epsilon: float, interval: float | None = None) -> float:
    """The δ at ε ≥ 0 of several mechanisms composed: an upper bound, exact except for the error of the loss grid.

    For T rounds in all, a result below about T·1e-280 only counts losses beyond the grid's end; the true δ may be far
    smaller.
    """
    e, checked = validate.real("epsilon", epsilon, least=0), _checked_history(steps)
    rounds = sum(count for _, count in checked)
    for tail in (1e-40, 1e-290):  # a grid that reaches further is coarser
        largest = max(composed.delta(e) for _, composed in _compositions(checked, tail, interval, epsilon=e))
        if largest > 1e8 * rounds * tail:
            break
    return float(largest)


def history_deltas(steps: History, epsilons: Array) -> Array:
    """The δ of several mechanisms composed, at J values of ε ≥ 0, from one composition: upper bounds, float [J]. They
    are exact except for the grid's error if δ is above 1e-12.

    >>> from privkit.accountants.bounds.round_profiles import without_replacement_gaussian
    >>> history_deltas([(without_replacement_gaussian(0.2, 1.0), 100)], np.array([0.0, 16.0])).round(6).tolist()
    [0.823625, 1.1e-05]
    """
    composed = [each for _, each in _compositions(_checked_history(steps), 1e-20, None, epsilon=0.0)]
    return np.array([max(each.delta(epsilon) for each in composed) for epsilon in epsilons.tolist()])


def composed_bounds(steps: History, delta: float, interval: float | None = None) -> tuple[float, float]:
    """A lower and an upper bound on the ε at δ of several mechanisms composed. For T rounds they are about
    interval·√(8T) apart.

    The lower bound is proven if one pair of neighbors attains every profile in both directions. This fails for sampling
    without replacement, whose worst pair of neighbors has the profiles of `poisson_gaussian`.

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


def _checked_history(steps: History) -> History:
    if not steps:
        raise ValueError("steps must hold at least one mechanism, got none")
    return [(profile, validate.whole("rounds", rounds)) for profile, rounds in steps]


def _for_delta(
    steps: History, target: float, interval: float | None, *, first: bool = False
) -> list[tuple[Parts, ComposedLosses]]:
    checked = _checked_history(steps)
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
