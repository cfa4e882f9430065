"""Tight composition: privacy loss distributions on a grid, made from privacy profiles, composed by one FFT.

Upper bounds come from connecting the dots of a profile, which is convex in e^ε: the grid's pair of distributions is
worse than the mechanism's. The lower bound takes back what the grid can have added. Composition works on exponentially
tilted distributions, so that a δ of 1e-30 keeps its digits, and a bound on rounding and truncation is added to δ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1, floor, inf, log, log1p, sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr

from privkit.accountants import gaussian, subsampling, validate

Array = NDArray[np.float64]
Profile: TypeAlias = Callable[[Array], Array]
"""δ at an array of ε ≥ 0; decreasing, and convex in e^ε."""
Pair: TypeAlias = tuple[Profile, Profile]
"""Profiles of the two directions, H(P‖Q) and H(Q‖P); together they hold δ(−ε) = 1 − e^{−ε} + e^{−ε}·δ_reverse(ε)."""

LARGEST_GRID = 20_000_000
"""Nodes above which a grid is refused."""

LOST = 1e-14
"""Tilted mass that may fall outside the window of a composition; it is added to δ."""


class GridTooLarge(ValueError):
    """The grid would have too many nodes."""

    def __init__(self, nodes: float, interval: float) -> None:
        super().__init__(f"a grid of {nodes:.3g} nodes at interval {interval:g} is too large: choose a larger interval")
        self.nodes = nodes


@dataclass(frozen=True, kw_only=True)
class LossDistribution:
    """Distribution of the privacy loss ln(P/Q) under P on a grid, at least as bad as the mechanism's.

    Attributes:
        interval: distance of the nodes, in nats.
        lowest: the first node is lowest·interval.
        masses: [n] probabilities of the nodes.
        infinity: probability of an infinite loss.
        raised: bound on the probability of losses below the first node, which were moved up to it.
    """

    interval: float
    lowest: int
    masses: Array
    infinity: float
    raised: float = 0.0

    @property
    def losses(self) -> Array:
        """[n] the nodes."""
        return np.arange(self.lowest, self.lowest + self.masses.size, dtype=np.float64) * self.interval


Parts: TypeAlias = list[tuple[LossDistribution, int]]
"""Distributions of one direction, and how often each is composed."""


def from_profile(profile: Profile | Pair, interval: float, *, tail: float = 1e-20) -> tuple[LossDistribution, ...]:
    """Loss distributions of a mechanism by connecting the dots of its privacy profile: valid upper bounds.

    Args:
        profile: δ(ε ≥ 0), vectorised, where both directions are alike (replace-one); else the profiles of both.
        interval: distance of the grid's nodes, > 0. Its error in the composed ε is about T·interval²/12.
        tail: the grid ends where δ falls below; what lies beyond counts as infinite loss.

    Returns:
        One distribution, or two where two profiles were given; both are to be composed, and the larger δ holds.

    Raises:
        ValueError: if the profile leaves [0, 1] or increases, or (`GridTooLarge`) the grid has above 2·10⁷ nodes.

    Source: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, Algorithm 1.

    >>> found, = from_profile(lambda e: gaussian.delta(e, 1.0), 0.01)
    >>> bool(abs(found.masses.sum() + found.infinity - 1) < 1e-12)
    True
    """
    d = validate.real("interval", interval, above=0)
    pair = profile if isinstance(profile, tuple) else (profile, profile)
    symmetric = pair[0] is pair[1]
    values = [_sampled(one, d, tail) for one in (pair[:1] if symmetric else pair)]
    forward, backward = values[0], values[-1]
    down, up = _masses(backward, d), _masses(forward, d)
    variation = max(forward[0], backward[0])
    middle = 1 - variation - (max(forward[0] - forward[1], 0.0) + max(backward[0] - backward[1], 0.0)) / expm1(d)
    middle = max(middle, 0.0)
    found = [_joined(backward, down, middle, up, forward[-1], d, tail)]
    if not symmetric:
        found.append(_joined(forward, up, middle, down, backward[-1], d, tail))
    return tuple(found)


def composed_epsilon(profile: Profile | Pair, rounds: int, delta: float, interval: float | None = None) -> float:
    """ε of T rounds of one mechanism at δ: an upper bound, tight up to the grid.

    Args:
        profile: of one round, as in `from_profile`.
        rounds: T ≥ 1; 10⁶ is fine.
        delta: in (0, 1).
        interval: of the grid; chosen from the spread of one round's loss where it is not given.

    Raises:
        ValueError: if an argument is out of range, or the grid would be too large.

    Source: Koskela, Jälkö and Honkela 2020 (composition by FFT); Doroshenko et al. 2022 (the grid).

    >>> round(composed_epsilon(without_replacement_gaussian(0.2, 1.0), 100, 1e-5, 1e-3), 3)
    16.099
    """
    return composed_bounds([(profile, rounds)], delta, interval)[1]


def composed_delta(profile: Profile | Pair, rounds: int, epsilon: float, interval: float | None = None) -> float:
    """δ of T rounds of one mechanism at ε: an upper bound, tight up to the grid.

    Args:
        profile: of one round, as in `from_profile`.
        rounds: T ≥ 1.
        epsilon: ε ≥ 0.
        interval: of the grid.

    Raises:
        ValueError: if an argument is out of range.

    Source: as `composed_epsilon`. Below about T·1e-40 the result is the truncated tail, not the mechanism's δ.

    >>> round(composed_delta(lambda e: gaussian.delta(e, 0.1), 100, 1.0, 1e-3), 5)
    0.12694
    """
    e = validate.real("epsilon", epsilon, least=0)
    steps = [(profile, validate.whole("rounds", rounds))]
    return float(max(composed.delta(e) for _, composed in _compositions(steps, 1e-40, interval, epsilon=e)))


def composed_bounds(
    steps: Sequence[tuple[Profile | Pair, int]], delta: float, interval: float | None = None
) -> tuple[float, float]:
    """Lower and upper bound on ε of a history of mechanisms, each with its own number of rounds.

    Args:
        steps: (profile, rounds), at least one.
        delta: in (0, 1).
        interval: of the grid.

    Returns:
        A lower bound, proven where one pair of neighbors attains every profile in both directions (sampling without
        replacement does not: its pair has the profiles of `poisson_gaussian`), and
        an upper bound that needs no such thing. They are about interval·√(8T) apart.

    Raises:
        ValueError: if an argument is out of range, or the grid would be too large.

    Source: upper: Doroshenko et al. 2022. Lower: derived. Given the true losses, the grid's are independent, within one
    interval of them, and by at most b = d/(1−e^{−d}) − 1 − ln(d/(1−e^{−d})) ≈ d²/8 too large on average; by Hoeffding's
    inequality their sum exceeds the true one by T·b + d·√(T·ln(1/δ₀)/2) with probability at most δ₀ = δ/1000.

    >>> low, high = composed_bounds([(lambda e: gaussian.delta(e, 0.1), 100)], 1e-5, 1e-4)
    >>> low < 4.377178 < high
    True
    """
    target = validate.delta(delta)
    if not steps:
        raise ValueError("steps must hold at least one mechanism, got none")
    checked = [(profile, validate.whole("rounds", rounds)) for profile, rounds in steps]
    total = sum(rounds for _, rounds in checked)
    tail = max(target * 1e-8 / total, 1e-290)
    bounds = []
    for parts, composed in _compositions(checked, tail, interval, delta=target):
        d = composed.interval
        ratio = d / -expm1(-d)
        shift = total * (ratio - 1 - log(ratio)) + d * sqrt(total * log(1000 / target) / 2)
        lost = target / 1000 + sum(rounds * part.raised for part, rounds in parts)
        bounds.append((max(0.0, composed.lower_epsilon(target + lost) - shift), composed.epsilon(target)))
    return float(max(low for low, _ in bounds)), float(max(high for _, high in bounds))


def without_replacement_gaussian(rate: float, mu: float) -> Profile:
    """One Gaussian release from k of n clients, replace-one: the tight profile (W).

    Args:
        rate: γ = k/n in [0, 1].
        mu: L2 sensitivity under replace-one over the noise's standard deviation, ≥ 0.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9; Balle and Wang 2018, Theorem 8.

    >>> float(without_replacement_gaussian(0.2, 1.0)(np.array(0.0)).round(6))
    0.076585
    """
    g, base = validate.real("rate", rate, least=0, most=1), gaussian_profile(mu)
    return lambda epsilon: subsampling.without_replacement_delta(epsilon, g, base)


def poisson_gaussian(rate: float, mu: float) -> Pair:
    """One Poisson-sampled Gaussian release, add or remove one: the profiles of both directions.

    Args:
        rate: q in [0, 1].
        mu: L2 sensitivity under add-or-remove over the noise's standard deviation, ≥ 0.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 8.

    >>> round(composed_epsilon(poisson_gaussian(0.01, 1.0), 1000, 1e-5, 1e-3), 3)
    1.829
    """
    q, base = validate.real("rate", rate, least=0, most=1), gaussian_profile(mu)
    return (
        lambda epsilon: subsampling.poisson_removed_delta(epsilon, q, base),
        lambda epsilon: subsampling.poisson_added_delta(epsilon, q, base),
    )


def poisson_gaussian_replace_one(rate: float, mu: float) -> Profile:
    """One Poisson-sampled Gaussian release, replace-one: (1−q)N(0,1) + qN(±μ,1) against each other.

    Args:
        rate: q in [0, 1].
        mu: the bound on one record's norm (not the distance of two) over the noise's standard deviation, ≥ 0.

    Source: derived: the worst replacement is the opposite vector; the likelihood ratio increases along it.

    >>> round(composed_epsilon(poisson_gaussian_replace_one(0.01, 1.0), 1000, 1e-5, 1e-3), 2)
    2.84
    """
    q, m = validate.real("rate", rate, least=0, most=1), validate.real("mu", mu, least=0)
    weights = np.array([1 - q, q])
    return _threshold_profile(np.array([0.0, m]), weights, np.array([0.0, -m]), weights)


def hidden_mixture(shifts: Sequence[float], weights: Sequence[float]) -> Pair:
    """Σ w_i N(m_i, 1) against N(0, 1): a random ratio that nobody is told, zero background. Both directions.

    Args:
        shifts: m_i ≥ 0 in standard deviations of the noise.
        weights: w_i ≥ 0, which sum to 1.

    Source: definition; the likelihood ratio increases in the output, so the worst event is a half line.

    >>> round(composed_epsilon(hidden_mixture([0.3, 0.7], [0.5, 0.5]), 10, 1e-5, 1e-3), 3)
    7.972
    """
    m, w = subsampling.mixture(shifts, weights)
    zero, one = np.zeros(1), np.ones(1)
    return _threshold_profile(m, w, zero, one), _threshold_profile(zero, one, -m, w)


def released_mixture(mus: Sequence[float], weights: Sequence[float]) -> Profile:
    """A Gaussian release whose random ratio is told with it: the mean of the profiles.

    Args:
        mus: μ_i ≥ 0 at each ratio; nodes of a quadrature for a continuous law.
        weights: their probabilities, which sum to 1.

    Source: derived: the ratio is independent of the data, so the loss is that of the pair (ratio, output).

    >>> round(composed_epsilon(released_mixture([0.3, 0.7], [0.5, 0.5]), 100, 1e-5, 1e-3), 2)
    37.83
    """
    m, w = subsampling.mixture(mus, weights)
    scale = float(w.sum())

    def delta(epsilon: Array) -> Array:
        found = np.zeros_like(epsilon, dtype=float)
        for mu, weight in zip(m.tolist(), (w / scale).tolist(), strict=True):
            found += weight * np.exp(gaussian.log_delta(epsilon, mu))
        return np.minimum(found, 1.0)

    return delta


def laplace(shift: float) -> Profile:
    """One Laplace variable: 1 − e^{(ε−t)/2} up to ε = t.

    Args:
        shift: t, sensitivity over the scale b, ≥ 0.

    Source: derived from the hockey-stick integral.

    >>> float(laplace(1.0)(np.array(0.0)).round(4))
    0.3935
    """
    t = validate.real("shift", shift, least=0)
    return lambda epsilon: -np.expm1(np.minimum(epsilon - t, 0) / 2)


def gaussian_profile(mu: float) -> Profile:
    """One Gaussian release.

    Source: Balle and Wang 2018, Theorem 8.

    >>> float(gaussian_profile(1.0)(np.array(1.0)).round(6))
    0.126937
    """
    m = validate.real("mu", mu, least=0)
    return lambda epsilon: np.exp(gaussian.log_delta(epsilon, m))


@dataclass(frozen=True, kw_only=True)
class _Composed:
    """Composed losses inside a window that holds all but a bounded part of the tilted mass."""

    interval: float
    lowest: int
    masses: Array  # of the composition itself, no longer tilted
    above: Array  # sums of the masses from each node on
    discount: Array  # e^{−d·i}
    infinity: float
    top: int  # the largest loss that is finite, in nodes
    tilt: float
    cumulant: float
    noise: float  # tilted mass that rounding and truncation may have moved
    rounding: float  # relative, of all masses together; added to them

    def slack(self, epsilon: float) -> float:
        """What that mass can change in δ(ε): nothing beyond ε weighs more than e^{K − λε}."""
        return self.noise * exp(min(self.cumulant - self.tilt * epsilon, 700))

    def plain(self, epsilon: float) -> float:
        """Σ (1 − e^{ε − loss}) over larger losses inside the window."""
        first = max(0, floor(epsilon / self.interval) + 1 - self.lowest)
        if first >= self.masses.size:
            return 0.0
        gap = exp(max(epsilon - (self.lowest + first) * self.interval, -700))
        return max(0.0, float(self.above[first]) - min(gap, 1.0) * self.discounted(first))

    def discounted(self, first: int) -> float:
        """Σ e^{first − loss} over nodes from `first` on, cut where the factor is below 1e-30."""
        size = min(self.masses.size - first, self.discount.size)
        return _dot(self.masses[first : first + size], self.discount[:size])

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ(ε)."""
        if epsilon >= self.top * self.interval:
            return min(1.0, self.infinity)
        return min(1.0, self.plain(epsilon) + self.infinity + self.slack(epsilon))

    def crossing(self, too_large: Callable[[float], bool]) -> int | None:
        """First node ≥ 0 of the window where δ is not too large, by bisection; None where it always is."""
        low, high = max(self.lowest, 0) - 1, max(self.lowest + self.masses.size, 1)
        if too_large(high * self.interval):  # a δ below the noise of the transform: only the largest loss is left
            return None if too_large(max(self.top, high) * self.interval) else self.top
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if too_large(middle * self.interval) else (low, middle)
        return high

    def epsilon(self, target: float) -> float:
        """Smallest ε ≥ 0 whose upper bound on δ is at most the target; solved inside the last cell."""
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
        """A node where δ of the grid's distribution surely exceeds the target; −inf where none is found."""
        scale = (1 - self.rounding) ** 2
        node = self.crossing(lambda epsilon: self.plain(epsilon) * scale - self.slack(epsilon) > target)
        return -inf if node is None or node <= max(self.lowest, 0) else (node - 1) * self.interval


