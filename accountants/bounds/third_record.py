r"""Composition of rounds with k of n clients: if the protected record is not drawn, the same third record replaces it.

With probability γ = k/n a round contains the protected record, at the point x. Otherwise it contains a third record, at
y, in its place. With the neighboring data set, the round contains x' instead of x, or the same y. Given the sum of the
other records, and in standard deviations of the noise, a round has one of the laws

    P = γ·N(x, 1) + (1 − γ)·N(y, 1)    and    Q = γ·N(x', 1) + (1 − γ)·N(y, 1),

with x, x' and y at most μ apart. The tight profile of one round takes y = x' for ε > 0 and y = x for ε < 0. So the
composition of this profile would let y be x and x' in the same round. Here each round has one y, and this y may depend
on all earlier rounds. Let H_t(α) be the largest hockey-stick divergence of t rounds (δ at ε = ln α), and L = dP/dQ of
the next round. Then

    H_0(α) = max(1 − α, 0),    H_{t+1}(α) = max over (x, x', y) of E_P[H_t(α/L)].

Conditions: Any two of x, x' and y are at most μ apart. If the places in a round have different mixing ratios, the drawn
records take these places at random. γ, μ and the number of rounds are fixed before the first round.

**Which triples (x, x', y).** Only their distances matter. If two of the three distances are below μ, the point that
both share can be moved along a new dimension until one of the two is μ; the projection back is post-processing. So two
distances are μ, and the third is μ√s: there are three families, each with 0 ≤ s ≤ 1. In a family the Gram matrix of x −
y and x' − y is linear in s. We cover an interval of s by one matrix that exceeds (in the order of positive semidefinite
matrices) the matrices at both ends. It exceeds all matrices between, and reveals at least as much.

**Use.** H_t is convex in α, so linear interpolation between the nodes of a grid is an upper bound. H_m is a profile of
m rounds. Like other profiles, it composes with itself and with other mechanisms, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, log, log2, pi, sqrt
from typing import TypeAlias

import numpy as np
from scipy import fft
from scipy.special import logsumexp, ndtr

from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.loss_distribution import (
    GridTooLarge,
    LossDistribution,
    Profile,
    coarsely,
    from_profile,
    moments,
)
from privkit.shared.array import Array

Gram: TypeAlias = tuple[float, float, float]  # |x − y|², |x' − y|² and the product of x − y and x' − y
_NEAR = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995, 1.0)
"""Ends of the intervals of s for the family in which y is √s·μ from x', or from x."""
APART = (0.0, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97, 0.99, 1.0)
"""Ends of the intervals of s for the family in which x is √s·μ from x'; the nearer x and x' are, the less is
revealed."""
_LARGEST_SHIFT = 2.5  # μ above which losses are too large for the grid to hold ε and δ
_MOST = 256  # rounds of one profile; more are composed from several
_ERROR = 0.002  # error of ε by the grid, relative to a rough guess of ε
_NODES = 2**12  # most nodes of the grid on either side of 0
_TAIL, _BEYOND = 1e-15, 1e-13
"""Probabilities of losses above the grid: for one round, and for all rounds of a profile together."""
_FARTHEST = 200.0  # ε above which every δ on the grid is too small to matter
_SMALLEST_SPREAD = 1e-7  # standard deviation of a round's loss below which rounding errors dominate
_WIDE = 10.0  # integrals over a normal variable end at this many standard deviations


@lru_cache(maxsize=64)
def rounds_profile(rate: float, mu: float, rounds: int) -> tuple[Profile, int] | None:
    """A joint privacy profile of several rounds with k of n clients, and how many copies of it cover all `rounds`.

    `rate` is γ = k/n in (0, 1). Two records are at most μ ≥ 0 standard deviations of the noise apart. The profile lets
    an adversary choose, before each round, the third record that takes the place of an undrawn record. The result is
    None if μ is 0 or above 2.5, or if no grid is fine enough.

    Source: derived in this module's docstring; Balle, Barthe and Gaboardi 2018, Theorem 9 (one round); Zhu, Dong and
    Wang 2022.
    """
    if not 0 < mu <= _LARGEST_SHIFT:
        return None
    try:
        worst, _ = coarsely(gaussian.without_replacement_profile(rate, mu), _TAIL)
        return _several(rate, mu, rounds, worst)
    except GridTooLarge:
        return None


