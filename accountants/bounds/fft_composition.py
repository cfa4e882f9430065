"""Composition of privacy losses by one FFT. An exponential tilt keeps the digits of a δ as small as 1e-30.

A bound on the errors of rounding and truncation is added to δ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, expm1, floor, inf, log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from privkit.accountants.bounds.loss_distribution import LARGEST_GRID, GridTooLarge, Parts, dot, moments
from privkit.accountants.search import narrowed
from privkit.shared.array import Array

_UNSEEN = 4e-261  # upper bound on what all masses below e^−600 can add to δ
_LOST = 1e-14  # tilted mass that may fall outside the window of a composition; it is added to δ
_SPARED = 7.0  # a smaller tilt has a shorter window; it may multiply what this mass adds to δ by e^7


@dataclass(frozen=True, kw_only=True)
class ComposedLosses:
    """The distribution of the sum of all privacy losses, inside a window of the grid. Mass outside the window is
    bounded, and the bound is added to δ."""

    interval: float  # distance of the nodes, in nats
    lowest: int  # the first node of the window is lowest·interval
    masses: Array  # [n] the composition's probabilities, no longer tilted
    above: Array  # [n] sums of the masses from each node on
    infinity: float  # probability of an infinite loss
    top: int  # the largest loss that is finite, in nodes
    tilt: float  # λ
    cumulant: float  # K = ln E e^{λ·loss}
    noise: float  # tilted mass that rounding and truncation may have moved
    rounding: float  # relative rounding error of the masses, which were raised by it

    def slack(self, epsilon: float) -> float:
        """Bound on the error of δ(ε) by rounding and by mass outside the window: noise·e^{K − λε} and a tiny rest."""
        return self.noise * exp(min(self.cumulant - self.tilt * epsilon, 700)) + _UNSEEN

    def plain(self, epsilon: float) -> float:
        """Σ mass·(1 − e^{ε − loss}) over the losses above ε inside the window."""
        first = max(0, floor(epsilon / self.interval) + 1 - self.lowest)
        if first >= self.masses.size:
            return 0.0
        gap = exp(max(epsilon - (self.lowest + first) * self.interval, -700))
        return max(0.0, float(self.above[first]) - min(gap, 1.0) * self.discounted(first))

    def discounted(self, first: int) -> float:
        """Σ mass·e^{ℓ − loss} over the window's nodes from number `first` on; ℓ is the loss of node `first`."""
        if self.masses.size * self.interval < 600:
            return float(self._discounted[first]) * exp(first * self.interval)
        size = min(self.masses.size - first, ceil(70 / self.interval) + 1)  # the factor is below 1e-30 from there on
        return dot(self.masses[first : first + size], np.exp(-self.interval * np.arange(size)))

    @cached_property
    def _discounted(self) -> Array:
        # Σ mass·e^{−loss} from each node on, the loss counted from the first node
        discount = np.exp(-self.interval * np.arange(self.masses.size))
        discount *= self.masses
        return np.cumsum(discount[::-1])[::-1]

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ at ε of the composition."""
        if epsilon >= self.top * self.interval:
            return min(1.0, self.infinity)
        return min(1.0, self.plain(epsilon) + self.infinity + self.slack(epsilon))

    def crossing(self, too_large: Callable[[float], bool]) -> int | None:
        """The first node ≥ 0 at which δ is not `too_large`, by bisection; None if it is too large at every loss."""
        low, high = max(self.lowest, 0) - 1, max(self.lowest + self.masses.size, 1)
        if too_large(high * self.interval):  # δ is below the transform's noise: try only the largest loss
            return None if too_large(max(self.top, high) * self.interval) else self.top
        return narrowed(lambda node: too_large(node * self.interval), low, high)[1]

    def epsilon(self, target: float) -> float:
        """The smallest ε ≥ 0 whose upper bound on δ is at most the target, solved between two nodes; `inf` if there is
        none."""
        node = self.crossing(lambda epsilon: self.delta(epsilon) > target)
        if node is None:
            return inf
        if node <= max(self.lowest, 0):
            return node * self.interval
        first, d = node - self.lowest, self.interval
        if first >= self.masses.size:
            return node * d
        above = float(self.above[first]) + self.infinity + self.slack((node - 1) * d) - target
        below = self.discounted(first)
        inside = log(above / below) if above > 0 and below > 0 else 0.0
        return node * d + min(max(inside, -d), 0.0)

    def lower_epsilon(self, target: float) -> float:
        """The ε of a node at which δ of the losses on the grid provably exceeds the target; −inf if there is none."""
        scale = (1 - self.rounding) ** 2
        node = self.crossing(lambda epsilon: self.plain(epsilon) * scale - self.slack(epsilon) > target)
        return -inf if node is None or node <= max(self.lowest, 0) else (node - 1) * self.interval


def compose(parts: Parts, *, delta: float | None = None, epsilon: float | None = None) -> ComposedLosses:
    """Compute the distribution of the sum of all privacy losses by FFT, inside a window near the answer.

    `parts` are pairs (loss distribution of one round, number of such rounds). The answer is the ε at a given `delta`,
    or the δ at a given `epsilon`; give exactly one of them. The masses are multiplied by e^{λ·loss} (tilted) with the λ
    that makes losses near the answer likely. λ is reduced if the window would start above the answer. `GridTooLarge` is
    raised if the window would have too many nodes.
    """
    tilt = _tilt(parts, delta, epsilon)
    composed = _tilted_composition(parts, tilt)
    target = 1.0 if delta is None else delta
    while composed.lowest > 0 and (
        composed.lowest * composed.interval > epsilon
        if epsilon is not None
        else composed.delta(composed.lowest * composed.interval) <= target
    ):
        if tilt < 1e-9:
            break
        tilt /= 4
        composed = _tilted_composition(parts, tilt)
    return composed


def _tilted_composition(parts: Parts, tilt: float) -> ComposedLosses:
    """Convolve all parts under a tilt, inside a window that holds nearly all of the tilted mass."""
    from scipy.fft import irfft, next_fast_len, rfft

    d = parts[0][0].interval
    rounds = sum(count for _, count in parts)
    cumulant = _cumulant(parts, tilt)
    low, high, tilted = _window(parts, tilt, cumulant)
    if high - low > LARGEST_GRID:
        raise GridTooLarge(high - low, d)
    size = next_fast_len(high - low + 1, real=True)
    transform = np.ones(size // 2 + 1, complex)
    for (_, count), masses in zip(parts, tilted, strict=True):
        folded = np.zeros(size * ceil(masses.size / size))
        folded[: masses.size] = masses
        transform *= spectrum_power(rfft(folded.reshape(-1, size).sum(0)), count)
    start = (low - sum(count * part.lowest for part, count in parts)) % size
    composed = np.roll(irfft(transform, size), -start)[: high - low + 1]
    losses = (low + np.arange(composed.size)) * d
    # Rounding moves at most this much in the 2-norm; the weights e^{−λ·loss} beyond ε sum up as a geometric series.
    weight = 1 / sqrt(max(-expm1(-2 * tilt * d), 1 / composed.size))
    rounding = (rounds + 30) * np.finfo(float).eps * sqrt(dot(composed, composed)) * weight
    each = 1e-11 + 1e-14 * rounds
    untilted = cumulant - tilt * losses
    unseen = untilted < -600  # below 1e-260: `_UNSEEN` bounds what they add to δ
    masses = np.maximum(composed, 0, out=composed)
    masses *= np.exp(np.clip(untilted, -600, 700, out=untilted), out=untilted)
    masses *= 1 + each
    masses[unseen] = 0.0
    return ComposedLosses(
        interval=d,
        lowest=low,
        masses=masses,
        above=np.cumsum(masses[::-1])[::-1],
        infinity=-expm1(sum(count * log1p(-min(part.infinity, 1 - 1e-16)) for part, count in parts)),
        top=sum(count * (part.lowest + part.masses.size - 1) for part, count in parts),
        tilt=tilt,
        cumulant=cumulant,
        noise=2 * _LOST + rounding,
        rounding=each,
    )


def _cumulant(parts: Parts, tilt: float) -> float:
    total = 0.0
    for part, count in parts:
        exponents = tilt * part.losses
        exponents += part.log_masses  # logarithms are added, since a mass may be tiny and its weight huge
        peak = float(exponents.max())
        exponents -= peak
        np.maximum(exponents, -300, out=exponents)  # results below 1e-308 cost a hundred times as much
        total += count * (peak + log(float(np.exp(exponents, out=exponents).sum())))
    return float(total)


def _tilt(parts: Parts, delta: float | None, epsilon: float | None) -> float:
    """Tilt λ > 0 that nearly minimizes the Chernoff bound, so that the tilted mass lies near the answer."""
    variance = sum(count * moments(part.masses, part.losses)[1] for part, count in parts)

    def weight(tilt: float) -> float:
        # ln of a bound on δ(0): E e^{λ·loss} times the least c ≥ (1 − e^{−y})/e^{λy} for all y > 0
        return _cumulant(parts, tilt) + tilt * log(tilt) - (1 + tilt) * log1p(tilt)

    surprise = 12.0 if delta is None else -log(delta)
    center = log(sqrt(2 * max(surprise, 1e-3) / max(variance, 1e-30)))
    sharpest = -log(parts[0][0].interval)  # a grid cannot separate losses closer than its interval
    ends = min(center, sharpest) - 8, min(center + 8, sharpest), 0.2
    if epsilon is None:
        tilt, answer = _smallest(lambda tilt: (weight(tilt) + surprise) / tilt, *ends)
    else:
        tilt, answer = _smallest(lambda tilt: weight(tilt) - tilt * epsilon, *ends)[0], epsilon
    allowed = weight(tilt) - tilt * answer + _SPARED
    less = [tilt / 1.5**n for n in range(1, 5)]
    return next((one * 1.5 for one in less if weight(one) - one * answer > allowed), less[-1])


def _smallest(function: Callable[[float], float], low: float, high: float, width: float) -> tuple[float, float]:
    """The minimizer and the minimum of a unimodal function, by golden section on the logarithm of its argument."""
    ratio = (sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(exp(left)), function(exp(right))
    while high - low > width:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(exp(right))
    return (exp(left), at_left) if at_left < at_right else (exp(right), at_right)


def spectrum_power(values: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Compute values^count by repeated squaring, for the Fourier transform of a probability distribution. numpy's
    general complex power is ten times slower.

    The largest modulus is 1, so powers below e^−650 change no digit. They are set to 0, since computing them as
    subnormal numbers would take a hundred times as long.
    """
    kept = ~(values.real**2 + values.imag**2 < exp(-1300 / count))  # after many rounds, few are kept
    square = values[kept]
    power = np.ones_like(square)
    while count:
        if count & 1:
            power *= square
        count >>= 1
        if count:
            square *= square
    powers = np.zeros_like(values)
    powers[kept] = power
    return powers


