"""Lower and upper bounds on ε of a composition, computed on a grid; Hoeffding's bound covers the rounding.

The code does not use privkit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, log, log1p, pi, sqrt

import numpy as np
from campaign_truth import NODES, WEIGHTS, Array, Part
from scipy.fft import irfft, rfft
from scipy.special import logsumexp, ndtr, ndtri_exp

LARGEST = 2**20
"""Largest number of nodes of a grid."""


class TooLarge(Exception):
    """A composition needs more than `LARGEST` nodes."""


# Composition ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds on the ε of one pair of datasets at one δ."""

    low: float
    high: float


def composed(parts: Sequence[Part], delta: float) -> Bounds:
    """Bounds on ε at δ of the composition of independent parts, for the given order of the two neighbors.

    The grid is made coarser if necessary.

    Raises:
        TooLarge: if even the coarsest grid needs more than `LARGEST` nodes.
    """
    for fineness in (0.01, 0.05, 0.25):
        try:
            return _composed(parts, delta, fineness)
        except TooLarge:
            continue
    raise TooLarge


def _composed(parts: Sequence[Part], delta: float, fineness: float) -> Bounds:
    """Bounds on ε at δ on a grid of interval d, which is proportional to `fineness`.

    The privacy loss of each of T releases is rounded to the grid. By Hoeffding's inequality, this changes their sum by
    more than T·E[error] + d·√(T·ln(1/δ₀)/2) with probability at most δ₀. So δ₀ = δ/1000 is added to δ for the lower
    bound, and subtracted for the upper bound.
    """
    kept = [one for one in parts if one.shift.max() > 0]
    if not kept:
        return Bounds(low=0.0, high=0.0)
    rounds = sum(one.rounds for one in kept)
    tail = max(delta * 1e-6 / rounds, 1e-300)
    wide = log(1000 / delta) / 2
    described = [_described(one, tail) for one in kept]
    spread = sqrt(sum(one.rounds * variance for one, (_, variance, _) in zip(kept, described, strict=True)))
    reach = max(high - low for _, _, (low, high) in described)
    d = max(fineness * spread / sqrt(rounds * wide), reach / 2**16, 24 * spread / LARGEST)
    grids = [_rounded(one, d, tail, *ends) for one, (_, _, ends) in zip(kept, described, strict=True)]
    error = sum(
        one.rounds * (_mean(masses, low * d, d) - mean)
        for one, (mean, _, _), (low, masses) in zip(kept, described, grids, strict=True)
    )
    hoeffding = d * sqrt(rounds * wide)
    counts = [one.rounds for one in kept]
    sums = _Sums(counts, grids, d, log(delta))
    lost = delta * 1e-3 + rounds * tail
    low = sums.epsilon(delta + lost, -1) - error - hoeffding - d
    return Bounds(low=max(0.0, low), high=max(0.0, sums.epsilon(delta - lost, 1) - error + hoeffding + d))


def _described(one: Part, tail: float) -> tuple[float, float, tuple[float, float]]:
    """Mean and variance of one release's privacy loss, and an interval with probability < `tail` beyond each end."""
    mean = square = 0.0
    for shift, weight in zip(one.shift.tolist(), one.weight.tolist(), strict=True):
        losses, chances = _outcomes(one, shift)
        mean += weight * float(chances @ losses)
        square += weight * float(chances @ losses**2)
    return mean, max(square - mean**2, 1e-300), _ends(one, tail)


def _outcomes(one: Part, shift: float) -> tuple[Array, Array]:
    """Values of the privacy loss for one coin's `shift`, and their probabilities, as nodes of a quadrature."""
    g = one.rate
    if one.law == "laplace":  # atoms at both ends, and a density e^{(ℓ − t)/2}/4 or e^{−(ℓ + t)/2}/4 between
        base = np.concatenate([[shift, -shift], shift * NODES])
        first = np.concatenate([[0.5, exp(-shift) / 2], shift * WEIGHTS * np.exp((shift * NODES - shift) / 2) / 4])
        second = np.concatenate([[exp(-shift) / 2, 0.5], shift * WEIGHTS * np.exp(-(shift * NODES + shift) / 2) / 4])
    else:
        step = min(0.01, 0.05 / max(shift, 1e-9))
        y = np.arange(-12.0, 12.0 + shift, step)
        if one.pair == "middle":
            chances = step * ((1 - g) * _density(y) + g * _density(y - shift / 2))
            return _middle_loss(shift, g, y), chances / chances.sum()
        base, first, second = shift * y - shift**2 / 2, step * _density(y - shift), step * _density(y)
    losses = np.logaddexp(log1p(-g) if g < 1 else -inf, log(g) + base)
    chances = second if one.pair == "down" else (1 - g) * second + g * first
    return (-losses if one.pair == "down" else losses), chances / chances.sum()


def _density(y: Array) -> Array:
    return np.exp(-y * y / 2) / sqrt(2 * pi)


