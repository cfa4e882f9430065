"""Rényi composition of truncated losses, for sampled Gaussians at any real order.

At high orders the Rényi divergence of a sampled Gaussian explodes, because of losses that hardly ever occur. We count
these losses as infinite and charge them to δ. The others are moved to a few nodes, so an order costs a few
exponentials.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.mixture import PublicMixture
from privkit.accountants.bounds.renyi_composition import CONVERSION, method_and_source
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.bounds.step import Steps
from privkit.shared.array import Array

_Piece = tuple[Array, Array, float, int, bool]
"""Shifts μ > 0 of a release, their probabilities, rate, count, and whether it is Poisson-sampled."""
_NODES = 48
"""Losses of one release. Twice as many lower ε by less than 1%."""
_SPENT = 0.5
"""Part of δ that truncated losses may take. From 0.3 to 0.6, ε changes by less than 1% at most specifications."""
LARGEST_SHIFT = 10.0
"""μ up to which no likelihood ratio overflows."""
_SMALLEST_SHIFT = 1e-6
"""μ to which smaller shifts are raised, so that the differences of likelihoods keep their digits."""
_ROUNDING = 1e-14
"""Relative error of a node's mass times μ."""
_LARGEST_EXPONENT = 600.0
"""Order times loss above which a moment would overflow."""
_STEPS, _CLOSE = 16, 1e-4
"""Newton steps to the best order, and the relative step that needs no other: ε is then 1e-8 above its smallest."""
_ROWS = 256
"""Runs that are worked on at once, so that intermediate arrays stay in the processor's cache."""
_SEARCH, _FOUND = 25, 1e-7
"""Values of ln δ of one pass of the search for δ at ε, and the width at which it ends."""
_LOG_SMALLEST = -650.0


@dataclass(frozen=True, kw_only=True, eq=False)
class TruncatedRenyiBound(Bound):
    r"""Rényi composition of the losses below a cut; the others are infinite.

    Let y = e^{μx − μ²/2} be the likelihood ratio of a Gaussian shifted by μ, x ~ N(0, 1) its noise. Between two nodes,
    each cell's mass goes to its ends such that both probabilities of the cell are kept; above the last node,
    P(x) − y·Q(x) becomes an infinite loss. The result dominates the Gaussian pair, and sampling keeps dominance: the
    sampled ratio L = 1 − q + q·y has the same nodes and masses. A release from k of n has the profile of y ≥ 1 in both
    directions. With p the probability that any release has an infinite loss, and K the sum of ln E_P L^λ,

        δ ≤ p + λ^λ/(1 + λ)^{1+λ}·e^{K − λε} for every real λ > 0.

    Under Poisson sampling the bound is that of the worse direction. A public shift has the moments of all its
    values, weighted by their probabilities.

    Attributes:
        pieces: the Gaussian releases.
        method: its name.

    Source: derived. Discretization: Doroshenko et al. 2022, Algorithm 1; dominance under sampling: Zhu, Dong and Wang
    2022, Theorem 11; truncation: H(P‖Q) is at most P(A) plus that of both restricted to the complement of A.
    """

    pieces: Sequence[_Piece]
    method: str
    source: str = f"Doroshenko et al. 2022; Zhu, Dong and Wang 2022, Theorem 11; {CONVERSION}"
    exact: bool = False

    @property
    def batch(self) -> Hashable:
        return type(self)

    @classmethod
    def epsilons(cls, bounds: Sequence[Self], deltas: Array) -> list[Limit]:
        limits: list[Limit] = []
        for start in range(0, len(bounds), _ROWS):
            values, orders = _epsilons(
                [one.pieces for one in bounds[start : start + _ROWS]], deltas[start : start + _ROWS]
            )
            pairs = zip(values.tolist(), orders.tolist(), strict=True)
            limits += [Limit(value=value, order=order) for value, order in pairs]
        return limits

    def epsilon(self, delta: float) -> Limit:
        return self.epsilons([self], np.array([delta]))[0]

    def log_delta(self, epsilon: float) -> Limit:
        low, high = _LOG_SMALLEST, 0.0
        while high - low > _FOUND:
            tried = np.linspace(low, high, _SEARCH + 2)[1:-1]
            values, _ = _epsilons([self.pieces] * _SEARCH, np.exp(tried))
            enough = np.append(np.flatnonzero(values <= epsilon), _SEARCH)[0]
            low, high = (low, *tried)[enough], (*tried, high)[enough]
        return Limit(value=float(high))