def _several(rate: float, mu: float, rounds: int, worst: LossDistribution) -> tuple[Profile, int] | None:
    times = ceil(rounds / _MOST)
    each = ceil(rounds / times)
    spread = sqrt(moments(worst.masses, worst.losses)[1])
    if spread < _SMALLEST_SPREAD:
        return None
    total, reach = spread * sqrt(rounds), 1.05 * _reach(worst, each, spread)
    if reach > _FARTHEST:
        return None
    interval = sqrt(_ERROR * (total**2 / 2 + 4 * total) / rounds)
    interval = max(interval, reach / _NODES)
    steps = [_losses(matrix, rate, mu, interval) for matrix in triples()]
    values = _composed(steps, each, interval, ceil(reach / interval))
    nodes = np.exp(interval * np.arange(values.size))
    return (lambda epsilon: np.interp(np.exp(np.minimum(epsilon, 700)), nodes, values)), times


def triples(near_ends: Sequence[float] = _NEAR, apart_ends: Sequence[float] = APART) -> list[Gram]:
    """Gram matrices that together exceed those of all triples (x, x', y) of records that are at most 1 apart, in the
    order of positive semidefinite matrices.

    A Gram matrix holds the products of x − y and x' − y. In the worst triples two distances are 1, and the square s of
    the third is in [0, 1]. For each interval of s between consecutive ends, one matrix exceeds all matrices of this
    interval. `near_ends` belong to the triples in which the third distance is from y to x', `apart_ends` to those from
    x to x'. Triples with y near x are left out: exchanging x and x' turns them into triples with y near x'.
    """
    near, apart = np.array([[1, 0], [0, 0]]), np.ones((2, 2))  # at s = 0
    slopes = np.array([[0, 0.5], [0.5, 1]]), np.array([[0, -0.5], [-0.5, 0]])
    return [
        _above(low, high, start, slope)
        for ends, start, slope in ((near_ends, near, slopes[0]), (apart_ends, apart, slopes[1]))
        for low, high in pairwise(ends)
    ]


def _above(low: float, high: float, start: Array, slope: Array) -> Gram:
    """A matrix that exceeds `start + s·slope` at s = `low` and at s = `high`, and so between them."""
    sizes, axes = np.linalg.eigh(slope * (high - low) / 2)
    matrix = start + slope * (low + high) / 2 + (axes * np.abs(sizes)) @ axes.T
    return float(matrix[0, 0]), float(matrix[1, 1]), float(matrix[0, 1])


def _losses(matrix: Gram, rate: float, mu: float, interval: float) -> tuple[LossDistribution, ...]:
    """The loss distributions of one round in both directions, for one triple with the Gram matrix μ²·`matrix`."""
    a, b, c = (mu**2 * one for one in matrix)
    return from_profile(
        (lambda epsilon: hockey_stick(epsilon, a, b, c, rate), lambda epsilon: hockey_stick(epsilon, b, a, c, rate)),
        interval,
        tail=_TAIL,
    )


def hockey_stick(epsilon: Array, a: float, b: float, c: float, rate: float) -> Array:
    """The hockey-stick divergence H(P‖Q) of one round, which is δ, at J values of ε ≥ 0: float [J].

    P = γ·N(x, 1) + (1 − γ)·N(y, 1) and Q = γ·N(x', 1) + (1 − γ)·N(y, 1), with γ = `rate`, |x − y|² = a, |x' − y|² = b >
    0, (x − y)·(x' − y) = c and c² < a·b. Put y at 0, and let u and v be the products of the noisy sum with x and with
    x'. P exceeds e^ε·Q where e^{u − a/2} exceeds e^{ε + v − b/2} + (e^ε − 1)(1 − γ)/γ. For each v this is a half-line
    of u, whose remaining standard deviation is √(a − c²/b). The mean over v is a sum over equidistant nodes, which
    converges exponentially.
    """
    e, side = np.minimum(np.asarray(epsilon, float), 300.0), sqrt(b)
    shift, left = c / side, sqrt(a - c * c / b)
    step = min(0.5 * min(1.0, left / (side + abs(shift))), 0.5 / side)
    z = np.arange(min(0.0, shift) - _WIDE, max(side, shift) + _WIDE, step)
    normal, at_x, at_other = (np.exp(-((z - mean) ** 2) / 2) * (step / sqrt(2 * pi)) for mean in (0.0, shift, side))
    weights = np.stack([rate * at_x, (1 - rate) * normal, rate * at_other, (1 - rate) * normal], axis=1)
    values, here = np.empty(e.size), np.exp(side * z - b / 2)
    for start in range(0, e.size, 512):
        some = e.ravel()[start : start + 512, None]
        outside = np.expm1(some) * ((1 - rate) / rate)
        cut = (a / 2 + np.log(np.exp(some) * here + outside) - shift * z) / left
        at_y = ndtr(-cut)
        p = ndtr(left - cut) @ weights[:, 0] + at_y @ weights[:, 1]
        values[start : start + 512] = p - np.exp(some[:, 0]) * (at_y @ (weights[:, 2] + weights[:, 3]))
    return np.clip(values, 0.0, 1.0).reshape(e.shape)


