"""The joint privacy profile of several independent Laplace variables, by adding their privacy losses.

Sampling k of n clients draws all coordinates of a client at once. So the losses of the coordinates are added first, and
amplification by sampling is applied to the profile of the sum. All sums are over positive numbers, so a δ of 1e-290
keeps its digits. P and Q are the laws of the release for two neighbors. If the grid changes, each probability mass is
split between the two nearest nodes such that the mass is kept under both P and Q. This can only enlarge δ.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, reduce
from math import ceil, exp, expm1

import numpy as np

from privkit.accountants import validate
from privkit.accountants.bounds.loss_distribution import LossDistribution, Profile, by_squaring
from privkit.shared.array import Array

_CELLS = 8  # cells between a loss of 0 and one variable's largest loss: for many variables, ε has an error of 1e-5·ε
_WIDEST = 0.25  # longest cell, in nats; a variable's loss varies by at most about two
_MOST_NODES = 4_096  # nodes up to which sums are taken term by term, within milliseconds
_TAIL = 1e-300  # mass that is moved at each end: up at the low end, to an infinite loss at the high end
_LARGEST_LOSS = 700.0  # nats above which e^ε overflows
_ROUNDING = 1e-12  # relative rounding error of one sum, generously; n variables have n times as much


@lru_cache(maxsize=64)
def losses(parts: tuple[tuple[float, int], ...]) -> LossDistribution | None:
    """A distribution on a grid that dominates the privacy loss of independent Laplace variables.

    `parts` holds at least one pair (shift divided by the scale, ≥ 0; number of variables with this shift, ≥ 1). The
    result is None if losses above 700 nats matter, since e^ε overflows there.

    Source: derived. The trade-off curve of a log-concave law falls with its shift, so a smaller shift of a coordinate
    is post-processing of a larger shift. Hence the neighbors that move every coordinate by its largest shift are the
    worst; their loss is the sum of the coordinates' losses. The grid connects dots (Doroshenko et al. 2022).
    """
    kept = [(validate.real("shift", shift, least=0), validate.whole("number", number)) for shift, number in parts]
    if max(shift for shift, _ in kept) > _LARGEST_LOSS:
        return None
    whole = reduce(_sum, [by_squaring(_one(shift), number, _sum) for shift, number in kept if shift > 0], _one(0.0))
    if (whole.lowest + whole.masses.size) * whole.interval > _LARGEST_LOSS:
        return None
    return replace(whole, masses=whole.masses * (1 + error(parts)))


def error(parts: tuple[tuple[float, int], ...]) -> float:
    """Bound on the relative rounding error of the masses in `losses`, which raises its masses by this bound."""
    return _ROUNDING * sum(number for _, number in parts)


@lru_cache(maxsize=64)
def profile(parts: tuple[tuple[float, int], ...]) -> Profile | None:
    """The privacy profile of independent Laplace variables: a function from ε ≥ 0 to an upper bound on δ, exact except
    for the grid's error. `parts` is as in `losses`. The result is None if `losses` gives None."""
    whole = losses(parts)
    if whole is None:
        return None
    nodes, deltas = _deltas(whole)
    odds = np.exp(nodes)

    def delta(epsilon: Array) -> Array:
        # δ is convex in e^ε, so that it lies below a chord between two nodes.
        return np.minimum(np.interp(np.exp(np.minimum(epsilon, _LARGEST_LOSS)), odds, deltas), 1.0)

    return delta


def _one(shift: float) -> LossDistribution:
    """The distribution of one Laplace variable's loss ℓ = ln(P/Q) under P, on a grid. Between neighbors, the variable's
    mean differs by t = `shift` times the scale.

    The loss has the mass ½ at ℓ = t, the mass e^{−t}/2 at ℓ = −t, and the density e^{(ℓ − t)/2}/4 between. So a grid
    interval (a, a + d) has the mass e^{(a − t)/2}(e^{d/2} − 1)/2. The fraction 1/(1 + e^{−d/2}) of this mass goes to
    the upper end.
    """
    if shift == 0:
        return LossDistribution(interval=_WIDEST, lowest=0, masses=np.ones(1), infinity=0.0)
    cells = max(_CELLS, ceil(shift / _WIDEST))
    d = shift / cells
    inside = np.exp((np.arange(-cells, cells) * d - shift) / 2) * (expm1(d / 2) / 2)
    upper = 1 / (1 + exp(-d / 2))
    masses = np.zeros(2 * cells + 1)
    masses[:-1] += inside * (1 - upper)
    masses[1:] += inside * upper
    masses[0] += exp(-shift) / 2
    masses[-1] += 0.5
    return LossDistribution(interval=d, lowest=-cells, masses=masses, infinity=0.0)


def _sum(left: LossDistribution, right: LossDistribution) -> LossDistribution:
    """The sum of two independent losses, with at most `_MOST_NODES` nodes."""
    if left.masses.size == 1 or right.masses.size == 1:  # a loss that is constantly 0
        return left if right.masses.size == 1 else right
    reach = left.masses.size * left.interval + right.masses.size * right.interval
    interval = max(min(left.interval, right.interval), reach / _MOST_NODES)
    left, right = _on_grid(left, interval), _on_grid(right, interval)
    masses, lowest = np.convolve(left.masses, right.masses), left.lowest + right.lowest
    first = int(np.searchsorted(np.cumsum(masses), _TAIL))
    beyond = np.cumsum(masses[::-1])
    last = masses.size - int(np.searchsorted(beyond, _TAIL))
    kept = masses[first:last].copy()
    kept[0] += masses[:first].sum()
    infinity = left.infinity + right.infinity + float(masses[last:].sum())
    return LossDistribution(interval=interval, lowest=lowest + first, masses=kept, infinity=infinity)


def _on_grid(one: LossDistribution, interval: float) -> LossDistribution:
    """Move a loss distribution to a grid with nodes d = `interval` apart. If a mass is at the distance x above a node,
    the fraction (1 − e^{−x})/(1 − e^{−d}) of it moves to the next node, and the rest to the node below."""
    if one.interval == interval:
        return one
    place = one.losses / interval
    node = np.floor(place)
    up = one.masses * (np.expm1(-(place - node) * interval) / expm1(-interval))
    lowest = int(node[0])
    at, size = (node - lowest).astype(int), int(node[-1]) - lowest + 2
    masses = np.asarray(np.bincount(at, one.masses - up, size) + np.bincount(at + 1, up, size), float)
    return LossDistribution(interval=interval, lowest=lowest, masses=masses, infinity=one.infinity)


def _deltas(one: LossDistribution) -> tuple[Array, Array]:
    """The nodes from 0 to the largest loss, and δ at these nodes: ∫ Q(loss > ln x) dx over x > e^ε, a sum of positive
    terms."""
    first = max(-one.lowest, 0)
    nodes, masses = one.losses[first:], one.masses[first:]
    if one.lowest > 0:
        nodes, masses = np.insert(nodes, 0, 0.0), np.insert(masses, 0, 0.0)
    beyond = np.cumsum((masses * np.exp(-nodes))[::-1])[::-1][1:]
    area = beyond * np.exp(nodes[:-1]) * np.expm1(np.diff(nodes))
    deltas = np.append(np.cumsum(area[::-1])[::-1], 0.0)
    return nodes, deltas + one.infinity