def truncated_renyi_bound(steps: Steps) -> TruncatedRenyiBound | None:
    """Rényi composition of truncated losses; None unless all steps are Gaussian and one is sampled.

    Source: as `TruncatedRenyiBound`.

    >>> bound = truncated_renyi_bound([(GaussianRelease(mu=0.4, sampling="poisson", rate=1e-3), 1000)])
    >>> round(bound.epsilon(1e-5).value, 3)
    0.043
    """
    pieces, sampled = [], False
    for step, count in steps:
        if isinstance(step, GaussianRelease):
            mu, chance, poisson = np.array([step.mu]), np.ones(1), step.sampling == "poisson" and step.rate < 1
        elif isinstance(step, PublicMixture) and step.few:
            mu, chance, poisson = step.law.mu, np.exp(step.law.log_weight), False
        else:
            return None
        if mu.max() > LARGEST_SHIFT:
            return None
        if step.rate > 0 and mu.max() > 0:
            pieces.append((mu[mu > 0], chance[mu > 0], step.rate, count, poisson))
            sampled |= step.rate < 1
    if not sampled:
        return None
    method, _ = method_and_source(tuple([(step.how, "") for step, _ in steps]), "Rényi composition of truncated losses")
    return TruncatedRenyiBound(pieces=pieces, method=method)


@dataclass(frozen=True, kw_only=True)
class _Losses:
    """Discretized losses of S pieces with J ≥ S shifts in all."""

    loss: Array  # [J, N] ln P/Q at the nodes
    mass: Array  # [J, N] under Q, times the probability of the shift; the last node holds ratios near 0
    starts: NDArray[np.int_]  # [S] the first shift of each piece
    without: Array  # [S] probability that a release does not depend on the neighbor at all
    infinite: Array  # [S] mass of P whose loss is infinite
    infinite_back: Array  # [S] mass of Q whose loss is infinite in the other direction
    error: Array  # [S] of a moment, relative: what rounding can have taken

    def reverse(self) -> _Losses:
        """The same with P and Q exchanged; ratios near 0 become infinite losses."""
        loss = self.loss[:, :-1]
        return replace(
            self,
            loss=-loss,
            mass=self.mass[:, :-1] * np.exp(loss),
            infinite=self.infinite_back,
            infinite_back=self.infinite,
        )

    def cumulants(self, tilt: Array) -> tuple[Array, Array, Array]:
        """ln E_P e^{λ·loss} of the finite losses, bounded from above, with two derivatives; [S] λ -> [S] each.

        It is ln(1 + E_Q[L^{λ+1} − 1]); what Q lacks of mass 1 would make it smaller.
        """
        sizes = np.diff(self.starts, append=len(self.loss))
        weight = np.exp((np.repeat(tilt, sizes) + 1)[:, None] * self.loss)
        weight *= self.mass
        moment = self.summed(weight.sum(1))
        weight *= self.loss
        whole = moment + self.without
        first = self.summed(weight.sum(1)) / whole
        second = self.summed(np.einsum("sn,sn->s", weight, self.loss)) / whole - first**2
        value = np.log1p(moment - self.summed(self.mass.sum(1)) + self.error * (1 + moment))
        return value, first, np.maximum(second, 0.0)

    def summed(self, values: Array) -> Array:
        """[J] over the shifts of each piece, [S]."""
        return np.asarray(np.add.reduceat(values, self.starts))


def _pieces_of_runs(runs: Sequence[Sequence[_Piece]], spent: Array) -> tuple[_Losses, Array]:
    """Losses of the pieces of all runs, which cost about `spent` [S] of δ, and the count of each piece."""
    shifts, chances, rates, counts, sampled = zip(*chain.from_iterable(runs), strict=True)
    sizes, rounds = np.array([one.size for one in shifts]), np.array(counts)
    owner, chance = np.repeat(np.arange(sizes.size), sizes), np.concatenate(chances)
    each = _discretized(
        np.concatenate(shifts), np.array(rates)[owner], rounds[owner], np.array(sampled)[owner], spent[owner]
    )
    starts = np.cumsum(sizes) - sizes
    losses = replace(
        each,
        mass=each.mass * chance[:, None],
        starts=starts,
        without=np.maximum(1 - np.add.reduceat(chance, starts), 0.0),
        infinite=np.add.reduceat(chance * each.infinite, starts),
        infinite_back=np.add.reduceat(chance * each.infinite_back, starts),
        error=np.maximum.reduceat(each.error, starts),
    )
    return losses, rounds


