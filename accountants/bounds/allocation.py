"""Privacy of a record that takes part in k of t places, drawn secretly. A place is a round (random allocation) or a
patch of a release (hidden mask).

In each of its places the record shifts a Gaussian by μ ≥ 0 standard deviations of the noise. For k = 1, the release
with the record has the law P = mean over i of N(μ·e_i, I), where e_i is the i-th of t unit vectors. The release without
the record has the law Q = N(0, I). Under Q the likelihood ratio L = P/Q is the mean of t independent copies of a
lognormal variable X with mean 1. All bounds on the privacy loss in this module are upper bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, logsumexp, ndtr

from privkit.accountants import validate
from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.loss_distribution import Pair, by_squaring
from privkit.accountants.bounds.sampled_renyi import log_expm1
from privkit.accountants.bounds.step import Pairs, Step
from privkit.accountants.bounds.subsampling import checked_orders
from privkit.shared.array import Array

_ORDERS = np.concatenate([[1.25, 1.5], np.arange(2.0, 65.0), [96.0, 128.0]])
"""Rényi orders that are tried for secret places; the computing time grows with the square of the largest order."""
_MOST_OVERLAPS = 1_024  # places up to which the exact overlap of two or three subsets is summed
_LARGEST_ORDER = 256  # highest order of the Rényi curve; its moments take time proportional to its square
# most places of the numerical profile; its δ also bounds the δ of more places, which hide a record better
_MOST_PLACES = 4096
_LARGEST_SHIFT = 4.0
"""μ above which the numerical profile would be lost in rounding; the profile of a known place is used instead."""
_HIDES_NOTHING = 100.0  # μ above which no order of the Rényi curve gains from secrecy, and moments would overflow
_TOLD = ", with all secrets known to the server"
_ROUNDING = 4e-15  # generous relative rounding error of one place's masses; t places have up to t times as much


@dataclass(frozen=True, kw_only=True)
class SecretPlaces(Step):
    """Gaussian releases in which a record shifts k of t places (rounds or patches), drawn uniformly and secretly.

    Proof of the bound for k ≤ t/2: to draw k of t places uniformly, split the places at random into k blocks of nearly
    equal size, and draw one place in each block. Revealing the split cannot lower a divergence (joint convexity). Given
    the split, the blocks are independent, so each block counts as one secret place.

    For k > t/2 the bound is computed for t − k secret places and one known shift. Along the direction (1, …, 1), every
    subset of k places moves the mean by μk/√t. Orthogonal to this direction, a subset and its complement mirror each
    other. So k of t places equal t − k of t places and one Gaussian with squared shift μ²(2k − t).
    """

    chosen: int  # k in 1..t
    places: int  # t
    mu: float  # shift in one place, ≥ 0
    masked: bool = False  # True: the places are patches of a release; False: rounds
    orders = _ORDERS
    remark = _TOLD

    @property
    def how(self) -> str:
        return ", hidden masks" if self.masked else ", random allocation"

    @property
    def source(self) -> str:
        if self.masked:
            return "derived: a hidden mask under addition is a random allocation over patches"
        return "Feldman and Shenfeld 2025"

    @property
    def known(self) -> int:
        """The number of places, max(2k − t, 0), that the bound treats as known to the server."""
        return max(2 * self.chosen - self.places, 0)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The blocks into which the proof splits places: pairs (number of places in a block, number of such blocks)."""
        hidden = min(self.chosen, self.places - self.chosen)
        size, larger = divmod(self.places, max(hidden, 1))
        return [(block, count) for block, count in ((size, hidden - larger), (size + 1, larger)) if count > 0]

    def rdp(self, orders: Array, count: int) -> Array:
        rest = np.zeros_like(orders)
        for block, number in self.blocks:
            rest = rest + number * rdp(orders, block, self.mu)
        hidden = min(self.chosen, self.places - self.chosen)
        for i in np.flatnonzero(np.isin(orders, (2, 3))) if hidden > 1 and self.places <= _MOST_OVERLAPS else ():
            whole = log_overlap(int(orders[i]), hidden, self.places, self.mu) / (orders[i] - 1)
            reverse = sum(number * reverse_rdp(orders[i], block, self.mu) for block, number in self.blocks)
            rest[i] = min(rest[i], max(whole, reverse))
        told = gaussian.rdp(orders, self.mu * sqrt(self.known * count))
        return np.minimum(told + count * rest, gaussian.rdp(orders, self.shift(count)))

    def shift(self, count: int) -> float:
        return sqrt(self.chosen * count) * self.mu

    def pairs(self, count: int) -> Pairs | None:
        pairs: Pairs = [(profile(block, self.mu), count * number) for block, number in self.blocks]
        if self.known:
            pairs.append((gaussian.profile(self.mu * sqrt(self.known * count)), 1))
        return pairs or None


