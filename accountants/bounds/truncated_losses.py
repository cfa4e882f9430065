"""Privacy losses of sampled releases on a few nodes: an upper bound, computed for many runs at once.

At high orders the Rényi divergence of a sampled Gaussian explodes, because of losses that hardly ever occur. We count
these losses as infinite, so that their probability is added to δ. The other losses are moved to a few nodes.

Let y = P/Q = e^{μx − μ²/2} be the likelihood ratio of a Gaussian shifted by μ (P) to the unshifted Gaussian (Q), where
x ~ N(0, 1) under Q. The mass between two nodes is divided between them such that its probabilities under P and Q are
kept. Above the last node, the excess of P over y times Q becomes an infinite loss. The result dominates the Gaussian
pair. Sampling at rate q keeps dominance: the sampled ratio L = 1 − q + q·y has the same nodes and masses.

A release from k of n clients has the profile of y ≥ 1 in both directions. For a random public shift, the masses of all
shifts are weighted by their probabilities. For a release that is not Gaussian, the masses of its loss distribution are
moved to such nodes.

Source: derived. Discretization: Doroshenko et al. 2022, Algorithm 1; dominance under sampling: Zhu, Dong and Wang 2022,
Theorem 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from privkit.accountants.bounds.loss_distribution import LossDistribution
from privkit.shared.array import Array

_NODES = 96  # nodes of one release's loss. Half as many nodes raise ε by about 1%, and by more if δ is tiny.
OVERFLOW_SHIFT = 10.0  # μ up to which no likelihood ratio overflows
_SMALLEST_SHIFT = 1e-6  # μ to which smaller shifts are raised, so that the differences of likelihoods keep their digits
_ROUNDING = 1e-14  # relative error of a node's mass, multiplied by μ


class Piece(NamedTuple):
    """A group of equal releases, which are discretized together."""

    mu: Array  # [J] shifts > 0 of a Gaussian; one placeholder if the loss is given
    chance: Array  # [J] probabilities of the shifts
    rate: float  # probability with which the protected record or client is in a release
    rounds: int  # number of such releases
    poisson: bool  # whether the releases are Poisson-sampled; else from k of n clients, or from everyone
    # distribution of the loss before sampling, equal in both directions; None for a Gaussian
    loss: LossDistribution | None = None
    error: float = 0.0  # bound on the relative error of the masses in `loss`, by which they were raised


@dataclass(frozen=True, kw_only=True)
class TruncatedLosses:
    """Privacy losses of S pieces (groups of equal releases) with J ≥ S shifts in all, on N nodes per shift."""

    loss: Array  # [J, N] ln(P/Q) at the nodes; P and Q are the laws for two neighbors
    mass: Array  # [J, N] probability under Q times the probability of the shift; the last node holds ratios P/Q near 0
    starts: NDArray[np.int_]  # [S] the first shift of each piece
    without: Array  # [S] probability that a release is independent of the record in which neighbors differ
    infinite: Array  # [S] mass of P whose loss is infinite
    infinite_back: Array  # [S] mass of Q whose loss is infinite in the other direction
    error: Array  # [S] relative rounding error of a moment

    @cached_property
    def sizes(self) -> NDArray[np.int_]:
        """Number of shifts of each piece, [S]."""
        return np.diff(self.starts, append=len(self.loss))

    @cached_property
    def finite(self) -> Array:
        """The probability under Q, for each piece, that a release has one of the shifts and a finite loss: [S]."""
        return self.summed(self.mass.sum(1))

    @property
    def largest(self) -> Array:
        """The largest absolute value of each piece's finite losses, [S]."""
        return np.asarray(np.maximum.reduceat(np.abs(self.loss).max(1), self.starts))

    def chosen(self, pieces: NDArray[np.bool_]) -> TruncatedLosses:
        """The losses of the pieces that the mask `pieces` [S] selects."""
        sizes, shifts = self.sizes[pieces], np.repeat(pieces, self.sizes)
        return TruncatedLosses(
            loss=self.loss[shifts],
            mass=self.mass[shifts],
            starts=np.cumsum(sizes) - sizes,
            without=self.without[pieces],
            infinite=self.infinite[pieces],
            infinite_back=self.infinite_back[pieces],
            error=self.error[pieces],
        )

    def reverse(self) -> TruncatedLosses:
        """The losses with P and Q exchanged; ratios near 0 become infinite losses."""
        loss = self.loss[:, :-1]
        return replace(
            self,
            loss=-loss,
            mass=self.mass[:, :-1] * np.exp(loss),
            infinite=self.infinite_back,
            infinite_back=self.infinite,
        )

    def cumulants(self, tilt: Array) -> tuple[Array, Array, Array]:
        """Upper bounds on ln E_P e^{λ·loss} over the finite losses of each of S pieces (groups of equal releases), and
        the first two derivatives in λ, at S values of λ (`tilt`): three arrays [S].

        The bounds are computed as ln(1 + E_Q[L^{λ+1} − 1]) with L = P/Q. Q's masses at finite losses sum to less than
        1; the formula counts the missing mass as L = 1, which can only enlarge the result.
        """
        weight = np.exp((np.repeat(tilt, self.sizes) + 1)[:, None] * self.loss)
        weight *= self.mass
        moment = self.summed(weight.sum(1))
        weight *= self.loss
        whole = moment + self.without
        first = self.summed(weight.sum(1)) / whole
        second = self.summed(np.einsum("sn,sn->s", weight, self.loss)) / whole - first**2
        value = np.log1p(moment - self.finite + self.error * (1 + moment))
        return value, first, np.maximum(second, 0.0)

    def summed(self, values: Array) -> Array:
        """Sum `values` [J] over the shifts of each piece: [S]."""
        return values if values.size == self.starts.size else np.asarray(np.add.reduceat(values, self.starts))


