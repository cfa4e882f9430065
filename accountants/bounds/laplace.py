"""The Laplace mechanism: pure ε, Rényi divergence, and the profile of one variable or of several independent ones.

Sampling k of n clients draws all coordinates of a client at once. So the losses of the coordinates are added first, and
amplification by sampling is applied to the profile of the sum. All sums are over positive numbers, so a δ of 1e-290
keeps its digits. P and Q are the laws of the release for two neighbors. If the grid changes, each probability mass is
split between the two nearest nodes such that the mass is kept under both P and Q. This can only enlarge δ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import ceil, exp, expm1, log

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.bounds.bound import ClosedForm
from privkit.accountants.bounds.loss_distribution import LossDistribution, Profile, by_squaring
from privkit.accountants.bounds.sampled import SampledStep
from privkit.accountants.bounds.sampled_renyi import without_replacement_grid_rdp, without_replacement_rdp
from privkit.accountants.bounds.step import Pairs
from privkit.accountants.bounds.subsampling import amplify, without_replacement_delta
from privkit.accountants.bounds.truncated_losses import Piece
from privkit.shared.array import Array

_CELLS = 8  # cells between a loss of 0 and one variable's largest loss: for many variables, ε has an error of 1e-5·ε
_WIDEST = 0.25  # longest cell, in nats; a variable's loss varies by at most about two
_MOST_NODES = 4_096  # nodes up to which sums are taken term by term, within milliseconds
_TAIL = 1e-300  # mass that is moved at each end: up at the low end, to an infinite loss at the high end
_LARGEST_LOSS = 700.0  # nats above which e^ε overflows
_ROUNDING = 1e-12  # relative rounding error of one sum, generously; n variables have n times as much


@dataclass(frozen=True, kw_only=True)
class LaplaceRelease(SampledStep):
    """Releases with independent Laplace noise on every coordinate."""

    parts: tuple[tuple[float, int], ...]  # pairs (shift divided by the scale, number of coordinates with this shift)
    single: bool = False  # whether the release is one coordinate
    worst: bool = True  # whether a pair of neighbors is known that moves every coordinate by its shift

    @property
    def reached(self) -> bool:
        return self.worst and self.rate == 1

    def rdp(self, orders: Array, count: int) -> Array:
        if self.rate == 1:
            return np.asarray(count * _vector_rdp(orders, self.parts), float)
        curve = without_replacement_rdp(orders, self.rate, lambda order: _vector_rdp(order, self.parts))
        if (base := vector_losses(self.parts)) is not None:
            curve = np.minimum(curve, without_replacement_grid_rdp(orders, self.rate, base))
        return np.asarray(count * curve, float)

    def pure(self, count: int) -> float:
        return count * float(amplify(self._once, self.rate))

    def most(self, count: int) -> list[tuple[float, int]]:
        told = [(shift, many * count) for shift, many in self.parts]
        sampled = [(self.pure(1), count)]
        return min(told, sampled, key=lambda losses: sum(number * loss**2 for loss, number in losses))

    def exact(self, count: int) -> ClosedForm | None:
        if not self.single or count > 1 or self.rate < 1:
            return None
        once = self._once
        return ClosedForm.of_profile(
            "exact Laplace profile", "derived", lambda at: epsilon(at, once), lambda at: delta(at, once)
        )

    def pairs(self, count: int) -> Pairs | None:
        if self.rate == 1:
            return [(profile(shift), many * count) for shift, many in self.parts]
        alone = sum(many for _, many in self.parts) == 1
        base = profile(self.parts[0][0]) if alone else vector_profile(self.parts)
        if base is None:
            return None
        return [(lambda epsilon: without_replacement_delta(epsilon, self.rate, base), count)]

    @property
    def gains(self) -> bool:
        return 0 < self.rate < 1 and self._once > 0

    def pieces(self, count: int) -> list[Piece] | None:
        if self.rate == 0 or self._once == 0:
            return []
        together = [(self.parts, 1)] if self.rate < 1 else [(((shift, 1),), many) for shift, many in self.parts]
        found = list[Piece]()
        for parts, many in together:
            if (loss := vector_losses(parts)) is None:
                return None
            error = vector_error(parts)
            found.append(Piece(np.ones(1), np.ones(1), self.rate, many * count, False, loss, error))
        return found

    @property
    def _once(self) -> float:
        return sum(shift * many for shift, many in self.parts)


def rdp(orders: ArrayLike, shift: ArrayLike) -> Array:
    """The Rényi divergence, at orders α > 1, of two Laplace distributions of scale 1 whose means differ by `shift` ≥ 0.

    Source: Mironov 2017, Proposition 6.
    """
    a, t = np.asarray(orders, float), np.asarray(shift, float)
    up, down = (a - 1) * t, -a * t
    with np.errstate(over="ignore", invalid="ignore"):
        # p·up + (1 − p)·down = 0 with p = α/(2α − 1): without the linear terms nothing cancels.
        p, rest = 1 / (2 - 1 / a), (1 - 1 / a) / (2 - 1 / a)
        small = np.log1p(p * _beyond_linear(up) + rest * _beyond_linear(down))
        large = np.logaddexp(np.log(p) + up, np.log(rest) + down)
    return np.asarray(np.where(up < 1, small, large) / (a - 1))


def _vector_rdp(orders: ArrayLike, parts: Sequence[tuple[float, int]]) -> Array:
    """The Rényi divergence of independent Laplace coordinates: the sum of their divergences. `parts` is as in
    `LaplaceRelease`. Source: Mironov 2017, Proposition 1."""
    return np.asarray(sum((count * rdp(orders, shift) for shift, count in parts), np.zeros(np.shape(orders))))


def _beyond_linear(x: Array) -> Array:
    """e^x − 1 − x ≥ 0, without cancellation."""
    series = x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6 * (1 + x / 7)))))
    return np.where(np.abs(x) < 0.01, series, np.expm1(x) - x)


def delta(epsilon: float, shift: float) -> float:
    """The smallest δ at ε ≥ 0 of one Laplace variable. Between neighbors its mean differs by t = `shift` ≥ 0 times the
    scale.

    The result is 1 − exp((ε − t)/2) for ε ≤ t, and 0 for larger ε.

    Source: derived from the hockey-stick integral; equals Balle et al. 2018's profile.
    """
    e, t = validate.real("epsilon", epsilon, least=0), validate.real("shift", shift, least=0)
    return -expm1((e - t) / 2) if e < t else 0.0


def epsilon(delta_: float, shift: float) -> float:
    """The smallest ε at δ in (0, 1) of one Laplace variable whose mean differs by t = `shift` ≥ 0 times the scale
    between neighbors: t + 2·ln(1 − δ), at least 0.
    """
    d, t = validate.delta(delta_), validate.real("shift", shift, least=0)
    return max(0.0, t + 2 * log(1 - d))


def profile(shift: float) -> Profile:
    """The privacy profile (a function from ε ≥ 0 to δ) of one Laplace variable of shift t, in scales of the noise: 1 −
    e^{(ε−t)/2} for ε ≤ t, and 0 above.

    Source: derived from the hockey-stick integral.
    """
    t = validate.real("shift", shift, least=0)
    return lambda epsilon: -np.expm1(np.minimum(epsilon - t, 0) / 2)


@lru_cache(maxsize=64)
def vector_losses(parts: tuple[tuple[float, int], ...]) -> LossDistribution | None:
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
    return replace(whole, masses=whole.masses * (1 + vector_error(parts)))


def vector_error(parts: tuple[tuple[float, int], ...]) -> float:
    """Bound on the relative rounding error of the masses in `vector_losses`, which raises its masses by this bound."""
    return _ROUNDING * sum(number for _, number in parts)


@lru_cache(maxsize=64)
def vector_profile(parts: tuple[tuple[float, int], ...]) -> Profile | None:
    """The privacy profile of independent Laplace variables: a function from ε ≥ 0 to an upper bound on δ, exact except
    for the grid's error. `parts` is as in `vector_losses`. The result is None if `vector_losses` gives None."""
    whole = vector_losses(parts)
    if whole is None:
        return None
    first = max(-whole.lowest, 0)
    nodes, masses = whole.losses[first:], whole.masses[first:]
    if whole.lowest > 0:
        nodes, masses = np.insert(nodes, 0, 0.0), np.insert(masses, 0, 0.0)
    # δ at a node is ∫ Q(loss > ln x) dx over x > e^ε, a sum of positive terms.
    beyond = np.cumsum((masses * np.exp(-nodes))[::-1])[::-1][1:]
    area = beyond * np.exp(nodes[:-1]) * np.expm1(np.diff(nodes))
    odds, deltas = np.exp(nodes), np.append(np.cumsum(area[::-1])[::-1], 0.0) + whole.infinity

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