@dataclass(frozen=True, kw_only=True)
class ToldPlaces(Step):
    """A shift by μ standard deviations of the noise in k secret places (rounds or patches). The bound assumes that the
    server knows the places, so it equals the bound of one Gaussian of shift √k·μ.

    Source: derived from joint convexity: revealing the places cannot lower a divergence.
    """

    chosen: int  # k
    mu: float  # shift in one place, ≥ 0
    remark = _TOLD

    def rdp(self, orders: Array, count: int) -> Array:
        return gaussian.rdp(orders, self.shift(count))

    def shift(self, count: int) -> float:
        return sqrt(self.chosen * count) * self.mu


def rdp(orders: ArrayLike, places: int, mu: float) -> Array:
    """Upper bounds on the Rényi divergence between laws P and Q at A orders α > 1: float [A]. Q is the law of t =
    `places` independent N(0, 1) variables; under P, one of them, drawn uniformly and secretly, is shifted by μ.

    The result is the larger divergence of the two directions. Let L = P/Q be the likelihood ratio, and E the mean under
    Q.

    1. P against Q: at whole α, E L^α − 1 is exact. It is α!/t^α times the coefficient of z^α in (Σ_j e^{μ²j(j−1)/2}
       z^j/j!)^t − e^{tz}, a sum of positive terms. Between whole orders, (α − 1)·D_α is interpolated, since it is
       convex in α.
    2. Q against P: E L^{1−α} = ∫ s^{α−2} (E e^{−sX/t})^t ds/Γ(α−1) is integrated at every α. X is a lognormal variable
       with mean 1.

    The result is at most αμ²/2, the divergence if the place is known. For α > 256 or μ > 100 it is αμ²/2.

    Source: Feldman and Shenfeld 2025 (the pair and the moments at whole orders); the integral is derived.
    """
    a, t = checked_orders(orders), validate.whole("places", places)
    m = validate.real("mu", mu, least=0)
    told = a * m * m / 2
    within = a <= _LARGEST_ORDER
    if t == 1 or m == 0 or m > _HIDES_NOTHING or not np.any(within):
        return told
    some = a[within]
    top = int(np.ceil(some.max()))
    cumulants = np.insert(np.logaddexp(0, _log_moments(top, t, m)), 0, [0.0])  # at orders 1, 2, …
    with_shift = np.interp(some, np.arange(1.0, top + 1), cumulants) / (some - 1)
    curve = told.copy()
    curve[within] = np.minimum(np.maximum(with_shift, _reverse(some, t, m)), told[within])
    return curve


def reverse_rdp(order: float, places: int, mu: float) -> float:
    """Upper bound on the Rényi divergence D_α(Q‖P) at one `order` α > 1. Q is the law of `places` independent N(0, 1)
    variables; under P, one of them, drawn uniformly and secretly, is shifted by `mu`."""
    told = order * mu * mu / 2
    if places == 1 or mu == 0 or mu > _HIDES_NOTHING or order > _LARGEST_ORDER:
        return told
    return min(told, float(_reverse(np.array([float(order)]), places, mu)[0]))


