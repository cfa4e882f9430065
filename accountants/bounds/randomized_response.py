"""k-ary randomized response: pure ε, Rényi curve and privacy profile of one answer or of many.

In all functions, an answer is replaced with probability p in [1e-300, 1] (`noise`) by a uniform draw from all k ≥ 2
categories (`classes`), the true category included.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log, log1p

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, xlogy

from privkit.accountants import validate
from privkit.accountants.bounds.bound import ClosedForm
from privkit.accountants.bounds.loss_distribution import Profile
from privkit.accountants.bounds.step import Pairs, Step
from privkit.accountants.bounds.subsampling import checked_orders, finite_numbers
from privkit.shared.array import Array

_MOST_ANSWERS = 1_000  # number of answers up to which the profile is summed exactly; above it, they are composed


@dataclass(frozen=True, kw_only=True)
class RandomizedAnswer(Step):
    """One answer of randomized response with k = `classes`. The bounds assume the worst case: neighbors differ in every
    answer of a run."""

    noise: float  # p in [1e-300, 1], the probability of a uniform draw
    classes: int  # k ≥ 2, the number of categories

    def rdp(self, orders: Array, count: int) -> Array:
        return np.asarray(count * rdp(orders, self.noise, self.classes), float)

    def pure(self, count: int) -> float:
        return count * pure_epsilon(self.noise, self.classes)

    def most(self, count: int) -> list[tuple[float, int]]:
        return [(self.pure(1), count)]

    def exact(self, count: int) -> ClosedForm | None:
        if count > _MOST_ANSWERS:
            return None
        how = (self.noise, self.classes, count)
        return ClosedForm.of_profile(
            "exact profile of all answers",
            "Kairouz, Oh and Viswanath 2015",
            lambda at: epsilon(at, *how),
            lambda at: float(delta(at, *how)),
        )

    def pairs(self, count: int) -> Pairs | None:
        return [(profile(self.noise, self.classes), count)]


def pure_epsilon(noise: float, classes: int) -> float:
    """The ε of one answer at δ = 0: ln(1 + k(1 − p)/p). With probability p (`noise`) the answer is a uniform draw from
    k categories (`classes`).

    Source: Warner 1965 (k = 2); Kairouz, Bonawitz and Ramage 2016.
    """
    p, k = _checked_response(noise, classes)
    return log1p(k * (1 - p) / p)


def noise_for(epsilon: float, classes: int) -> float:
    """The probability p = k/(e^ε − 1 + k) for which one answer is ε-DP, if it is replaced with probability p by a
    uniform draw from k categories (`classes`).
    """
    e, k = validate.real("epsilon", epsilon, above=0, most=700), validate.whole("classes", classes, least=2)
    return k / (expm1(e) + k)


def rdp(orders: ArrayLike, noise: float, classes: int) -> Array:
    """The exact Rényi divergence, at A orders α > 1, of two answers whose true categories differ: float [A].

    It is ln(a^α·b^{1−α} + b^α·a^{1−α} + (k − 2)·b)/(α − 1). Here a = 1 − p + p/k is the probability of the true
    category, and b = p/k the probability of any other category; p is the `noise` and k the number of `classes`.

    Source: definition; Mironov 2017, Proposition 5 for k = 2.
    """
    a, (p, k) = checked_orders(orders), _checked_response(noise, classes)
    lie, loss = p / k, log1p(k * (1 - p) / p)
    with np.errstate(over="ignore", invalid="ignore"):  # the moment minus 1, as a product of two differences
        gain = -lie * np.expm1(-(a - 1) * loss) * np.expm1(a * loss)
    large = np.logaddexp(log(lie) + a * loss, log1p(-lie))  # an upper bound: it raises a small term
    moment = np.where(a * loss < 600, np.log1p(np.maximum(np.where(a * loss < 600, gain, 0.0), 0.0)), large)
    return np.minimum(moment / (a - 1), loss)


def delta(epsilon: ArrayLike, noise: float, classes: int, answers: int = 1) -> Array:
    """The exact δ at ε ≥ 0 of n = `answers` ≤ 1000 independent answers whose true categories all differ. An answer is
    replaced with probability p (`noise`) by a uniform draw from k categories (`classes`).

    The result is Σ_j P[loss = j·ε₀]·(1 − e^{ε − j·ε₀})₊ with the ε₀ of one answer (`pure_epsilon`). The loss of an
    answer is ε₀ with the probability 1 − p + p/k of the true category, −ε₀ with the probability p/k of the neighbor's
    category, and 0 otherwise. So the sum of n losses is trinomial.

    Source: Kairouz, Oh and Viswanath 2015 (k = 2); k > 2 is derived likewise.
    """
    e = finite_numbers("epsilon", epsilon, least=0)
    losses, log_mass = _sums_of_losses(noise, classes, validate.whole("answers", answers, most=_MOST_ANSWERS))
    gap = np.minimum(e.ravel()[:, None] - losses, 0.0)
    with np.errstate(under="ignore"):
        deltas = -np.expm1(gap) @ np.exp(log_mass)
    return np.asarray(np.clip(deltas, 0.0, 1.0).reshape(e.shape))


def epsilon(delta_: float, noise: float, classes: int, answers: int = 1) -> float:
    """The smallest ε at δ in (0, 1) of n = `answers` independent answers; `noise` and `classes` are as in `delta`. The
    result is exact, rounded up, and at most n times the ε of one answer."""
    d = validate.delta(delta_)
    losses, log_mass = _sums_of_losses(noise, classes, validate.whole("answers", answers, most=_MOST_ANSWERS))
    order = np.argsort(losses)[::-1]
    losses, mass = losses[order], np.exp(log_mass[order])
    above = np.cumsum(mass)
    # Between two losses δ(ε) = Σ mass − e^ε·Σ mass·e^{−loss}, over the losses above ε.
    discounted = np.logaddexp.accumulate(log_mass[order] - losses)
    with np.errstate(divide="ignore", invalid="ignore"):
        solved = np.log(np.maximum(above - d, 0.0)) - discounted
    lower = np.append(losses[1:], -np.inf)
    inside = np.flatnonzero((above > d) & (solved >= lower))
    if not inside.size:
        return 0.0
    root = float(solved[inside[0]])
    return max(0.0, min(root + 1e-13 * (1 + abs(root)), float(losses[0])))  # raised by more than rounding errors


def profile(noise: float, classes: int) -> Profile:
    """The privacy profile (a function from ε ≥ 0 to δ) of one answer, for numerical composition. The composition is
    exact only if the answer's `pure_epsilon` is a node of its grid; otherwise it is an upper bound."""
    p, k = _checked_response(noise, classes)
    lie, loss = p / k, pure_epsilon(p, k)
    truth = 1 - p + lie
    return lambda epsilon: np.where(epsilon < loss, np.maximum(truth - np.exp(np.minimum(epsilon, loss)) * lie, 0), 0.0)


