"""Fast composition of sampled releases on a coarse grid, for many runs at once, with or without the option `--fast`.

The privacy losses of one release are rounded to a few nodes (`truncated_losses`). Their Rényi curve, converted at the
best order, gives a first ε. Then the nodes are moved to a grid whose step is about the standard deviation of one
release's loss, and all rounds are composed by one FFT.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.renyi_composition import method_and_source
from privkit.accountants.bounds.step import Steps
from privkit.accountants.bounds.truncated_losses import OVERFLOW_SHIFT, Piece, TruncatedLosses, losses_of_runs
from privkit.shared.array import Array

_SPENT = 0.03  # part of δ that truncated losses may take
_LARGEST_EXPONENT = 600.0  # order times loss above which a moment would overflow
_STEPS, _CLOSE = 16, 1e-4
"""Most Newton steps to the best order, and the relative step size that ends them: ε is then 1e-8 above its minimum."""
_SHIFTS = 4096  # number of shifts that are computed at once, roughly; each array then has some megabytes
_CELLS = 2**15  # number of grid nodes that are computed at once; the system allocates larger arrays anew each time
_SEARCH, _FOUND = 25, 1e-7
"""Values of ln δ in one pass of the search for δ at ε, and the width of the interval at which the search ends."""
_LOG_SMALLEST = -650.0
_INTERVAL = 0.5
"""Largest distance of the grid's nodes, in standard deviations of one release's loss. At 0.75, ε is about 1% larger."""
_SMALLEST_GRID, _LARGEST_GRID = 512, 2**14
_BELOW = 6.0
"""The grid begins this many standard deviations below the tilted sum's mean. Mass below the grid is counted at the
grid's last nodes."""
_ABOVE = 4.5  # −ln of the share of δ that sums above the grid may take
_LOWER, _SMALLER = 6, 3.0
"""Most grids for one run, and the factor by which λ falls from one grid to the next, until a grid begins below ε."""
_LOG_NOTHING = -50.0  # ln of the size below which Fourier coefficients are left out; their sum is below the noise
_BLOCK = 16  # nodes of a grid that are summed together, to find the block with the smallest ε
_SMALLEST_DELTA = 1e-280  # δ below which a grid's probabilities would lose their digits
_NOISE = 1e-14  # rounding error of a node's probability for each round, in a transform of up to 2¹⁴ nodes