@lru_cache(maxsize=64)
def profile(places: int, mu: float) -> Pair:
    """Upper bounds on both privacy profiles (functions from ε ≥ 0 to δ) of a Gaussian mechanism with t = `places` noisy
    outputs. The record moves one output, drawn uniformly and secretly, by μ standard deviations.

    The first profile compares the release with the shift (P) to the release without it (Q): δ(ε) = E(L − e^ε)₊ with the
    likelihood ratio L = P/Q and the mean E under Q. The second compares Q to P: δ(ε) = E(1 − e^ε·L)₊. L is the mean of
    t independent copies of a lognormal variable X.

    1. X is moved to a grid such that E(c − X)₊ is unchanged at every node c and linear in between. This keeps the mean
       of X and makes X larger in the convex order. So the sum S of t such variables is larger in this order, too, which
       makes both δ larger.
    2. Both δ follow from E(c − S)₊ at c = t·e^{±ε}, since the mean of S is known to be t. Sums above c do not matter
       for E(c − S)₊, so a grid on [0, c] is enough.
    3. A bound on rounding errors is added. For more than 4096 places, the bound for 4096 places is returned. For μ > 4,
       the bound for a place that the server knows is returned.

    Source: Feldman and Shenfeld 2025 (this pair dominates also if later rounds are chosen adaptively). Derived: a mean
    of more independent variables is smaller in the convex order, which makes δ smaller.
    """
    t, m = validate.whole("places", places), validate.real("mu", mu, least=0)
    told = gaussian.profile(m)
    if t == 1 or m == 0 or m > _LARGEST_SHIFT:
        return told, told
    t = min(t, _MOST_PLACES)
    strikes, puts = _puts(t, m)
    farthest = float(strikes[-1])
    # Neither function rises with ε. Running maxima restore this after rounding.
    calls = np.maximum.accumulate((1 - strikes / t + puts / t + _ROUNDING * farthest)[::-1])[::-1]
    puts[1:] = np.maximum.accumulate(puts[1:] / strikes[1:]) * strikes[1:] * (1 + _ROUNDING * t)

    def removed(epsilon: ArrayLike) -> Array:
        e = np.asarray(epsilon, float)
        strike = t * np.exp(np.minimum(e, 100.0))  # at larger strikes, δ is smaller
        return np.asarray(np.minimum(np.clip(np.interp(strike, strikes, calls), 0, 1), told(e)))

    def added(epsilon: ArrayLike) -> Array:
        e = np.asarray(epsilon, float)
        strike = t * np.exp(-np.minimum(e, 700.0))
        return np.asarray(np.minimum(np.clip(np.interp(strike, strikes, puts) / strike, 0, 1), told(e)))

    return removed, added


def _log_moments(top: int, places: int, mu: float) -> Array:
    # ln(E L^α − 1) for α = 2..top: the series in `rdp` by repeated squaring, with its part e^z kept apart
    j = np.arange(top + 1.0)
    factorial = gammaln(j + 1)
    with np.errstate(divide="ignore"):
        rest = np.where(j < 2, -np.inf, log_expm1(j * (j - 1) * mu * mu / 2)) - j * log(places) - factorial

    def plain(count: int) -> Array:
        return np.asarray(j * log(count / places) - factorial)

    def product(left: tuple[int, Array], right: tuple[int, Array]) -> tuple[int, Array]:
        # (e^{nz} + R)(e^{mz} + S) = e^{(n+m)z} + R·S + R·e^{mz} + S·e^{nz}
        (n, r), (m, s) = left, right
        either = np.logaddexp(r, plain(n))
        return n + m, np.logaddexp(_convolved(either, s), _convolved(r, plain(m)))

    _, power = by_squaring((1, rest), places, product)
    return np.asarray((power + factorial)[2:] + 1e-13 * (1 + np.abs(power[2:]) / 100))


def _convolved(left: Array, right: Array) -> Array:
    """The log coefficients of the product of two power series, from the log coefficients of both: [n] each."""
    size = left.size
    table = np.full((size, size), -np.inf)
    row, column = np.tril_indices(size)
    table[row, column] = left[row - column] + right[column]
    return np.asarray(logsumexp(table, axis=1))