def losses_of_runs(runs: Sequence[Sequence[Piece]], spent: Array) -> tuple[TruncatedLosses, Array]:
    """The losses of all runs' S pieces (groups of equal releases), and each piece's rounds, [S]. Rare large losses
    count as infinite, which adds about `spent` [S] to δ."""
    pieces = list(chain.from_iterable(runs))
    shifts, chances, rates, counts, sampled, *_ = zip(*pieces, strict=True)
    sizes, rounds = np.array([one.size for one in shifts]), np.array(counts)
    owner, chance = np.repeat(np.arange(sizes.size), sizes), np.concatenate(chances)
    each = discretized(
        np.concatenate(shifts), np.array(rates)[owner], rounds[owner], np.array(sampled)[owner], spent[owner]
    )
    starts = np.cumsum(sizes) - sizes
    for one, row, part in zip(pieces, starts.tolist(), spent.tolist(), strict=True):
        if one.loss is not None:
            each.loss[row], each.mass[row], each.infinite[row] = moved(one.loss, one.rate, part / one.rounds)
            each.infinite_back[row], each.error[row] = each.infinite[row], _ROUNDING + 2 * one.error
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


def discretized(shift: Array, rate: Array, rounds: Array, poisson: NDArray[np.bool_], spent: Array) -> TruncatedLosses:
    """The privacy losses of S sampled Gaussian releases, each with its own shift, on a few nodes with their
    probabilities. Losses beyond the last node count as infinite, which adds about `spent` [S] to δ over all `rounds`.
    """
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
        above, above_shifted = ndtr(-x[:, -1]), ndtr(m[:, 0] - x[:, -1])
        cell, cell_shifted = _between(x), _between(x - m)
        gap = ratio[:, :-1] * np.expm1(m * np.diff(x))
        nodes = np.zeros_like(x)
        nodes[:, 1:] += np.maximum(cell_shifted - ratio[:, :-1] * cell, 0) / gap
        nodes[:, :-1] += np.maximum(ratio[:, 1:] * cell - cell_shifted, 0) / gap
        nodes[:, -1] += above
        beyond = np.maximum(above_shifted - ratio[:, -1] * above, 0)
        infinite[rows] = rate[rows] * (beyond + _ROUNDING * above_shifted)
        log_ratio = np.log1p(q[rows] * np.expm1(m * (x - m / 2)))
        if both:  # the losses above 0 in both directions, and the rest at 0
            back = nodes[:, 1:] * np.exp(log_ratio[:, 1:])
            loss[rows] = np.concatenate([-log_ratio[:, 1:], log_ratio, np.zeros_like(m)], 1)
            nodes[:, 0] = np.maximum(1 - infinite[rows] - nodes[:, 1:].sum(1) - back.sum(1), 0)
            mass[rows] = np.concatenate([back, nodes, np.zeros_like(m)], 1)
            infinite_back[rows] = infinite[rows]
        else:  # the mass at ratios below the first node is split between this node and 0
            shared = ndtr(x[:, :1] - m) / ratio[:, :1]
            nodes[:, :1] += shared
            mass[rows] = np.concatenate([nodes, np.maximum(ndtr(x[:, :1]) - shared, 0)], 1)
            loss[rows] = np.concatenate([log_ratio, np.log1p(-q[rows])], 1)
            infinite_back[rows] = mass[rows, -1] + _ROUNDING * ndtr(x[:, 0])
    return TruncatedLosses(
        loss=loss,
        mass=mass,
        starts=np.arange(mu.size),
        without=np.zeros(mu.size),
        infinite=infinite,
        infinite_back=infinite_back,
        error=_ROUNDING / mu[:, 0],
    )