def _compositions(
    steps: Sequence[tuple[Profile | Pair, int]], tail: float, interval: float | None, **target: float
) -> list[tuple[Parts, _Composed]]:
    """Either direction's parts and their composition; a grid that was not asked for is made coarser until it fits."""
    d = _interval(steps, tail, interval)
    for _ in range(5):
        try:
            return [(parts, _compose(parts, **target)) for parts in _directions(steps, d, tail)]
        except GridTooLarge as refused:
            if interval is not None or d > 1:
                raise
            d *= max(2.0, refused.nodes / 2**21)
    raise GridTooLarge(float("inf"), d)


def _compose(parts: Parts, *, delta: float | None = None, epsilon: float | None = None) -> _Composed:
    """Convolve all parts, tilted to where δ or ε lies; less where the window would start beyond the answer."""
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


def _tilted_composition(parts: Parts, tilt: float) -> _Composed:
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
        transform *= _power(rfft(folded.reshape(-1, size).sum(0)), count)
    start = (low - sum(count * part.lowest for part, count in parts)) % size
    composed = np.roll(irfft(transform, size), -start)[: high - low + 1]
    losses = (low + np.arange(composed.size)) * d
    # Rounding moves at most this much in the 2-norm; the weights e^{−λ·loss} beyond ε sum up as a geometric series.
    weight = 1 / sqrt(max(-expm1(-2 * tilt * d), 1 / composed.size))
    rounding = (rounds + 30) * np.finfo(float).eps * sqrt(_dot(composed, composed)) * weight
    each = 1e-11 + 1e-14 * rounds
    masses = np.maximum(composed, 0) * np.exp(np.clip(cumulant - tilt * losses, -600, 700)) * (1 + each)
    return _Composed(
        interval=d,
        lowest=low,
        masses=masses,
        above=np.cumsum(masses[::-1])[::-1],
        discount=np.exp(-d * np.arange(min(masses.size, ceil(70 / d) + 1))),
        infinity=-expm1(sum(count * log1p(-min(part.infinity, 1 - 1e-16)) for part, count in parts)),
        top=sum(count * (part.lowest + part.masses.size - 1) for part, count in parts),
        tilt=tilt,
        cumulant=cumulant,
        noise=2 * LOST + rounding,
        rounding=each,
    )


