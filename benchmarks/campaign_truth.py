"""The true privacy loss of one pair of neighboring datasets: bounds on its ε, δ and Rényi divergence.

The code uses numpy, scipy and mpmath, but nothing of privkit. A mechanism's privacy loss is that of its worst pair, so
a value for one pair is a lower bound on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, expm1, inf, log, log1p, pi, sqrt
from typing import Literal

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, logsumexp

Array = NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Independent repetitions of one noisy release, for two neighboring datasets.

    Attributes:
        shift: [J] distance between the two means, divided by the noise's scale, for each of the J values of public
            coins.
        weight: [J] probabilities of these values; they sum to 1, or to less if a lower bound leaves some out.
        rounds: number of repetitions, each with its own coins.
        rate: probability with which a release depends on the changed record; whether it does is secret.
        law: "gaussian" or "laplace" (one coordinate).
        pair: the distribution of a release that does not depend on the changed record: "up" and "down" mean the second
            neighbor's distribution (for the two directions), "middle" a distribution halfway between both.
    """

    shift: Array
    weight: Array
    rounds: int = 1
    rate: float = 1.0
    law: Literal["gaussian", "laplace"] = "gaussian"
    pair: Literal["up", "down", "middle"] = "up"


def part(shift: float, rounds: int = 1, **more: object) -> Part:
    """A part without public coins."""
    return Part(shift=np.array([shift]), weight=np.ones(1), rounds=rounds, **more)  # type: ignore[arg-type]


# One release ---------------------------------------------------------------------------------------------------------


def log_profile(epsilon: float | Array, mu: Array) -> Array:
    """ln δ of N(μ, 1) against N(0, 1), as μ/2·∫_{ε/μ}^∞ erfcx((v + μ/2)/√2)·e^{−(v − μ/2)²/2} dv: no cancellation."""
    e, m = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(mu, float))
    safe = np.where(m > 0, m, 1.0)
    start = np.maximum(e / safe, safe / 2 - 9)
    a = np.maximum(e / safe - safe / 2, -9.0)
    length = np.sqrt(np.maximum(a, 0) ** 2 + 81) - a
    w = length[..., None] * (NODES + 1) / 2
    inside = erfcx((start[..., None] + w + safe[..., None] / 2) / sqrt(2)) * np.exp(-a[..., None] * w - w * w / 2)
    with np.errstate(divide="ignore"):
        logs = np.log(safe / 2) - a * a / 2 + np.log((inside * WEIGHTS).sum(-1) * length / 2)
    return np.where(m > 0, np.minimum(logs, 0.0), -inf)


def log_laplace(epsilon: float, shift: Array) -> Array:
    """ln δ(ε) of a Laplace variable whose mean differs by `shift` scales."""
    with np.errstate(divide="ignore"):
        return np.log(-np.expm1(np.minimum(epsilon - shift, 0.0) / 2))


def log_delta_once(one: Part, epsilon: float) -> float:
    """ln δ(ε) of one release; for a sampled release, it is exact for the pair "up"."""
    g = one.rate
    base = epsilon if g == 1 else (log1p(expm1(epsilon) / g) if epsilon < 30 else epsilon - log(g))
    profile = log_laplace if one.law == "laplace" else log_profile
    with np.errstate(divide="ignore"):
        return float(logsumexp(profile(base, one.shift) + np.log(one.weight)) + log(g))


def log_delta_hidden(one: Part, epsilon: float) -> float:
    """ln δ(ε) of one round with secret coins, Σ w_j N(μ_j, 1) against N(0, 1); a half line is the worst event."""
    m, w = one.shift, np.log(np.maximum(one.weight, 1e-320))
    loss = lambda y: float(logsumexp(w + m * y - m * m / 2))  # noqa: E731
    if m.max() == 0:
        return -inf
    far = 60.0
    while loss(far) < epsilon:
        far *= 2
    if loss(-far) > epsilon:
        return log(-expm1(0.0)) if epsilon > 0 else -inf
    y = brentq(lambda y: loss(y) - epsilon, -far, far, xtol=1e-12)
    first, second = float(logsumexp(w + log_ndtr(m - y))), epsilon + float(log_ndtr(-y))
    return first + log1p(-exp(second - first)) if second < first else -inf