def _reach(one: LossDistribution, rounds: int, spread: float) -> float:
    """An ε that the summed losses of `rounds` rounds exceed with probability at most `_BEYOND`, by Chernoff's bound."""
    tilts = np.geomspace(0.05, 50, 40) / min(1.0, spread * sqrt(rounds))
    cumulants = np.array([logsumexp(one.log_masses + tilt * one.losses) for tilt in tilts])
    return float(np.min((rounds * cumulants - log(_BEYOND)) / tilts))


def _composed(steps: list[tuple[LossDistribution, ...]], rounds: int, interval: float, last: int) -> Array:
    """The largest δ of all rounds together at ε = 0, d, …, n·d, with d = `interval` and n = `last`: float [n + 1].

    The recursion runs on W(ε) = e^{−ε/2}·(H(e^ε) − max(1 − e^ε, 0)) for ε from −n·d to n·d, where H is the divergence
    in the module's docstring. If P and Q are exchanged, W is mirrored. The triples are closed under this exchange, so W
    is even, and half of the triples are enough.
    """
    width = max(int(np.rint(np.abs(one.losses).max() / interval)) for step in steps for one in step)
    nodes = np.arange(-last, last + 1)
    size = fft.next_fast_len(2 * (last + width) + 1, real=True)
    kernels, firsts = np.zeros((len(steps), size)), np.empty((len(steps), nodes.size))
    for at, (forward, backward) in enumerate(steps):
        half = np.maximum(_tilted(forward, width), _tilted(backward, width)[::-1])
        kernels[at, np.arange(-width, width + 1)] = half
        firsts[at, last:] = _own(forward, last)
        firsts[at, last::-1] = _own(backward, last)
    firsts *= np.exp(-0.5 * interval * np.abs(nodes))
    spectra = fft.rfft(kernels, axis=1)
    beyond = np.exp(-0.5 * interval * np.arange(1, width + 1))  # δ does not increase beyond the last node
    w = np.zeros(nodes.size)
    for _ in range(rounds):
        wide = np.zeros(size)
        wide[: 2 * (last + width) + 1] = np.concatenate([w[0] * beyond[::-1], w, w[-1] * beyond])
        after = fft.irfft(spectra * fft.rfft(wide), size, axis=1)[:, width : width + nodes.size]
        after += firsts
        most = after.max(0)
        w = np.maximum(most, most[::-1])
    alpha = np.exp(interval * np.arange(last + 1))
    # Both directions of a triple come from grids that dominate it: a kernel and its first term belong together.
    norms = sqrt(float(np.sum(wide**2))) * float(np.sqrt(np.sum(kernels**2, axis=1)).max())
    rounding = rounds * np.finfo(float).eps * (6 * log2(size) * norms + 10)
    return np.asarray(np.minimum.accumulate(np.minimum((w[last:] + rounding) * np.sqrt(alpha), 1.0)))


def _tilted(losses: LossDistribution, width: int) -> Array:
    # masses times e^{−loss/2} at the nodes −w to w, [2w + 1]
    masses = np.zeros(2 * width + 1)
    first = width + losses.lowest
    masses[first : first + losses.masses.size] = losses.masses * np.exp(-losses.losses / 2)
    return masses


def _own(losses: LossDistribution, last: int) -> Array:
    # δ of one round with these losses at the grid's nodes 0 to n, [n + 1]
    some = losses.losses > 0
    at = np.rint(losses.losses[some] / losses.interval).astype(int)
    mass = np.zeros(max(last, int(at[-1]) if at.size else 0) + 1)
    mass[at] = losses.masses[some]
    other = mass * np.exp(-losses.interval * np.arange(mass.size))
    more, less = np.cumsum(mass[::-1])[::-1], np.cumsum(other[::-1])[::-1]
    above = np.append(more[1:], 0.0) - np.exp(losses.interval * np.arange(mass.size)) * np.append(less[1:], 0.0)
    return np.asarray(np.maximum(above[: last + 1], 0.0) + losses.infinity)