def _between(x: Array) -> Array:
    """Probabilities of N(0, 1) between consecutive values of each increasing row: [S, N] → [S, N − 1].

    They are differences of the smaller tails, so they keep their digits on both sides.

    >>> _between(np.array([[-30.0, -20.0, 0.0, 20.0, 30.0]])) / 2.7536241186e-89 < 1.001
    array([[ True, False, False,  True]])
    """
    tail = ndtr(-np.abs(x))
    one_side = (x[:, 1:] <= 0) | (x[:, :-1] >= 0)
    return np.asarray(np.where(one_side, np.abs(np.diff(tail)), 1 - tail[:, 1:] - tail[:, :-1]))


def moved(base: LossDistribution, rate: float, spent: float) -> tuple[Array, Array, float]:
    """Sample k of n clients, and move the resulting privacy loss to N nodes, as many as in `discretized`. The loss is
    equal in both directions.

    Args:
        base: the loss without sampling.
        rate: γ = k/n > 0.
        spent: the approximate probability of an infinite loss of one release.

    Returns:
        N losses, their N probabilities under Q, and P's probability of an infinite loss.

    Source: derived. A mass of P at distance x above a node, with nodes d apart, moves the fraction (1 − e^{−x})/(1 −
    e^{−d}) to the upper node: Doroshenko et al. 2022, Algorithm 1.
    """
    positive = base.losses > 0
    place, weight = base.losses[positive], base.masses[positive]
    count = _NODES // 2
    beyond = base.infinity + np.cumsum(weight[::-1])[::-1]
    kept = int(np.searchsorted(-beyond, -spent / rate))  # losses before this one are likely
    node = np.linspace(0, place[min(kept, place.size - 1)], count) if place.size else np.arange(float(count))
    cell = np.minimum((place / node[1]).astype(int), count - 1)
    step = np.append(np.diff(node), np.inf)[cell]
    upper = weight * np.clip(np.expm1(node[cell] - place) / np.expm1(-step), 0, 1)
    held = np.bincount(cell, weight - upper, count + 1) + np.bincount(cell + 1, upper, count + 1)
    infinite = rate * (base.infinity + float(held[-1]))
    ratio = np.log1p(rate * np.expm1(node))
    mass = held[:-1] * np.exp(-node)  # under Q
    back = mass[1:] * np.exp(ratio[1:])
    mass[0] = max(1 - infinite - float(mass[1:].sum()) - float(back.sum()), 0.0)
    return np.concatenate([-ratio[1:], ratio, [0.0]]), np.concatenate([back, mass, [0.0]]), infinite