def _sums_of_losses(noise: float, classes: int, answers: int) -> tuple[Array, Array]:
    """Every possible sum of n losses, and the logarithm of its probability under the true categories: both [2n + 1]."""
    p, k = _checked_response(noise, classes)
    lie = p / k
    down = np.arange(answers + 1)[:, None]
    up = np.arange(answers + 1)[None]
    rest = answers - up - down
    inside = rest >= 0
    still = np.where(inside, rest, 0)
    term = gammaln(answers + 1) - gammaln(up + 1) - gammaln(down + 1) - gammaln(still + 1)
    term = term + up * log1p(-p + lie) + xlogy(down, lie) + xlogy(still, (k - 2) * lie)
    term = np.where(inside, term, -np.inf)
    peak = term.max()
    index = (up - down + answers).ravel()
    with np.errstate(under="ignore", divide="ignore"):
        mass = np.bincount(index, np.exp(term - peak).ravel(), 2 * answers + 1)
        log_mass = np.log(mass) + peak
    loss = pure_epsilon(p, k)
    return loss * np.arange(-answers, answers + 1.0), log_mass


def _checked_response(noise: float, classes: int) -> tuple[float, int]:
    return validate.real("noise_parameter", noise, least=1e-300, most=1), validate.whole("classes", classes, least=2)
