r"""Bounds on δ if a record hides in one of several rows: the expected positive part of a weighted sum.

A row is the release of one record in noise N(0, 1). With probability w_i, the protected record, x or x', is in row i
instead of the row's usual record; the w_i sum to 1. X_i and X'_i are the likelihood ratios of x and x' against the
usual record, and V_i = X_i − e^ε·X'_i. Any two of these three records are at most μ apart. The V_i are independent.
F(w) is the largest E(Σ w_i·V_i)₊ over all records in the rows. Two bounds on F(w) hold, and the smaller is taken.

**Both bounds.** The Gram matrices of `third_record.triples` dominate those of all triples of records. So in convex
order, the law of each V_i is at most one of T laws. The index of this law is the *kind* of V_i. Each law is moved to a
grid: E(V − k)₊ is interpolated linearly between the nodes k, and mass below the grid is moved up. Both steps make the
law larger. The law may also be cut at a largest value `top`, if E(V − top)₊ is added to the bound.

**By a contour integral**, if most rows have equal weights. For every θ > 0, s₊ is the integral of e^{zs}/(2πi·z²) over
the line Re z = θ. The trapezoidal rule of step d takes z_j = θ + ijd for all integers j. By Poisson's formula, its
value is also a sum over all integers m:

    (d/2π)·Σ_j e^{z_j·s}/z_j² = Σ_m (s + 2πm/d)₊·e^{−2πmθ/d} ≥ s₊.

So the rule gives an upper bound for every step d. Let M_t(z) = E e^{zV} for a V of kind t. If k_t rows of weight w are
of kind t, then E(Σ w_i·V_i)₊ is at most

    (d/2π)·Σ_j exp(Σ_t k_t·ln|M_t(w·z_j)|)/|z_j|².

The sum is convex in (k_1, …, k_T), so it is largest if all k rows of the weight w are of one kind. With several weights
w_g, it is largest if all k_g rows of each weight are of one kind. For all shares α_g > 0 that sum to 1, Hölder's
inequality separates the weights, so that each weight may have its own worst kind:

    Π_g max_t {(d/2π)·Σ_j exp(k_g·ln|M_t(w_g·z_j)|/α_g + rest_j)/|z_j|²}^α_g.

α_g is the weight's share of the sum's variance. Weights with small shares are not separated: rest_j is the sum over
these weights of max_t k_g·ln|M_t(w_g·z_j)|. A normal variable whose standard deviation is a quarter of the smallest
grid step is added to each V. This raises the bound (Jensen), and makes the terms decay, so that |M_t(w·z)| ≤ M_t(wθ)
bounds all distant terms. For normal V, the bound is 3 % above the true value if the mean of the sum is at most three
standard deviations below 0, and 11 % above the true value at seven standard deviations. With a heavy tail, or few rows,
this gap is larger. Source: derived; Cauchy's integral of s₊.

**By convolution.** Every V_i gets the least upper bound of all kinds: its E(V − k)₊ is the largest over all kinds. The
terms w_i·V_i are moved to a common grid: each mass is split between the two nearest nodes such that its mean is kept,
which makes the law larger. The grid ends where cutting the law at the top adds little to the result.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp, expm1, floor, inf, log, pi, sqrt
from typing import TypeAlias

import numpy as np
from scipy import fft
from scipy.special import logsumexp, ndtr

from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.fft_composition import spectrum_power
from privkit.accountants.bounds.third_record import Gram, triples
from privkit.shared.array import Array

_LARGEST_WINDOW = 2**14  # most nodes of the grid of a sum
_TAIL, _LOW_TAIL = 1e-12, 1e-9
"""Mean excess of a term above its grid, which is added to δ, and below its grid, which is moved up."""
_FINE, _COARSE = 4, 12
"""Near a term's mean: nodes per standard deviation. Far from it, nodes are 1/12 of their distance to the mean apart."""
_FADES = 36.0  # exponent at the window's end: mass beyond it is lost in rounding, and a bound on it is added
_MOST_TILT = 20.0  # largest exponent of a tilted term
_PART, _TRIES = 0.01, 4
"""Wanted mean excess above the grid of a convolution, relative to its result, and the number of grids that are
tried."""
_STEP, _STEPS = 0.5, 128
"""d divided by min(θ, 1/(standard deviation of the sum)), and the fewest terms; later terms are negligible."""
_SHARE = 0.03  # smallest share of the variance at which a weight is separated in the contour integral
_WIDE = 10.0  # integrals over a normal variable end at this many standard deviations