def _rounded(one: Part, d: float, tail: float, low: float, high: float) -> tuple[int, Array]:
    """The loss rounded to the nearest node: index of the first node, and the probability of each node."""
    first, last = round(low / d) - 1, round(high / d) + 1
    return first, _masses(one, (np.arange(first, last + 2) - 0.5) * d)


def _mean(masses: Array, start: float, d: float) -> float:
    return start + d * float(masses @ np.arange(masses.size) / masses.sum())


def _masses(one: Part, edges: Array) -> Array:
    """[n] Probability of a loss in (edge, next edge], as a difference of the smaller tails."""
    masses = np.zeros(edges.size - 1)
    for shift, weight in zip(one.shift.tolist(), one.weight.tolist(), strict=True):
        if shift > 0:
            below, above = _tails(one, shift, edges)
            masses += weight * np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
        else:
            masses += weight * ((edges[:-1] < 0) & (edges[1:] >= 0))
    return np.maximum(masses, 0.0)


def _tails(one: Part, shift: float, loss: Array) -> tuple[Array, Array]:
    """P(L ≤ loss) and P(L > loss) for the privacy loss L at one coin's `shift`, under the first dataset."""
    g = one.rate
    if one.pair == "middle":
        y = _middle_inverse(shift, g, loss)
        return (1 - g) * ndtr(y) + g * ndtr(y - shift / 2), (1 - g) * ndtr(-y) + g * ndtr(shift / 2 - y)
    sign = -1.0 if one.pair == "down" else 1.0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inner = np.expm1(sign * loss) / g
        base = np.where(inner > -1, np.where(sign * loss > 30, sign * loss - log(g), np.log1p(inner)), -inf)
    first, second = _base_tails(one.law, shift, base)
    if one.pair == "down":  # under the dataset without the record, where the loss falls as `base` grows
        return second[1], second[0]
    return (1 - g) * second[0] + g * first[0], (1 - g) * second[1] + g * first[1]


