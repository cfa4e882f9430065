"""A lower bound on ε of k-of-n rounds whose third record adapts: an attack's exact value, found by a dynamic program.

One round is P = γ·N(x, 1) + (1 − γ)·N(y, 1) against Q = γ·N(x', 1) + (1 − γ)·N(y, 1). The adversary picks (x, x', y),
pairwise at most μ apart, after it has seen the earlier rounds. A *test* is a pair (c, d): the probabilities, under P
and under Q, that the adversary says "P". If a strategy has the test (c, d), then δ(ε) ≥ c − e^ε·d for every ε.

For each node a of a grid of thresholds, the program keeps one test of the remaining rounds, meant for the slope e^a.
With one more round, the adversary picks a triple, sees in which bin i of width h the loss ln(dP/dQ) fell, and continues
with the test of the node a − ih:

    c'(a) = Σ p_i·c(a − ih),    d'(a) = Σ q_i·d(a − ih).

The triple with the largest c' − e^a·d' is kept. So each (c, d) is the test of a real strategy: a coarse grid or few
triples make the bound smaller, never invalid. Two errors remain: rounding, for which `_ROUNDING` per round is
subtracted, and an integral over 401 nodes for triples in a plane, which converges exponentially.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import fft
from scipy.special import ndtr

from privkit.shared.array import Array

Tests = tuple[Array, Array, Array]

_ROUNDING = 1e-15
"""What the Fourier transforms of one round may add to c or e^a·d: the most measured is 7e-16, the mean 1e-16."""


def lower(
    rate: float, mu: float, rounds: int, delta: float, nodes: int = 2600, shapes: Sequence[float] = (0.0, 0.4, 1.0)
) -> float:
    """A lower bound on ε at δ (> 1e-13·rounds, say) of T rounds with γ = rate and records at most μ apart."""
    spread = float(np.sqrt(rounds * _variance(rate, mu)))
    top = 8 * spread
    for _ in range(12):  # a window for the thresholds, from coarse runs
        guess = _epsilon(program(rate, mu, rounds, -0.7 * top, 1.4 * top, 400, shapes[:1]), rounds, delta)
        if guess > 0.9 * top:
            top *= 2
        elif guess < 0.3 * top and top > 4 * spread:
            top = max(top / 2, 4 * spread)
        else:
            break
    top = max(1.1 * guess, 3 * spread)
    return max(guess, _epsilon(program(rate, mu, rounds, -0.7 * top, 1.4 * top, nodes, shapes), rounds, delta))


def program(rate: float, mu: float, rounds: int, low: float, high: float, nodes: int, shapes: Sequence[float]) -> Tests:
    """[nodes] thresholds a from low < 0 to high > 0, and c and e^a·d of the test kept for each."""
    a = np.linspace(low, high, nodes)
    h = a[1] - a[0]
    widest = max(-np.log1p(-rate), np.log1p(rate * np.expm1(mu * (mu / 2 + 8.5))))
    half = int(min(np.ceil(widest / h) + 1, nodes // 2))  # the last bins are open
    size = fft.next_fast_len(nodes + 2 * half, real=True)
    tilt = np.exp(np.arange(-half, half + 1) * h)
    spectra = []
    for t in shapes:
        p, q = bins(rate, mu, t, h, half)
        exchanged = [(q[::-1], p[::-1])] if t < 1 else []  # the equilateral triple is its own mirror image
        spectra += [(fft.rfft(one, size), fft.rfft(other * tilt, size)) for one, other in [(p, q), *exchanged]]
    far = np.exp(low + np.arange(-half, 0) * h)  # far below the window "P" is said at once, far above it "Q"
    c = np.where(a < 0, 1.0, 0.0)
    d = c * np.exp(np.minimum(a, 0.0))
    none = np.zeros(half)
    inside, columns = slice(2 * half, 2 * half + nodes), np.arange(nodes)
    for _ in range(rounds):
        ahead_c = fft.rfft(np.concatenate([np.ones(half), c, none]), size)
        ahead_d = fft.rfft(np.concatenate([far, d, none]), size)
        played_c = np.array([fft.irfft(ahead_c * kernel, size)[inside] for kernel, _ in spectra])
        played_d = np.array([fft.irfft(ahead_d * kernel, size)[inside] for _, kernel in spectra])
        best = (played_c - played_d).argmax(0)
        c, d = played_c[best, columns], played_d[best, columns]
    return a, c, d


def bins(rate: float, mu: float, t: float, h: float, half: int) -> tuple[Array, Array]:
    """[2·half + 1] masses under P and Q of ln(dP/dQ) in bins of width h around −half·h, …, half·h, the last ones open.

    The triple has |x' − y| = |x − x'| = μ and |x − y| = μ√t; y = 0, and x' lies on the first axis.
    """
    edges = (np.arange(-half, half) + 0.5) * h
    if t == 0:  # x = y, and the loss is −ln(1 − γ + γ·e^{μz − μ²/2})
        cut = np.concatenate([[np.inf], (_log(np.expm1(-edges) / rate + 1) + mu**2 / 2) / mu, [-np.inf]])
        p = _mass(cut[1:], cut[:-1], 0.0)
        return p, (1 - rate) * p + rate * _mass(cut[1:], cut[:-1], mu)
    first = mu * t / 2  # x = (first, second)
    second = np.sqrt(mu**2 * t - first**2)
    z, step = np.linspace(-9.5, 9.5 + mu, 401, retstep=True)
    weights = [np.exp(-((z - mean) ** 2) / 2) * step / np.sqrt(2 * np.pi) for mean in (0.0, first, mu)]
    ratio = 1 + rate * np.expm1(mu * z - mu**2 / 2)[:, None]  # of Q to N(y, 1)
    cut = _log((np.expm1(edges) * ratio + ratio - 1) / rate + 1)  # the loss is below an edge if z₂ is below cut
    cut = (cut + mu**2 * t / 2 - first * z[:, None]) / second
    cut = np.pad(cut, ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf)))
    at_y = _mass(cut[:, :-1], cut[:, 1:], 0.0)
    shared = (1 - rate) * (weights[0] @ at_y)
    p = shared + rate * (weights[1] @ _mass(cut[:, :-1], cut[:, 1:], second))
    return p, shared + rate * (weights[2] @ at_y)


def _log(values: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(values, 0.0)))


def _mass(low: Array, high: Array, mean: float) -> Array:
    """P(low < N(mean, 1) ≤ high), with all digits in both tails."""
    low, high = low - mean, high - mean
    right = low > 0
    return np.asarray(ndtr(np.where(right, -low, high)) - ndtr(np.where(right, -high, low)))


def _variance(rate: float, mu: float) -> float:
    """Variance of one round's loss under P, for x = y."""
    z, step = np.linspace(-9.5, 9.5 + mu, 2001, retstep=True)
    weights = np.exp(-(z**2) / 2) * step / np.sqrt(2 * np.pi)
    loss = -np.log1p(rate * np.expm1(mu * z - mu**2 / 2))
    return float(weights @ (loss - weights @ loss) ** 2)


def _epsilon(tests: Tests, rounds: int, delta: float) -> float:
    """The largest ε at which one of the tests has δ."""
    a, c, d = tests
    slack = _ROUNDING * (rounds + 10)
    gain, loss = c - slack - delta, np.maximum(d, 0.0) + slack
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(gain > 0, a + np.log(gain / loss), 0.0), initial=0.0))