def _reverse(orders: Array, places: int, mu: float) -> Array:
    """Upper bounds on D_α(Q‖P) = ln(E_Q L^{−β})/β with β = α − 1, at the given orders. Here Q is the release without
    the shift, P the release with it, L = P/Q, and t = `places`.

    Under Q, L is the mean of t independent copies of the lognormal variable X. With M(u) = E e^{−uX}, E_Q L^{−β} − 1 =
    ∫ s^{β−1} (M(s/t)^t − e^{−s}) ds/Γ(β). The result is at most (1 + β/t)·μ²/2, which holds since L is at least the
    copies' geometric mean; it equals this number if the integral cannot be computed.
    """
    beta = np.asarray(orders - 1, float)
    geometric = (1 + beta / places) * mu * mu / 2
    highest, lowest = float(beta.max()), float(beta.min())
    v_step = min(0.12, 0.6 / sqrt(highest + 1))
    top = (
        log(highest + 90 + 3 * abs(log(mu)) + log(places))
        + mu * mu * (0.5 + highest / places)
        + 9 * mu / sqrt(places)
        + 2 * mu
    )
    if top > 300 or mu > 8:
        return geometric
    v = np.arange(-45 / (lowest + 2) - 2, top, v_step)
    step = 0.64 if mu < 0.16 else pi**2 / (47 * mu + pi**2 / (8 * mu))
    largest = top - log(places)
    left = 0.0 if largest <= 0 else min(mu * exp(min(largest, 50.0)), largest / mu + mu)
    x = np.arange(-14 - left, 14 + 2 * mu, step)
    if v.size * x.size > 20_000_000:
        return geometric
    weight = step * np.exp(-x * x / 2) / sqrt(2 * pi)
    terms = np.concatenate([_log_transform(v[i : i + 256], places, mu, x, weight) for i in range(0, v.size, 256)])
    inverse = np.empty(beta.size)
    for i, b in enumerate(beta.ravel().tolist()):
        powers = terms + b * v
        inside = powers.max() - 35 > max(powers[0], powers[-1])  # else the integral was cut off
        inverse[i] = logsumexp(powers) + log(v_step) - gammaln(b) + 1e-10 if inside else np.inf
    return np.asarray(np.minimum(np.logaddexp(0, inverse.reshape(beta.shape)) / beta, geometric))


def _log_transform(v: Array, places: int, mu: float, x: Array, weight: Array) -> Array:
    # ln(M(s/t)^t − e^{−s}) at s = e^v; for large s an upper bound, for small s by W(u) = E[e^{−u(X−1)} − 1] ≥ 0
    u, ratio = np.exp(v)[:, None] / places, np.exp(np.minimum(mu * x - mu * mu / 2, 500.0))
    y = u * (ratio - 1)
    near = np.abs(y) < 0.01
    z = np.where(near, y, 0.0)
    series = z * z / 2 * (1 - z / 3 * (1 - z / 4 * (1 - z / 5 * (1 - z / 6 * (1 - z / 7)))))
    with np.errstate(divide="ignore", over="ignore"):
        inner = places * np.log1p(np.where(near, series, np.expm1(-np.maximum(y, -600)) + y) @ weight)
        small = np.where(inner > 30, inner, np.log(np.expm1(np.minimum(inner, 30)))) - np.exp(v)
        large = places * np.log(np.exp(-u * ratio) @ weight)
    return np.where((u[:, 0] <= 200) & (inner < 600), small, large)