def _discretized(shift: Array, rate: Array, rounds: Array, poisson: NDArray[np.bool_], spent: Array) -> _Losses:
    """Nodes and masses of S pieces of one shift; their infinite losses cost about `spent` [S] of δ."""
    mu, q = np.maximum(shift, _SMALLEST_SHIFT)[:, None], rate[:, None]
    rarest = ndtri(np.minimum(spent / (rounds * rate), 0.45))[:, None]
    lowest = ndtri(np.minimum(spent / rounds, 0.45))[:, None]
    loss, mass = np.zeros((mu.size, _NODES)), np.zeros((mu.size, _NODES))
    infinite, infinite_back = np.zeros(mu.size), np.zeros(mu.size)
    for both, rows in ((False, np.flatnonzero(poisson)), (True, np.flatnonzero(~poisson))):
        if not rows.size:
            continue
        m, end = mu[rows], mu[rows] - rarest[rows]
        count = _NODES // 2 if both else _NODES - 1
        start = m / 2 if both else lowest[rows]
        x = start + (end - start) * np.linspace(0, 1, count)
        ratio = np.exp(m * (x - m / 2))  # y
        above, above_shifted = ndtr(-x), ndtr(m - x)
        cell, cell_shifted = -np.diff(above), -np.diff(above_shifted)
        gap = ratio[:, :-1] * np.expm1(m * np.diff(x))
        nodes = np.zeros_like(x)
        nodes[:, 1:] += np.maximum(cell_shifted - ratio[:, :-1] * cell, 0) / gap
        nodes[:, :-1] += np.maximum(ratio[:, 1:] * cell - cell_shifted, 0) / gap
        nodes[:, -1] += above[:, -1]
        beyond = np.maximum(above_shifted[:, -1] - ratio[:, -1] * above[:, -1], 0)
        infinite[rows] = rate[rows] * (beyond + _ROUNDING * above_shifted[:, -1])
        log_ratio = np.log1p(q[rows] * np.expm1(m * (x - m / 2)))
        if both:  # the losses above 0 in both directions, and the rest at 0
            back = nodes[:, 1:] * np.exp(log_ratio[:, 1:])
            loss[rows] = np.concatenate([-log_ratio[:, 1:], log_ratio, np.zeros_like(m)], 1)
            nodes[:, 0] = np.maximum(1 - infinite[rows] - nodes[:, 1:].sum(1) - back.sum(1), 0)
            mass[rows] = np.concatenate([back, nodes, np.zeros_like(m)], 1)
            infinite_back[rows] = infinite[rows]
        else:  # a ratio below the first is split between it and 0
            shared = ndtr(x[:, :1] - m) / ratio[:, :1]
            nodes[:, :1] += shared
            mass[rows] = np.concatenate([nodes, np.maximum(ndtr(x[:, :1]) - shared, 0)], 1)
            loss[rows] = np.concatenate([log_ratio, np.log1p(-q[rows])], 1)
            infinite_back[rows] = mass[rows, -1] + _ROUNDING * ndtr(x[:, 0])
    return _Losses(
        loss=loss,
        mass=mass,
        starts=np.arange(mu.size),
        without=np.zeros(mu.size),
        infinite=infinite,
        infinite_back=infinite_back,
        error=_ROUNDING / mu[:, 0],
    )


def _epsilons(runs: Sequence[Sequence[_Piece]], deltas: Array) -> tuple[Array, Array]:
    """[R] ε of runs, each at its δ, and the Rényi orders."""
    sizes = np.array([len(run) for run in runs])
    owner = np.repeat(np.arange(sizes.size), sizes)
    losses, rounds = _pieces_of_runs(runs, _SPENT * (deltas / sizes)[owner])

    def total(values: Array) -> Array:
        return np.asarray(np.bincount(owner, values, minlength=sizes.size), float)

    def surprise(side: _Losses) -> Array:
        """−ln of the δ that is left to the finite losses; infinite where nothing is."""
        left = deltas + np.expm1(total(rounds * np.log1p(-side.infinite)))
        return np.where(left > 0, -np.log(np.maximum(left, 1e-300)), inf)

    def converted(side: _Losses, least: Array, tilt: Array) -> tuple[Array, Array]:
        """ε at λ, and the change of ln λ that Newton's method wants for the smallest ε."""
        value, first, second = (total(rounds * one) for one in side.cumulants(tilt[owner]))
        slope = np.log(tilt) - np.log1p(tilt)
        numerator = value + least + tilt * slope - np.log1p(tilt)
        return numerator / tilt, (numerator - tilt * (first + slope)) / (tilt**2 * second + tilt / (1 + tilt))

    least = surprise(losses)
    of_pieces = np.maximum.reduceat(np.abs(losses.loss).max(1), losses.starts)
    largest = np.maximum.reduceat(of_pieces, np.cumsum(sizes) - sizes)
    most = _LARGEST_EXPONENT / largest - 1
    variance = total(rounds * losses.cumulants(np.zeros(owner.size))[2])
    tilt = np.clip(np.sqrt(2 * np.clip(least, 0.1, 700) / variance), 1e-6, most)
    best, at = np.full(sizes.size, inf), tilt
    for _ in range(_STEPS):
        values, change = converted(losses, least, tilt)
        best, at = np.where(values < best, values, best), np.where(values < best, tilt, at)
        if not (moves := np.abs(change) > _CLOSE).any():
            break
        tilt = np.where(moves, np.clip(tilt * np.exp(np.clip(change, -1, 1)), 1e-6, most), tilt)
    if any(sampled for *_, sampled in chain.from_iterable(runs)):
        back = losses.reverse()
        best = np.maximum(best, converted(back, surprise(back), at)[0])
    return np.maximum(best, 0), at + 1