def _base_tails(law: str, shift: float, loss: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """P(L ≤ loss) and P(L > loss) for the loss L without sampling, under each of the two datasets."""
    if law == "gaussian":
        up, down = loss / shift - shift / 2, loss / shift + shift / 2
        return (ndtr(up), ndtr(-up)), (ndtr(down), ndtr(-down))
    inside = np.clip(loss, -shift, shift)
    first = np.where(loss < -shift, 0.0, np.where(loss >= shift, 1.0, np.exp((inside - shift) / 2) / 2))
    second = np.where(loss < -shift, 0.0, np.where(loss >= shift, 1.0, 1 - np.exp(-(inside + shift) / 2) / 2))
    upper = np.where(loss >= shift, 0.0, np.where(loss < -shift, 1.0, np.exp(-(inside + shift) / 2) / 2))
    return (first, 1 - first), (second, upper)


def _middle_loss(shift: float, g: float, y: Array) -> Array:
    with np.errstate(divide="ignore"):
        none = np.log1p(-g)
    up = np.logaddexp(none, log(g) + shift * y / 2 - shift**2 / 8)
    return up - np.logaddexp(none, log(g) - shift * y / 2 - shift**2 / 8)


def _middle_inverse(shift: float, g: float, loss: Array) -> Array:
    """The output at which the pair "middle" has this privacy loss, which grows with the output."""
    y = np.linspace(-45 - shift / 2, 45 + shift / 2, 60_001)
    return np.interp(loss, _middle_loss(shift, g, y), y, left=-inf, right=inf)


def _ends(one: Part, tail: float) -> tuple[float, float]:
    """Interval of the privacy loss with probability < `tail` beyond each end."""
    g, top = one.rate, float(one.shift.max())
    if one.law == "laplace":
        base = (-top, top)
    else:
        r = -float(ndtri_exp(log(tail)))
        if one.pair == "middle":
            ends = _middle_loss(top, g, np.array([-r, top / 2 + r]))
            return float(ends[0]), float(ends[1])
        base = (min(-top * top / 2 - r * top, -r * top), top * top / 2 + r * top)
    low, high = (float(np.logaddexp(log1p(-g) if g < 1 else -inf, log(g) + end)) for end in base)
    return (-high, -low) if one.pair == "down" else (low, high)


class _Sums:
    """Distribution of the sum of all rounded losses, tilted towards the wanted δ, by one Fourier transform."""

    def __init__(self, counts: list[int], grids: list[tuple[int, Array]], d: float, log_delta: float) -> None:
        self.d, self.counts, self.grids = d, counts, grids
        self.coarse = [_blocks(low, masses, d) for low, masses in grids]
        self.tilt = self._saddle(log_delta)
        _, self.mean, variance = self._moments(self.tilt)
        self.deviation = sqrt(variance)
        low, high = self._window()
        size = 1 << ceil(log(high - low + 1) / log(2))
        transform = np.ones(size // 2 + 1, complex)
        self.cumulant = 0.0
        for count, (first, masses) in zip(counts, grids, strict=True):
            with np.errstate(divide="ignore"):
                exponent = np.log(masses) + self.tilt * (first + np.arange(masses.size)) * d
            total = float(logsumexp(exponent))
            self.cumulant += count * total
            tilted = np.exp(exponent - total)
            folded = np.zeros(size * ceil(masses.size / size))
            folded[: masses.size] = tilted
            transform *= np.power(rfft(folded.reshape(-1, size).sum(0)), float(count))
        start = (low - sum(count * first for count, (first, _) in zip(counts, grids, strict=True))) % size
        self.sums = np.maximum(np.roll(irfft(transform, size), -start)[: high - low + 1], 0.0)
        self.at = (low + np.arange(self.sums.size)) * d
        self.rounding = (sum(counts) + 30) * 2.3e-16 * sqrt(np.sum(self.sums**2))

    def _moments(self, tilt: float) -> tuple[float, float, float]:
        """Cumulant of all rounds under a tilt, and mean and variance of the tilted sum."""
        cumulant = mean = variance = 0.0
        for count, (losses, logs) in zip(self.counts, self.coarse, strict=True):
            exponent = logs + tilt * losses
            peak = exponent.max()
            weight = np.exp(exponent - peak)
            total = weight.sum()
            one = float(weight @ losses / total)
            cumulant += count * (peak + log(total))
            mean += count * one
            variance += count * float(weight @ (losses - one) ** 2 / total)
        return cumulant, mean, variance

    def _saddle(self, log_delta: float) -> float:
        """Tilt λ at which λ·K′(λ) − K(λ) = ln(1/δ) for the cumulant K, by bisection of ln λ."""
        low, high = -25.0, log(0.3 / self.d)  # a larger tilt looks inside one interval of the grid
        for _ in range(40):
            middle = (low + high) / 2
            cumulant, mean, _ = self._moments(exp(middle))
            low, high = (middle, high) if exp(middle) * mean - cumulant < -log_delta else (low, middle)
        return exp(low)

    def _window(self) -> tuple[int, int]:
        """First and last node, beyond which the tilted sum has a probability below 1e-15 by Chernoff's bound."""
        around = self._moments(self.tilt)[0]
        least = sum(count * low for count, (low, _) in zip(self.counts, self.grids, strict=True))
        most = sum(
            count * (low + masses.size - 1) for count, (low, masses) in zip(self.counts, self.grids, strict=True)
        )
        ends = []
        for side in (-1.0, 1.0):
            best = inf
            for step in np.geomspace(0.05, 40, 28) / max(self.deviation, 1e-12):
                cumulant = self._moments(self.tilt + side * step)[0]
                best = min(best, (cumulant - around + 36) / step)
            ends.append(side * best)
        low, high = max(ceil(ends[0] / self.d) - 1, least), min(ceil(ends[1] / self.d) + 1, most)
        if high - low > LARGEST:
            raise TooLarge
        return low, high

    def log_delta(self, node: int, side: int) -> float:
        """Lower (`side` −1) or upper (+1) bound on ln δ at a node, in view of the transform's rounding errors."""
        beyond = slice(node + 1, None)
        gap = self.at[beyond] - self.at[node]
        weight = np.exp(-self.tilt * gap) * -np.expm1(-gap)
        noise = 2e-15 + self.rounding * sqrt(np.sum(weight**2))  # Cauchy and Schwarz
        value = float(np.sum(self.sums[beyond] * weight)) + side * noise
        return self.cumulant - self.tilt * float(self.at[node]) + log(value) if value > 0 else -inf

    def epsilon(self, delta: float, side: int) -> float:
        """ε of a node at which δ is still larger than `delta` (`side` −1), or no longer larger (+1)."""
        if not 0 < delta < 1:
            return -inf if side < 0 else inf
        target, low, high = log(delta), -1, self.at.size - 1
        for deviations in (6, 4, 3, 2, 1, 0.5, 0):  # further left, rounding errors dominate
            low = min(max(0, round((self.mean - deviations * self.deviation - self.at[0]) / self.d)), high)
            if self.log_delta(low, side) > target:
                break
        else:
            return -inf if side < 0 else float(self.at[low])
        if self.log_delta(high, side) > target:  # δ is smaller than the rounding errors
            return float(self.at[low]) if side < 0 else inf
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.log_delta(middle, side) > target else (low, middle)
        return float(self.at[low if side < 0 else high])


def _blocks(first: int, masses: Array, d: float) -> tuple[Array, Array]:
    """Mean loss and log probability of at most 4,096 blocks of nodes, which determine tilt and window."""
    width = ceil(masses.size / 4096)
    padded = np.zeros(width * ceil(masses.size / width))
    padded[: masses.size] = masses
    rows = padded.reshape(-1, width)
    total = rows.sum(1)
    losses = (first + np.arange(padded.size)).reshape(-1, width) * d
    keep = total > 0
    return (rows[keep] * losses[keep]).sum(1) / total[keep], np.log(total[keep])