def both_orders(found: list[Gram]) -> tuple[Gram, ...]:
    """The Gram matrices, and then the same matrices with the records x and x' exchanged, without duplicates."""
    return tuple(dict.fromkeys([*found, *((b, a, c) for a, b, c in found)]))


COARSE_KINDS = both_orders(triples((0.0, 0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0), (0.0, 0.6, 0.85, 0.95, 1.0)))
"""Gram matrices that dominate those of all triples of records (`third_record.triples`), in both orders of x and x'."""
FINE_KINDS = both_orders(triples(np.linspace(0, 1, 21).tolist(), (0.0, 0.3, 0.6, 0.8, 0.9, 0.95, 0.98, 1.0)))
"""A finer set of such Gram matrices, which gives smaller bounds."""
Terms: TypeAlias = tuple[Array, Array, Array]
"""Nodes [K], the masses of T kinds at these nodes [T, K], and the largest E(V − node)₊ over the kinds [K]."""
RowWeights: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs (weight in multiples of a unit, number of rows with it), by increasing weight; weights are scaled to sum 1."""


def hidden_delta(epsilon: float, mu: float, rows: RowWeights, kinds: tuple[Gram, ...] = COARSE_KINDS) -> float:
    """Upper bound on δ at ε ≥ 0 of a record that is secretly in one of several rows, beside other records.

    It bounds F(w) of this module. `rows` gives the probabilities w of the rows. Any two records are at most `mu`
    standard deviations of the noise apart. The Gram matrices `kinds` dominate those of all triples of records.
    """
    weights, counts = np.array(rows, float).T
    weights /= weights @ counts
    strikes, calls, interval = _calls(epsilon, mu, kinds)
    masses = _masses(strikes, calls)
    spread = sqrt(float(np.max(masses @ strikes**2 - (masses @ strikes) ** 2)) * float(weights**2 @ counts))
    terms, some, apart = (strikes, masses, calls.max(0)), (weights, counts), expm1(epsilon) / spread
    rough, saddle, last = _saddle(terms, some, spread, apart)
    best = float(min(_by_contour(terms, interval, some, spread, saddle, last), gaussian.delta(epsilon, mu)))
    tail = min(rough, best)
    for _ in range(_TRIES):
        tail = max(_PART * tail, _TAIL)
        found = _by_convolution(terms, interval, some, tail)
        best = min(best, found)
        if tail <= max(2 * _PART * found, _TAIL):
            break
        tail = best
    return best


def _by_contour(
    terms: Terms, interval: float, rows: tuple[Array, Array], spread: float, saddle: float, last: int
) -> float:
    """Upper bound on F(w) by the contour integral in the module's docstring; `inf` if its terms overflow.

    `interval` is the smallest distance of nodes, and `spread` the standard deviation of the sum. `saddle` (θ·spread)
    and `last` (the top node) come from `_saddle`.
    """
    nodes, masses, above = terms
    weights, counts = rows
    line = (saddle - 1 / saddle) / 2  # replaces the θ of the best one-sided bound by the best θ of a normal sum
    theta = saddle * (line + sqrt(line * line + 2)) / (line + sqrt(line * line + 1)) / spread
    some = np.concatenate([masses[:, :last], masses[:, last:].sum(1, keepdims=True)], axis=1)
    slopes, shares = _rule(theta * spread)
    x = (theta * weights)[:, None] * nodes[: last + 1]
    turned = np.repeat(np.exp(1j * slopes[1] * x)[:, None], slopes.size, axis=1)
    turned[:, 0] = np.exp(x - x[:, -1:])
    turned = np.cumprod(turned, axis=1)
    squares = sum((np.ascontiguousarray(part) @ some.T) ** 2 for part in (turned.real, turned.imag))
    logs = counts[:, None, None] * (np.log(squares + 1e-300) / 2 + x[:, -1:, None])  # [D, j, T]
    smooth = float(counts @ (theta * weights * interval / 4) ** 2) / 2
    if logs[:, 0].max(1).sum() + smooth > 600:
        return inf
    logs = np.concatenate([logs, logs[:, :1]], axis=1)  # the last one bounds all distant terms
    factors = np.log(np.append(shares, 2 / slopes[-1])) + smooth * (1 - np.append(slopes, slopes[-1]) ** 2)
    variance = counts * weights**2 / (counts @ weights**2)
    own = variance >= min(_SHARE, float(variance.max()))
    parts = variance[own] / variance[own].sum()
    exponents = logs[own] / parts[:, None, None] + (factors + logs[~own].max(2).sum(0))[None, :, None]
    return float(exp(parts @ logsumexp(exponents, axis=1).max(1)) / (2 * pi * theta) + above[last])


def _rule(deviations: float) -> tuple[Array, Array]:
    # slopes jd/θ for j = 0, …, J, and weights (d/θ)·|θ/z_j|² of the terms j and −j together, both [J + 1]; all omitted
    # terms weigh at most 2/(Jd/θ); `deviations` is θ times the standard deviation of the sum
    step = _STEP * min(1.0, 1 / deviations)
    slopes = step * np.arange(ceil(_STEPS * _STEP / (deviations * step)) + 1.0)
    return slopes, step * np.append(1.0, 2 / (1 + slopes[1:] ** 2))


def _saddle(terms: Terms, rows: tuple[Array, Array], spread: float, apart: float) -> tuple[float, float, int]:
    # an estimate of F(w): the least mean of e^{θs−1}/θ ≥ s₊ over θ and top nodes, for the worst of a few kinds; also
    # its θ·spread and top node, which `_by_contour` uses (any choice gives a bound). The mean of the sum s is about
    # `apart` standard deviations (`spread`) from 0.
    nodes, masses, above = terms
    weights, counts = rows
    kinds = masses[[int(np.argmax(masses @ nodes**2)), *range(0, len(masses), 6)]]
    tails, best = np.cumsum(kinds[:, ::-1], 1)[:, ::-1], (inf, 1.0, nodes.size - 1)
    for one in (np.geomspace(0.1, 1.2, 16) * (apart / 2 + sqrt(apart * apart / 4 + 1))).tolist():
        grown = np.exp(np.clip(one / spread * weights[:, None] * nodes, -600, 300))[:, None]
        parts = grown * kinds
        logs = np.einsum("d,dtk->tk", counts, np.log(np.cumsum(parts, 2) - parts + grown * tails + 1e-300)).max(0)
        values = np.where(nodes > 0, np.exp(np.minimum(logs - 1, 600)) * spread / one + above, inf)
        at = int(np.argmin(values))
        best = min(best, (float(values[at]), one, at))
    return best


def _by_convolution(terms: Terms, interval: float, rows: tuple[Array, Array], tail: float) -> float:
    """Upper bound on F(w) by the convolution in the module's docstring, with terms cut where their mean excess is below
    `tail`; `inf` if numbers overflow. The sum is computed under a tilt e^{ts}, so rounding is small relative to δ."""
    nodes, _, above = terms
    weights, counts = rows
    last = int(np.argmax((above <= tail) & (nodes > 0))) or nodes.size - 1
    nodes, masses, beyond = nodes[: last + 1], _masses(nodes[: last + 1], above[: last + 1]), float(above[last])
    mean = float(masses @ nodes)
    spread = sqrt(float(masses @ nodes**2 - mean**2) * float(weights**2 @ counts))
    most = min((3 - min(mean, 0.0) / spread) / spread, _MOST_TILT / float(nodes[-1] * weights[-1]))
    tilts = most * np.geomspace(0.02, 1, 20)
    grown = np.exp((tilts[:, None] * weights)[..., None] * nodes) @ masses
    tilt = float(tilts[np.argmin(np.log(np.maximum(grown, 1e-300)) @ counts - np.log(tilts))])
    tilted = masses * np.exp(tilt * weights[:, None] * nodes)
    if not (totals := tilted.sum(1)).all():  # the mean is so far below 0 that the tilted law is lost in rounding
        return inf
    means = tilted @ nodes / totals
    mean = float(weights * counts @ means)
    spread = sqrt(max(float(weights**2 * counts @ (tilted @ nodes**2 / totals - means**2)), 0.0))
    low, top = min(0.0, mean - 12 * spread), _FADES / tilt
    step = max(interval * sqrt(float(weights**2 @ counts / counts.sum())) / 2, (top - low) / _LARGEST_WINDOW)
    first = floor(low / step)
    size = fft.next_fast_len(int(top / step) - first + 2, real=True)
    spectrum, logs = np.ones(size // 2 + 1, complex), 0.0
    for weight, count in zip(weights.tolist(), counts.astype(int).tolist(), strict=True):
        places = weight / step * nodes
        at, law = np.floor(places), np.zeros(size)
        for node, some in ((at, masses * (at + 1 - places)), (at + 1, masses * (places - at))):
            law += np.bincount(node.astype(int) % size, some * np.exp(tilt * step * node), size)
        total = float(law.sum())
        spectrum *= spectrum_power(fft.rfft(law / total), count)
        logs += count * log(total)
    if logs > 700:
        return inf
    masses_of_sum = np.maximum(fft.irfft(spectrum, size), 0.0)
    count = size + first  # nodes of the sum from 0 on
    sums = step * np.arange(count)
    positive = float(np.einsum("i,i->", sums * np.exp(-tilt * sums), masses_of_sum[:count]))
    norm = sqrt(float(np.mean(np.abs(spectrum) ** 2)) * size)  # for an estimate of rounding, with a margin
    rounding = np.finfo(float).eps * (64 * counts.sum() + 32 * len(rows) * log(size)) * norm * exp(-1) / tilt
    outside = step * count * exp(-tilt * step * count)
    return float(exp(logs) * (positive + rounding + outside) + beyond)


@lru_cache(maxsize=256)
def _calls(epsilon: float, mu: float, kinds: tuple[Gram, ...]) -> tuple[Array, Array, float]:
    """Three results: thresholds k, [K]; E(V − k)₊ at each threshold for each of T laws of V, [T, K]; and the smallest
    step between thresholds. V is X − e^ε·X' with likelihood ratios X and X'. Thresholds are multiples of the step."""
    scale, mean = exp(epsilon), -expm1(epsilon)
    matrices = [tuple(mu**2 * one for one in matrix) for matrix in kinds]
    a, b, c = np.array(matrices).T
    spread = sqrt(float(np.max(np.exp(a) + scale**2 * np.exp(b) - 2 * scale * np.exp(c) - mean**2)))
    top = exp(gaussian.epsilon(_TAIL, 1.05 * mu))
    bottom = -scale * exp(gaussian.epsilon(_LOW_TAIL, 1.05 * mu))
    interval = spread / _FINE
    places = [0]
    while places[-1] * interval < top - mean + 2 * interval:
        places.append(places[-1] + max(1, places[-1] // _COARSE))
    below = [0]
    while below[-1] * interval > bottom - mean:
        below.append(below[-1] - max(1, -below[-1] // _COARSE))
    strikes = (np.array([*below[:0:-1], *places]) + round(mean / interval)) * interval
    return strikes, np.array([excess(strikes, epsilon, *matrix) for matrix in matrices]), interval


def _masses(strikes: Array, calls: Array) -> Array:
    """Probabilities at the nodes `strikes`, […, K], of the law whose E(V − k)₊ interpolates `calls` linearly."""
    slopes = np.minimum(np.maximum.accumulate(np.maximum(np.diff(calls) / np.diff(strikes), -1.0), axis=-1), 0.0)
    ends = np.zeros_like(calls[..., :1])
    return np.diff(np.concatenate([ends - 1.0, slopes, ends], axis=-1))


def excess(strikes: Array, epsilon: float, a: float, b: float, c: float) -> Array:
    """E(X − e^ε·X' − k)₊ at thresholds k (`strikes` [K]) for lognormal X and X' of mean 1: float [K].

    ln X has the variance a > 0, ln X' the variance b > 0, and their covariance is c with c² < a·b. Given ln X', the
    mean is Black and Scholes' price of a call option; given ln X, of a put option. We condition on the variable that
    leaves a positive strike. The mean over this variable is a sum over equidistant nodes, which converges
    exponentially.
    """
    values, scale, above = np.empty(strikes.size), exp(epsilon), strikes >= 0
    values[above] = _priced(strikes[above], scale, 1.0, (b, a, c), call=True)
    values[~above] = _priced(-strikes[~above], 1.0, scale, (a, b, c), call=False)
    return values


def _priced(strikes: Array, given: float, free: float, matrix: Gram, *, call: bool) -> Array:
    """The mean payoff of a call or put option on `free` times one lognormal variable, [K]. The strike is k ≥ 0
    (`strikes` [K]) plus `given` times the other variable."""
    (a, b, c), side = matrix, sqrt(matrix[0])
    shift, left = c / side, sqrt(b - c * c / a)
    step = min(0.5 * min(1.0, left / (side + abs(shift))), 0.5 / side)
    z = np.arange(min(0.0, shift, side) - _WIDE, max(0.0, shift, side) + _WIDE, step)
    weights = np.exp(-z * z / 2) * (step / sqrt(2 * pi))
    forward = free * np.exp(shift * z - shift**2 / 2)
    strike = given * np.exp(side * z - a / 2) + strikes[:, None]
    d, sign = np.log(forward / strike) / left, 1 if call else -1
    return np.asarray((sign * (forward * ndtr(sign * (d + left / 2)) - strike * ndtr(sign * (d - left / 2)))) @ weights)