def _puts(places: int, mu: float) -> tuple[Array, Array]:
    """Increasing nodes c ≥ 0, and upper bounds on E(c − S)₊ at these nodes for the sum S of t lognormal variables: both
    [K]. Linear interpolation between the nodes is an upper bound, too."""
    nodes = 1 << max(13, (places - 1).bit_length() + 4)
    far = min(gaussian.epsilon(1e-14, mu), 12.0)
    top = min(2 * places + 2 * exp(min(far, 30.0)), places * exp(12.0))
    bottom = places * exp(-mu * 9 / sqrt(places) - mu * mu / 2 - 0.7)
    count = int(np.ceil(log(top / bottom) / log(2)))
    strikes: list[Array] = [np.zeros(1)]
    values: list[Array] = [np.zeros(1)]
    for level in range(count - 1, -1, -1):
        interval = top * 2.0**-level / (nodes - 1)
        masses = _sum_of_losses(_dots(interval, nodes, mu), places)
        cumulated = np.asarray(np.concatenate([[0.0], np.cumsum(np.cumsum(masses))[:-1]]) * interval, float)
        first = 1 if level == count - 1 else nodes // 2
        strikes.append(interval * np.arange(first, nodes, dtype=float))
        values.append(cumulated[first:])
    c, put = np.concatenate(strikes), np.concatenate(values)
    kept = np.concatenate([[True], np.diff(c) > 0])
    return c[kept], put[kept]


def _dots(interval: float, nodes: int, mu: float) -> Array:
    """Probabilities of the values 0, h, 2h, … (h = `interval`) of a variable X whose E(c − X)₊ equals that of the
    lognormal variable at every node c.

    They are second differences of the lognormal's E(c − X)₊ below its mean, and of E(X − c)₊ above. Each of these
    functions is small on its side, so the differences keep their digits.
    """
    c = interval * np.arange(1, nodes + 1)
    d = np.log(c) / mu
    put = np.concatenate([[0.0], c * ndtr(d + mu / 2) - ndtr(d - mu / 2)])
    call = np.concatenate([[1.0], ndtr(mu / 2 - d) - c * ndtr(-d - mu / 2)])
    below, above = np.diff(put) / interval, np.diff(call) / interval
    inner = np.where(c[:-1] < 1, np.diff(below), np.diff(above))
    masses = np.maximum(np.concatenate([below[:1], inner]), 0.0)
    return np.asarray(masses * ((1 + float(above[-1])) / float(masses.sum())))


def _sum_of_losses(masses: Array, count: int) -> Array:
    """Probabilities of the sum of `count` independent variables with these `masses`; sums beyond the grid are left
    out."""
    from scipy.fft import irfft, next_fast_len, rfft

    size = next_fast_len(2 * masses.size - 1, real=True)

    def added(left: Array, right: Array) -> Array:
        transform = rfft(left, size)
        other = transform if right is left else rfft(right, size)
        return np.asarray(np.maximum(irfft(transform * other, size), 0)[: masses.size])

    return by_squaring(masses, count, added)


def log_overlap(order: int, chosen: int, places: int, mu: float) -> float:
    """ln E L^α for α = `order` 2 or 3, with L = P/Q and the mean E under Q. Q is the law of t = `places` independent
    N(0, 1) variables; under P, k = `chosen` of them, drawn uniformly and secretly, are shifted by μ.

    E L^α is the mean of exp(μ²·Σ_{a<b} |A_a ∩ A_b|) over α independent uniform subsets A_1, …, A_α of k places.

    Source: derived. The overlap of two subsets is hypergeometric; a third subset is counted region by region.
    """
    validate.choice("order", str(order), ("2", "3"))
    c, j = mu * mu, np.arange(max(0.0, 2.0 * chosen - places), chosen + 1.0)
    every = float(_log_choose(places, np.array(float(chosen))))
    log_weight = _log_choose(chosen, j) + _log_choose(places - chosen, chosen - j) - every
    if order == 2:
        return float(logsumexp(log_weight + c * j))
    size = np.arange(chosen + 1.0)
    total = []
    for both in j.astype(int).tolist():  # regions: in both, in one of them, in neither
        series = _log_choose(both, size) + 2 * c * size
        for region, gain in ((2 * (chosen - both), c), (places - 2 * chosen + both, 0.0)):
            series = _convolved(series, _log_choose(region, size) + gain * size)
        total.append(float(series[chosen]) - every + c * both)
    return float(logsumexp(log_weight + np.array(total)))


def _log_choose(top: int, bottom: Array) -> Array:
    inside = np.minimum(bottom, top)
    logs = gammaln(top + 1) - gammaln(inside + 1) - gammaln(top - inside + 1)
    return np.where(bottom <= top, logs, -np.inf)