@dataclass(frozen=True, kw_only=True, eq=False)
class CoarseComposition(Bound):
    r"""The bound by composing the privacy losses of a run on a coarse grid. Losses above a cut count as infinite.

    A release has the laws P and Q for two neighbors, and the privacy loss ln(P/Q). Let p be the probability that any
    release has an infinite loss, L the sum of the finite losses, and K = ln E_P e^{λL} for some λ > 0.

    1. The moment K gives, at every ε, the bound

        δ ≤ p + λ^λ/(1 + λ)^{1+λ}·e^{K − λε}.

       We take the λ with the smallest ε, and use it in step 2.
    2. The losses are moved to a grid: the mass of each loss is divided between the two neighboring nodes, such that
       this mass is kept under P and under Q. P is tilted by e^{λL − K}, so that sums near ε are likely and keep their
       digits. Let P̃(l) be the tilted probability that the composed loss equals l, and t the last node of the grid.
       Then

        δ ≤ p + Σ_{ε < l ≤ t} (1 − e^{ε − l})·e^{K − λl}·P̃(l) + e^{K − λt}.

       The FFT treats the grid as a circle: probability beyond its ends is counted a second time inside, which can only
       enlarge δ.

    The answer is the smaller ε of the two bounds. Under Poisson sampling it is computed in both directions, and the
    larger one counts.

    Source: derived. Composition by FFT: Koskela, Jälkö and Honkela 2020; the two nodes: Doroshenko et al. 2022,
    Algorithm 1; the first bound: Canonne, Kamath and Steinke 2020, Proposition 12; the tail: Chernoff. Losses counted
    as infinite: for an event A, δ is at most P(A) plus the δ of P and Q restricted to the complement of A.
    """

    pieces: Sequence[Piece]  # groups of equal releases
    method: str
    source: str = "Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022; Zhu, Dong and Wang 2022, Theorem 11"
    exact: bool = False

    @property
    def batch(self) -> Hashable:
        return type(self)

    @classmethod
    def epsilons(cls, bounds: Sequence[Self], deltas: Array) -> list[Limit]:
        limits: list[Limit] = []
        shifts = np.cumsum([sum([piece.mu.size for piece in one.pieces]) for one in bounds])
        for part in np.split(np.arange(len(bounds)), np.flatnonzero(np.diff((shifts - 1) // _SHIFTS)) + 1):
            values = _epsilons([bounds[at].pieces for at in part.tolist()], deltas[part]).tolist()
            limits += [Limit(value=value) for value in values]
        return limits

    def epsilon(self, delta: float) -> Limit:
        return self.epsilons([self], np.array([delta]))[0]

    def log_delta(self, epsilon: float) -> Limit:
        low, high = _LOG_SMALLEST, 0.0
        while high - low > _FOUND:
            tried = np.linspace(low, high, _SEARCH + 2)[1:-1]
            values = _epsilons([self.pieces] * _SEARCH, np.exp(tried))
            enough = np.append(np.flatnonzero(values <= epsilon), _SEARCH)[0]
            low, high = (low, *tried)[enough], (*tried, high)[enough]
        return Limit(value=float(high))


def coarse_composition(steps: Steps) -> CoarseComposition | None:
    """The bound of a run by composition on a coarse grid.

    The result is None if a step cannot be written as pieces (groups of equal releases), if a shift is above 10 standard
    deviations of the noise, or if closed forms are as good for every step.

    Source: see `CoarseComposition`.
    """
    parts = [step.pieces(count) for step, count in steps]
    if None in parts or not any([step.gains for step, _ in steps]):
        return None
    pieces = [piece for part in parts for piece in part or ()]
    if not pieces or max([max(piece.mu.tolist()) for piece in pieces]) > OVERFLOW_SHIFT:
        return None
    method, _ = method_and_source(tuple([(step.how, "") for step, _ in steps]), "composition on a coarse grid")
    return CoarseComposition(pieces=pieces, method=method)


@dataclass(frozen=True, kw_only=True)
class _Runs:
    """R runs with S pieces (groups of equal releases) in all, in one direction: law P against Q, or Q against P."""

    losses: TruncatedLosses  # the losses of the pieces (groups of equal releases)
    rounds: Array  # [S] number of releases in each piece
    owner: NDArray[np.int_]  # [S] the run of each piece; pieces of one run are adjacent
    deltas: Array  # [R] δ of each run

    def total(self, values: Array) -> Array:
        """Sum `values` [S], the value of one round of each piece, over all rounds of each run: [R]."""
        return np.asarray(np.bincount(self.owner, self.rounds * values, minlength=self.deltas.size), float)

    def cumulants(self, tilt: Array) -> tuple[Array, Array, Array]:
        """Upper bounds on K = ln E_P e^{λL} at λ = `tilt` [R], where L is the sum of a run's finite losses, and the
        first two derivatives of K in λ: three arrays [R]."""
        value, first, second = (self.total(one) for one in self.losses.cumulants(tilt[self.owner]))
        return value, first, second

    @cached_property
    def variance(self) -> Array:
        """The variance of the sum of each run's finite losses under P, without a tilt: [R]."""
        return self.cumulants(np.zeros(self.deltas.size))[2]

    @cached_property
    def count(self) -> Array:
        """The number of rounds of each run, [R]."""
        return self.total(np.ones(self.rounds.size))

    @cached_property
    def infinite(self) -> Array:
        """The probability that any loss of a run is infinite, [R]."""
        return np.asarray(-np.expm1(self.total(np.log1p(-self.losses.infinite))))

    @cached_property
    def surprise(self) -> Array:
        """−ln of the part of δ that is left for finite losses, [R]; `inf` if nothing is left."""
        left = self.deltas - self.infinite
        return np.where(left > 0, -np.log(np.maximum(left, 1e-300)), inf)

    def chosen(self, runs: NDArray[np.bool_]) -> _Runs:
        if runs.all():
            return self
        pieces, number = runs[self.owner], np.cumsum(runs) - 1
        return _Runs(
            losses=self.losses.chosen(pieces),
            rounds=self.rounds[pieces],
            owner=number[self.owner[pieces]],
            deltas=self.deltas[runs],
        )

    def reverse(self) -> _Runs:
        return _Runs(losses=self.losses.reverse(), rounds=self.rounds, owner=self.owner, deltas=self.deltas)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a result NaN proves nothing
def _epsilons(runs: Sequence[Sequence[Piece]], deltas: Array) -> Array:
    """The smallest proven ε of each run at its own δ, [R]."""
    sizes = np.array([len(run) for run in runs])
    owner = np.repeat(np.arange(sizes.size), sizes)
    losses, rounds = losses_of_runs(runs, _SPENT * (deltas / sizes)[owner])
    forward = _Runs(losses=losses, rounds=rounds.astype(float), owner=owner, deltas=deltas)
    first, tilt = _by_moments(forward)
    found = _below(forward, tilt, first)
    poisson = np.array([any(one.poisson for one in run) for run in runs])
    if poisson.any():
        back, tilt = forward.chosen(poisson).reverse(), tilt[poisson]
        other = _converted(back, tilt)[0]
        larger = other > found[poisson]  # about half of the runs; only these runs need a grid in this direction
        other[larger] = _below(back.chosen(larger), tilt[larger], other[larger])
        found[poisson] = np.maximum(found[poisson], other)
    return np.where(np.isnan(found), inf, np.maximum(found, 0))


def _below(runs: _Runs, tilt: Array, first: Array) -> Array:
    """For each of R runs (histories of mechanisms), the smallest ε that composition on grids proves: float [R]. The
    proven ε in `first` is kept if it is smaller.

    If even the lowest ε of a grid is proven, a smaller tilt λ is tried, whose grid begins lower.
    """
    found, begins = _on_grids(runs, tilt, first)
    found = np.minimum(found, first)
    for power in range(1, _LOWER):
        if not (higher := (found <= begins) & (found > 0)).any():
            break
        again, low = _on_grids(runs.chosen(higher), tilt[higher] / _SMALLER**power, found[higher])
        found[higher], begins[higher] = np.minimum(found[higher], again), low
    return found


def _by_moments(runs: _Runs) -> tuple[Array, Array]:
    """The ε of each run by step 1 of `CoarseComposition`, and the λ that proves it: both [R]."""
    largest = np.zeros(runs.deltas.size)
    np.maximum.at(largest, runs.owner, runs.losses.largest)
    most = _LARGEST_EXPONENT / largest - 1
    tilt = np.clip(np.sqrt(2 * np.clip(-np.log(runs.deltas), 0.1, 700) / runs.variance), 1e-6, most)
    best, at = np.full(largest.size, inf), tilt.copy()
    limit, before, some = np.ones(largest.size), np.zeros(largest.size), np.arange(largest.size)
    for _ in range(_STEPS):
        values, change = _converted(runs, tilt)
        better = values < best[some]
        best[some[better]], at[some[better]] = values[better], tilt[better]
        limit = np.where(change * before < 0, limit / 2, limit)  # otherwise the steps for few rounds would oscillate
        if not (moves := np.abs(change) > _CLOSE).any():
            break
        before, limit, most, some = change[moves], limit[moves], most[moves], some[moves]
        tilt = np.clip(tilt[moves] * np.exp(np.clip(before, -limit, limit)), 1e-6, most)
        runs = runs.chosen(moves)
    return best, at


def _converted(runs: _Runs, tilt: Array) -> tuple[Array, Array]:
    """The ε of each run by step 1 of `CoarseComposition` at λ = `tilt`, and Newton's step of ln λ: both [R]."""
    value, first, second = runs.cumulants(tilt)
    slope = np.log(tilt) - np.log1p(tilt)
    numerator = value + runs.surprise + tilt * slope - np.log1p(tilt)
    return numerator / tilt, (numerator - tilt * (first + slope)) / (tilt**2 * second + tilt / (1 + tilt))


def _on_grids(runs: _Runs, tilt: Array, first: Array) -> tuple[Array, Array]:
    """The ε of each of R runs by composition on a grid, [R], and the first node of each grid, [R].

    `first` [R] holds the ε that are already proven. Each grid ends shortly above its run's ε. Grids of equal size are
    computed together.
    """
    _, mean, variance = runs.cumulants(tilt)
    spread = np.minimum(variance, runs.variance)
    low = np.maximum(mean - _BELOW * np.sqrt(variance), first - _LARGEST_EXPONENT / (1 + tilt))
    share = _ABOVE + 1 + np.log1p(tilt)  # step 1 gives δ ≈ e^{K − λε}/e(1 + λ); the tail is e^{−_ABOVE} times as much
    width = share / tilt + np.maximum(first - low, 0)
    nodes = np.exp2(np.ceil(np.log2(width / _INTERVAL) - np.log2(spread / runs.count) / 2))
    digits = np.isfinite(width) & (runs.deltas > _SMALLEST_DELTA)
    sizes = np.where(digits, np.clip(np.nan_to_num(nodes, nan=inf), _SMALLEST_GRID, _LARGEST_GRID), 0)
    found, begins = np.full(tilt.size, inf), np.full(tilt.size, -inf)
    for size in np.unique(sizes[sizes > 0]).astype(int).tolist():
        members = np.flatnonzero(sizes == size)
        for start in range(0, members.size, together := max(1, _CELLS // size)):
            some = np.zeros(tilt.size, bool)
            some[members[start : start + together]] = True
            interval = width[some] / (size - 1)
            found[some] = _on_grid(runs.chosen(some), tilt[some], first[some], low[some], interval, size)
            begins[some] = low[some] + interval
    return found, begins


def _on_grid(runs: _Runs, tilt: Array, center: Array, low: Array, interval: Array, size: int) -> Array:
    """The smallest ε of each of R runs that is proven on a grid of `size` nodes, [R]; infinite if no ε is proven.

    δ at a node is a sum over the nodes above it. Nodes are first summed in blocks. Only the block in which δ becomes
    too large is then summed node by node.
    """
    last = np.ceil(low / interval) + size - 1
    log_moment, tilted = _composed(runs, tilt, interval, last, size)
    scale, step = np.exp(log_moment - tilt * center)[:, None], interval[:, None]
    # Losses minus `center`, from the largest to the smallest: nothing overflows, and sums run forward.
    top = (last * interval - center)[:, None] - step * np.arange(0, size, _BLOCK)  # the first of each block
    left = (runs.deltas - runs.infinite)[:, None] - scale * np.exp(-tilt[:, None] * top[:, :1])
    blocks, powers = tilted.reshape(tilt.size, -1, _BLOCK), np.stack((tilt, 1 + tilt), 1)[:, :, None]
    sums = np.exp(powers * step[:, None] * np.arange(_BLOCK)) @ blocks.swapaxes(1, 2)
    sums *= scale[:, None] * np.exp(-powers * top[:, None])
    held, weighed = np.cumsum(sums, 2).swapaxes(0, 1)
    # δ at ε = l is the sum over all nodes above; between two nodes it is linear in e^ε.
    enough = held - np.exp(top - step * (_BLOCK - 1)) * weighed <= left
    row, block = np.arange(tilt.size), np.where(enough.all(1), size // _BLOCK - 1, enough.argmin(1))
    before = [np.where(block > 0, one[row, block - 1], 0)[:, None] for one in (held, weighed)]
    above = top[row, block, None] - step * np.arange(-1, _BLOCK)  # the node before the block, and its nodes
    mass, ratio = scale * blocks[row, block] * np.exp(-tilt[:, None] * above[:, 1:]), np.exp(above)
    held = np.cumsum(np.concatenate((before[0], mass), 1), 1)
    weighed = np.cumsum(np.concatenate((before[1], mass / ratio[:, 1:]), 1), 1)
    enough = held - ratio * weighed <= left
    proven, enough[:, 0] = (block > 0) | enough[:, 1], True
    at = np.where(enough.all(1), _BLOCK, enough.argmin(1) - 1)
    end, between = above[row, at], np.log((held[row, at] - left[:, 0]) / weighed[row, at])
    inside = np.where(at < _BLOCK, np.fmin(np.fmax(between, end - interval), end), end)
    return np.where(proven, center + inside, inf)


def _composed(runs: _Runs, tilt: Array, interval: Array, last: Array, size: int) -> tuple[Array, Array]:
    """K of each of R runs on its grid, [R], and upper bounds on the tilted probabilities of the nodes, from the node
    `last` downward, [R, size]. `CoarseComposition` explains K and the tilt.

    The grids are circles: a sum of l intervals is at the node l modulo `size`.
    """
    losses, rounds = runs.losses, runs.rounds
    each = np.repeat(np.arange(rounds.size), losses.sizes)  # [J] the piece of each shift
    step, order = interval[runs.owner][each, None], 1 + tilt[runs.owner][each, None]
    place = np.floor(losses.loss / step)
    upper = losses.mass * np.expm1(np.maximum(losses.loss - place * step, 0)) / np.expm1(step)
    weight = np.exp(order * step * place)  # under P, and tilted
    masses = (weight * np.maximum(losses.mass - upper, 0), weight * np.exp(order * step) * upper)
    first = min(int(place.min()), 0)
    count = min(max(int(place.max()), 0) - first + 2, size)  # nodes from `first` on that one release may reach
    cell = (each[:, None] * count + (place.astype(np.int64) - first) % count).ravel()
    lower, higher = (np.bincount(cell, one.ravel(), rounds.size * count).reshape(-1, count) for one in masses)
    grid = np.asarray(lower + np.roll(higher, 1, 1), float)
    grid[:, -first % count] += losses.without
    moment = grid.sum(1)
    spectrum = np.fft.rfft(grid / moment[:, None], size, axis=1)
    square = spectrum.real**2 + spectrum.imag**2
    heard = (square > np.exp(2 * _LOG_NOTHING / rounds)[:, None]).any(0)
    waves = 1 + int(np.flatnonzero(heard).max(initial=0))  # after many rounds, few are left
    starts = np.searchsorted(runs.owner, np.arange(last.size))
    parts = (np.log(square[:, :waves]) / 2, np.angle(spectrum[:, :waves]))
    sizes, turns = (np.add.reduceat(rounds[:, None] * one, starts, axis=0) for one in parts)
    begin = (last - first * runs.count) % size
    turned = turns + 2 * np.pi / size * (np.arange(waves) * begin[:, None] % size)
    power = np.exp(sizes - 1j * turned)  # conjugate: the order is from `last` downward
    tilted = np.fft.irfft(power, size, axis=1)
    noise = _NOISE * runs.count
    np.maximum(tilted, 0, out=tilted)
    tilted += noise[:, None]
    return runs.total(np.log(moment) + 2 * losses.error), tilted