def _window(parts: Parts, tilt: float, cumulant: float) -> tuple[int, int, list[Array]]:
    """Choose a window of grid nodes with at most the probability `_LOST` of the tilted composition beyond each end.

    Returns its first and last node, and the masses of each part multiplied by e^{λ·loss}, λ = `tilt`, and scaled to sum
    1. `cumulant` is ln E e^{λ·loss} of the composition.
    """
    tilted, variance = [], 0.0
    for part, count in parts:
        exponents = tilt * part.losses + part.log_masses
        exponents -= exponents.max()
        masses = np.where(exponents > -600, np.exp(np.maximum(exponents, -600)), 0.0)
        tilted.append(masses / masses.sum())
        variance += count * moments(tilted[-1], part.losses)[1]
    scale, unlikely = log(sqrt(-2 * log(_LOST) / max(variance, 1e-30))), -log(_LOST)
    _, above = _smallest(lambda s: (_cumulant(parts, tilt + s) - cumulant + unlikely) / s, scale - 4, scale + 2, 0.2)
    _, below = _smallest(lambda s: (_cumulant(parts, tilt - s) - cumulant + unlikely) / s, scale - 6, scale + 4, 0.2)
    d = parts[0][0].interval
    lowest = sum(count * part.lowest for part, count in parts)
    highest = sum(count * (part.lowest + part.masses.size - 1) for part, count in parts)
    low, high = max(floor(-below / d), lowest), min(ceil(above / d), highest)
    return low, max(high, low), tilted