def _cumulant(parts: Parts, tilt: float) -> float:
    """Σ_k T_k·ln E e^{λ·loss_k}."""
    total = 0.0
    for part, count in parts:
        exponents = tilt * part.losses
        peak = max(exponents[0], exponents[-1])
        np.maximum(exponents - peak, -300, out=exponents)  # results below 1e-308 cost a hundred times as much
        total += count * (peak + log(_dot(part.masses, np.exp(exponents, out=exponents))))
    return float(total)


def _tilt(parts: Parts, delta: float | None, epsilon: float | None) -> float:
    """Tilt λ > 0 that makes Chernoff's bound at the target smallest, to a few percent."""
    variance = sum(count * _moments(part.masses, part.losses)[1] for part, count in parts)
    # ln of the smallest c with 1 − e^{−y} ≤ c·e^{λy} for all y > 0: the tilted mass lies where it matters for δ.
    largest = lambda tilt: tilt * log(tilt) - (1 + tilt) * log1p(tilt)  # noqa: E731
    if delta is not None:
        surprise = -log(delta)

        def bound(tilt: float) -> float:
            return (_cumulant(parts, tilt) + largest(tilt) + surprise) / tilt
    else:
        assert epsilon is not None
        surprise = 12.0

        def bound(tilt: float) -> float:
            return _cumulant(parts, tilt) + largest(tilt) - tilt * epsilon

    center = log(sqrt(2 * max(surprise, 1e-3) / max(variance, 1e-30)))
    sharpest = -log(parts[0][0].interval)  # what differs by less than the interval is not told apart
    return _smallest(bound, min(center, sharpest) - 8, min(center + 8, sharpest), 0.05)[0]


