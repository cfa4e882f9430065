"""Privacy loss distributions on a grid, made from privacy profiles by connecting the dots: upper bounds.

The profile δ(ε) is computed at the nodes, and is taken as linear in e^ε between them. A profile is convex in e^ε, so
the pair of distributions on the grid dominates the mechanism's pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, expm1, inf, sqrt
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.shared.array import Array

Profile: TypeAlias = Callable[[Array], Array]  # δ at an array of ε ≥ 0; decreasing, and convex in e^ε
Pair: TypeAlias = tuple[Profile, Profile]
"""Profiles of P against Q and of Q against P; together they give δ(−ε) = 1 − e^{−ε} + e^{−ε}·δ_reverse(ε)."""
LARGEST_GRID = 20_000_000  # nodes above which a grid is refused
_T = TypeVar("_T")


def by_squaring(one: _T, count: int, join: Callable[[_T, _T], _T]) -> _T:
    """Compose `count` ≥ 1 equal distributions by repeated squaring; `join` composes two distributions."""
    power, square, left = one if count & 1 else None, one, count >> 1
    while left:
        square = join(square, square)
        if left & 1:
            power = square if power is None else join(power, square)
        left >>= 1
    assert power is not None
    return power


class GridTooLarge(ValueError):
    """Raised if the grid would have too many nodes, or if the rounding errors of all rounds may exceed the answer."""

    def __init__(self, nodes: float, interval: float, sentence: str = "") -> None:
        wanted = f"a grid of {nodes:.3g} nodes at interval {interval:g} is too large: choose a larger interval"
        super().__init__(sentence or wanted)
        self.nodes = nodes


@dataclass(frozen=True, kw_only=True)
class LossDistribution:
    """A distribution on a grid that dominates the mechanism's privacy loss ln(P/Q) under P. P and Q are the laws of the
    release for two neighbors."""

    interval: float  # distance of the nodes, in nats
    lowest: int  # the first node is lowest·interval
    masses: Array  # [n] probabilities of the nodes
    infinity: float  # probability of an infinite loss
    raised: float = 0.0  # bound on the probability of losses below the first node, which were moved up to it

    @cached_property
    def losses(self) -> Array:
        """The nodes, [n]."""
        return np.arange(self.lowest, self.lowest + self.masses.size, dtype=np.float64) * self.interval

    @cached_property
    def log_masses(self) -> Array:
        """Logarithms of the masses, [n]; −inf for a mass of 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.masses)


Parts: TypeAlias = list[tuple[LossDistribution, int]]  # distributions of one direction, and how often each is composed


def from_profile(profile: Profile | Pair, interval: float, *, tail: float = 1e-20) -> tuple[LossDistribution, ...]:
    """Build privacy loss distributions of a mechanism on a grid from its privacy profile: valid upper bounds.

    A mechanism has two directions: neighbor P against Q, and Q against P. If they are equal (replace-one), `profile` is
    one function from ε ≥ 0 to δ, and the result holds one distribution. Otherwise it is a pair of functions, and the
    result holds two distributions: compose each of them, and take the larger δ. The grid's interval (distance of nodes,
    in nats) causes an error of about T·interval²/12 in the ε of T rounds. Losses beyond the node where δ falls below
    `tail` are set to infinity.

    Raises:
        ValueError: if the profile leaves [0, 1] or increases.
        GridTooLarge: if the grid would have more than 2·10⁷ nodes.

    Source: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, Algorithm 1 (connecting the dots).
    """
    return _on_grid(profile, validate.real("interval", interval, above=0), tail, _reaches(profile, tail))


def _on_grid(profile: Profile | Pair, d: float, tail: float, reaches: Sequence[float]) -> tuple[LossDistribution, ...]:
    values = [_sampled(one, d, reach) for one, reach in zip(_different(profile), reaches, strict=True)]
    forward, backward = values[0], values[-1]
    down, up = _masses(backward, d), _masses(forward, d)
    variation = max(forward[0], backward[0])
    drops = max(forward[0] - forward[1], 0.0) + max(backward[0] - backward[1], 0.0)
    middle = max(1 - variation - drops * exp(-d) / -expm1(-d), 0.0)
    grids = [_joined_directions(backward, down, middle, up, forward[-1], d, tail)]
    if len(values) > 1:
        grids.append(_joined_directions(forward, up, middle, down, backward[-1], d, tail))
    return tuple(grids)


def both_directions(steps: Sequence[tuple[Profile | Pair, int]], interval: float, tail: float) -> list[Parts]:
    """The loss distributions of all steps, for both directions, or for only one if both are equal in every step."""
    grids = [(from_profile(profile, interval, tail=tail), rounds) for profile, rounds in steps]
    width = max(len(grid) for grid, _ in grids)
    return [[(grid[min(side, len(grid) - 1)], rounds) for grid, rounds in grids] for side in range(width)]


def checked_steps(steps: Sequence[tuple[Profile | Pair, int]]) -> list[tuple[Profile | Pair, int]]:
    """Check that there is at least one step, and that each number of rounds is a whole number ≥ 1."""
    if not steps:
        raise ValueError("steps must hold at least one mechanism, got none")
    most = 10**40  # coordinates times rounds; more than some 10^11 are refused as `GridTooLarge`
    return [(profile, validate.whole("rounds", rounds, most=most)) for profile, rounds in steps]