def invert(log_delta: Callable[[float], float], delta: float) -> float:
    """The ε at which δ(ε) falls to `delta`; 0 if δ(0) is already smaller."""
    target = log(delta)
    gap = lambda e: max(log_delta(e) - target, -1e4)  # noqa: E731
    if gap(0.0) <= 0:
        return 0.0
    high = 1e-9
    while gap(high) > 0:
        high *= 4
        if high > 1e18:
            return inf
    return float(brentq(gap, high / 4 if high > 1e-9 else 0.0, high, xtol=1e-13, rtol=1e-12))


# Rényi divergence ----------------------------------------------------------------------------------------------------


def renyi(one: Part, order: float) -> float:
    """Rényi divergence D_α of one release in the direction `one.pair`, or a lower bound on it."""
    if one.rate < 1:
        inner = np.array([_sampled_moment(one, shift, order) for shift in one.shift.tolist()])
    elif one.law == "laplace":
        return _laplace_renyi(float(one.shift[0]), order)
    else:
        inner = order * (order - 1) / 2 * one.shift**2
    if inner.max() < 1:  # keeps the digits of small divergences
        return log1p(max(0.0, float(one.weight @ np.expm1(inner)) / float(one.weight.sum()))) / (order - 1)
    with np.errstate(divide="ignore"):
        return float(logsumexp(np.log(one.weight) + inner)) / (order - 1)


def _laplace_renyi(shift: float, order: float) -> float:
    """Rényi divergence of Laplace noise without coins; with 50 digits, since most of them cancel for a small shift."""
    with mpmath.workdps(50):
        t, a = mpmath.mpf(shift), mpmath.mpf(order)
        total = (a * mpmath.exp((a - 1) * t) + (a - 1) * mpmath.exp(-a * t)) / (2 * a - 1)
        return float(mpmath.log(total) / (a - 1))


def _sampled_moment(one: Part, shift: float, order: float) -> float:
    """ln ∫ p^α q^{1−α} for the densities p and q of a sampled release, by the trapezoidal rule."""
    g, far = one.rate, 14 + order * shift
    step = min(0.05, 0.3 / max(shift, 1e-9), 0.5 / sqrt(order))
    if 2 * far / step > 4e5 or one.law == "laplace":
        return 0.0  # a lower bound, since no divergence is negative
    y = np.arange(-far, far, step)
    none, density = log1p(-g), -y * y / 2 - log(2 * pi) / 2 + log(step)
    mixed = np.logaddexp(none, log(g) + shift * y - shift**2 / 2)
    if one.pair == "middle":
        second = np.logaddexp(none, log(g) - shift * y / 2 - shift**2 / 8)
        first = np.logaddexp(none, log(g) + shift * y / 2 - shift**2 / 8)
        return float(logsumexp(density + order * first + (1 - order) * second))
    power = order if one.pair == "up" else 1 - order
    moment = float(logsumexp(density + power * mixed))
    if moment < 1e-3:  # Σ(L^p − 1 − p(L − 1)) loses no digits
        with np.errstate(over="ignore", invalid="ignore"):
            curved = power * (power - 1) / 2 * mixed**2 * (1 + (power + 1) / 3 * mixed)  # series to x⁴
            gap = np.where(np.abs(mixed) * abs(power) < 1e-5, curved, np.expm1(power * mixed) - power * np.expm1(mixed))
            inside = np.exp(density) * gap
        total = float(inside.sum())
        return log1p(max(total, 0.0)) if np.isfinite(total) else max(moment - 1e-12, 0.0)
    return moment