def _smallest(function: Callable[[float], float], low: float, high: float, width: float) -> tuple[float, float]:
    """Where a function with one valley is smallest, and that value: golden section on the logarithm of its argument."""
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


def _power(values: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """values^count by squaring; numpy's general complex power is ten times slower."""
    found, square = np.ones_like(values), values.copy()
    while count:
        if count & 1:
            found *= square
        count >>= 1
        if count:
            square *= square
    return found


def _window(parts: Parts, tilt: float, cumulant: float) -> tuple[int, int, list[Array]]:
    """Nodes outside which the tilted composition has at most `LOST` mass on either side, and the tilted parts."""
    tilted, variance = [], 0.0
    for part, count in parts:
        exponents = tilt * part.losses
        exponents -= exponents[-1]
        masses = part.masses * np.where(exponents > -600, np.exp(np.maximum(exponents, -600)), 0.0)
        tilted.append(masses / masses.sum())
        variance += count * _moments(tilted[-1], part.losses)[1]
    scale, unlikely = log(sqrt(-2 * log(LOST) / max(variance, 1e-30))), -log(LOST)
    _, above = _smallest(lambda s: (_cumulant(parts, tilt + s) - cumulant + unlikely) / s, scale - 4, scale + 2, 0.2)
    _, below = _smallest(lambda s: (_cumulant(parts, tilt - s) - cumulant + unlikely) / s, scale - 2, scale + 4, 0.2)
    d = parts[0][0].interval
    lowest = sum(count * part.lowest for part, count in parts)
    highest = sum(count * (part.lowest + part.masses.size - 1) for part, count in parts)
    low, high = max(floor(-below / d), lowest), min(ceil(above / d), highest)
    return low, max(high, low), tilted


def _moments(masses: Array, losses: Array) -> tuple[float, float]:
    """Mean and variance."""
    total = float(masses.sum())
    mean = _dot(masses, losses) / total
    return mean, _dot(masses, (losses - mean) ** 2) / total


def _dot(left: Array, right: Array) -> float:
    """Inner product; BLAS would start threads for it, which cost more than the product."""
    return float(np.einsum("i,i->", left, right))


def _directions(steps: Sequence[tuple[Profile | Pair, int]], interval: float, tail: float) -> list[Parts]:
    """The parts of either direction; one entry where no step tells them apart."""
    grids = [(from_profile(profile, interval, tail=tail), rounds) for profile, rounds in steps]
    width = max(len(found) for found, _ in grids)
    return [[(found[min(side, len(found) - 1)], rounds) for found, rounds in grids] for side in range(width)]


def _interval(steps: Sequence[tuple[Profile | Pair, int]], tail: float, wanted: float | None) -> float:
    """A hundredth of the spread of one round's loss or finer, coarser where the grids would grow too large."""
    if wanted is not None:
        return validate.real("interval", wanted, above=0)
    finest, variance, reach = inf, 0.0, 0.0
    for profile, rounds in steps:
        pair = profile if isinstance(profile, tuple) else (profile, profile)
        far = max(_reach(one, tail) for one in pair)
        coarse = from_profile(profile, far / 4096, tail=tail)[0]
        spread = max(_moments(coarse.masses, coarse.losses)[1], (far / 1e6) ** 2)
        finest, variance, reach = min(finest, sqrt(spread)), variance + rounds * spread, max(reach, far)
    width = 20 * sqrt(variance)
    return max(min(finest / 100, 0.01, width / 2**15), reach / 2**19, width / 2**21)


def _reach(profile: Profile, tail: float) -> float:
    """An ε where δ is below the tail, or as small as it gets."""
    probes = 1e-9 * np.exp2(np.arange(64.0))
    values = _checked(profile(probes))
    limit = max(tail, float(values[-1]) * (1 + 1e-9))
    index = int(np.argmax(values <= limit))
    low, high = (0.0 if index == 0 else float(probes[index - 1])), float(probes[index])
    for _ in range(2):
        inner = np.linspace(low, high, 17)[1:]
        index = int(np.argmax(np.append(_checked(profile(inner[:-1])), 0.0) <= limit))
        low, high = (low if index == 0 else float(inner[index - 1])), float(inner[index])
    return high


def _sampled(profile: Profile, interval: float, tail: float) -> Array:
    """δ at 0, d, 2d, … until it is below the tail; never increasing."""
    nodes = _reach(profile, tail) / interval
    if nodes > LARGEST_GRID:
        raise GridTooLarge(nodes, interval)
    values = _checked(profile(np.arange(ceil(nodes) + 2.0) * interval))
    if np.any(np.diff(values) > 1e-9):
        raise ValueError("a privacy profile must not increase with epsilon")
    return np.minimum.accumulate(values)


def _checked(values: ArrayLike) -> Array:
    """Refuse a profile that is no probability."""
    found = np.asarray(values, float)
    if not np.all((found >= 0) & (found <= 1 + 1e-12)):
        raise ValueError("a privacy profile must give numbers in [0, 1]")
    return np.minimum(found, 1.0)


def _masses(values: Array, interval: float) -> Array:
    """Masses at the nodes d, 2d, … from δ at 0, d, 2d, …: every cell's mass goes to its ends, keeping both P and Q."""
    drop = values[:-1] - values[1:]
    return np.maximum(exp(interval) * drop - np.append(drop[1:], 0.0), 0.0) / expm1(interval)


def _joined(
    reverse: Array, down: Array, middle: float, up: Array, infinity: float, interval: float, tail: float
) -> LossDistribution:
    """One direction's distribution: a loss −ε weighs e^{−ε} times what it does under the other direction."""
    with np.errstate(under="ignore"):
        below = (down * np.exp(-interval * np.arange(1, down.size + 1)))[::-1]
    # Q beyond the last node: δ_reverse one node before it is at least (1 − e^{−d}) times as much.
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


def _threshold_profile(up: Array, up_weights: Array, low: Array, low_weights: Array) -> Profile:
    """δ(ε) of Σ u_i N(a_i, 1) against Σ v_i N(b_i, 1) whose likelihood ratio increases: a half line is worst."""

    far = 40.0 + float(np.abs(np.concatenate([up, low])).max())
    table = np.linspace(-far, far, 4001)
    values = np.maximum.accumulate(_log_mixture(table, up, up_weights)[0] - _log_mixture(table, low, low_weights)[0])

    def delta(epsilon: Array) -> Array:
        e = np.asarray(epsilon, float)
        flat = e.ravel()
        cell = np.clip(np.searchsorted(values, flat), 1, table.size - 1)
        x = np.interp(flat, values, table)
        for _ in range(3):  # Newton's method inside a cell of the table; δ is flat in the threshold
            above, slope_above = _log_mixture(x, up, up_weights)
            below, slope_below = _log_mixture(x, low, low_weights)
            step = (above - below - flat) / np.maximum(slope_above - slope_below, 1e-300)
            x = np.clip(x - step, table[cell - 1], table[cell])
        x = x.reshape(e.shape)
        first = sum(weight * ndtr(mean - x) for mean, weight in zip(up, up_weights, strict=True))
        second = sum(
            weight * np.exp(np.clip(e + log_ndtr(mean - x), -700, 700))
            for mean, weight in zip(low, low_weights, strict=True)
        )
        return np.clip(first - second, 0.0, 1.0)

    return delta


def _log_mixture(x: Array, means: Array, weights: Array) -> tuple[Array, Array]:
    """Log density of a mixture of unit Gaussians, less that of N(0, 1), and its slope."""
    kept = weights > 0
    terms = [mean * x + (log(weight) - mean**2 / 2) for mean, weight in zip(means[kept], weights[kept], strict=True)]
    peak = np.max(terms, axis=0)
    parts = [np.exp(np.maximum(term - peak, -700)) for term in terms]
    total = np.sum(parts, axis=0)
    slope = np.sum([mean * part for mean, part in zip(means[kept], parts, strict=True)], axis=0) / total
    return peak + np.log(total), slope