def grid_interval(steps: Sequence[tuple[Profile | Pair, int]], tail: float, wanted: float | None) -> float:
    """The distance of the grid's nodes in nats: `wanted`, if given.

    Otherwise it is at most 0.01 and at most a hundredth of the standard deviation of one round's loss. It is larger
    only if the grid would have too many nodes; the grid ends where a round's δ falls below `tail`.
    """
    if wanted is not None:
        return validate.real("interval", wanted, above=0)
    finest, variance, reach = inf, 0.0, 0.0
    for profile, rounds in steps:
        coarse, far = coarsely(profile, tail)
        spread = max(moments(coarse.masses, coarse.losses)[1], (far / 1e6) ** 2)
        finest, variance, reach = min(finest, sqrt(spread)), variance + rounds * spread, max(reach, far)
    width = 20 * sqrt(variance)
    return max(min(finest / 100, 0.01, width / 2**15), reach / 2**19, width / 2**21)


def coarsely(profile: Profile | Pair, tail: float) -> tuple[LossDistribution, float]:
    """A mechanism's privacy losses on about 4,096 nodes, for one direction (neighbor P against Q), and an ε at which δ
    is below `tail` in both directions (also Q against P). `GridTooLarge` is raised if all losses lie beyond this ε."""
    far = max(reaches := _reaches(profile, tail))
    coarse = _on_grid(profile, far / 4096, tail, reaches)[0]
    if not np.any(coarse.masses):
        raise GridTooLarge(inf, far / 4096)
    return coarse, far


def moments(masses: Array, losses: Array) -> tuple[float, float]:
    """Mean and variance of the losses with these masses, which need not sum to 1."""
    total = float(masses.sum())
    mean = dot(masses, losses) / total
    return mean, dot(masses, (losses - mean) ** 2) / total


def dot(left: Array, right: Array) -> float:
    """Inner product without BLAS: at these sizes, BLAS threads would cost more time than the product."""
    return float(np.einsum("i,i->", left, right))


def _different(profile: Profile | Pair) -> Sequence[Profile]:
    """The profiles of both directions, or only one profile if both are the same object."""
    pair = profile if isinstance(profile, tuple) else (profile, profile)
    return pair[:1] if pair[0] is pair[1] else pair


def _reaches(profile: Profile | Pair, tail: float) -> list[float]:
    """For each profile of `_different`, an ε at which δ is below `tail`, or about as small as it becomes at any ε."""
    return [_reach(one, tail) for one in _different(profile)]


def _reach(profile: Profile, tail: float) -> float:
    probes = 1e-9 * np.exp2(np.arange(64.0))
    values = _checked_profile(profile(probes))
    limit = max(tail, float(values[-1]) * (1 + 1e-9))
    index = int(np.argmax(values <= limit))
    low, high = (0.0 if index == 0 else float(probes[index - 1])), float(probes[index])
    inner = np.linspace(low, high, 257)[1:]
    return float(inner[np.argmax(np.append(_checked_profile(profile(inner[:-1])), 0.0) <= limit)])


def _sampled(profile: Profile, interval: float, reach: float) -> Array:
    """δ at ε = 0, d, 2d, … up to `reach`, with d = `interval`; rounding is corrected such that δ never increases."""
    nodes = reach / interval
    if nodes > LARGEST_GRID:
        raise GridTooLarge(nodes, interval)
    values = _checked_profile(profile(np.arange(ceil(nodes) + 2.0) * interval))
    if np.any(np.diff(values) > 1e-9):
        raise ValueError("a privacy profile must not increase with epsilon")
    return np.minimum.accumulate(values)


def _checked_profile(values: ArrayLike) -> Array:
    array = np.asarray(values, float)
    if not np.all((array >= 0) & (array <= 1 + 1e-12)):
        raise ValueError("a privacy profile must give numbers in [0, 1]")
    return np.asarray(np.minimum(array, 1.0))


def _masses(values: Array, interval: float) -> Array:
    """Masses at the losses d, 2d, …, [n], from δ at ε = 0, d, 2d, …, [n + 1], with d = `interval`. Mass between two
    nodes is divided such that it is kept under P and under Q."""
    drop = values[:-1] - values[1:]
    return np.maximum(drop - exp(-interval) * np.append(drop[1:], 0.0), 0.0) / -expm1(-interval)


def _joined_directions(
    reverse: Array, down: Array, middle: float, up: Array, infinity: float, interval: float, tail: float
) -> LossDistribution:
    """The loss distribution of one direction, from its masses above 0 (`up`) and at 0 (`middle`) and the other
    direction's masses above 0 (`down`). A loss −ε has e^{−ε} times the mass of the loss ε in the other direction."""
    with np.errstate(under="ignore"):
        below = (down * np.exp(-interval * np.arange(1, down.size + 1)))[::-1]
    # Bound on Q's mass beyond the last node: δ_reverse one node earlier is at least (1 − e^{−d}) times this mass.
    beyond = exp(max(-interval * down.size, -700)) * float(reverse[-2]) / -expm1(-interval)
    masses = np.concatenate([below, [middle], up])
    first = int(np.searchsorted(np.cumsum(masses), tail, side="right"))  # a negligible low tail is moved up
    first = min(first, masses.size - 1)
    last = int(np.flatnonzero(masses)[-1]) if np.any(masses > 0) else 0
    kept = masses[first : max(last, first) + 1].copy()
    moved = float(masses[:first].sum())
    kept[0] += moved
    return LossDistribution(
        interval=interval,
        lowest=first - down.size,
        masses=kept,
        infinity=float(infinity),
        raised=min(1.0, moved + beyond),
    )
