"""Gaussian releases whose shift is random and public, because of random mixing ratios or visible participation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from privkit.accountants.bounds import gaussian, sampled_renyi, subsampling
from privkit.accountants.bounds.bound import ClosedForm
from privkit.accountants.bounds.loss_distribution import Profile
from privkit.accountants.bounds.mean_profile import mean_profile
from privkit.accountants.bounds.sampled import BALLE_BARTHE_GABOARDI, SampledStep
from privkit.accountants.bounds.step import Pairs
from privkit.accountants.bounds.truncated_losses import Piece
from privkit.accountants.spec.shift import FEW, ShiftLaw
from privkit.shared.array import Array

_POINTS = 64  # most values of the shift in coarse composition; if there are more, values are raised until 64 are left
_CHUNK = 1 << 17  # elements of ε × nodes that are in memory at a time
_MANY = 1 << 20  # elements of ε × nodes from which polynomials on panels are faster
_BLOCK = 1 << 20  # orders × nodes that are in memory at a time
_MOST_NODES = 4_000
"""Values of the shift above which composing the profile takes minutes; small shifts are then raised to a few values."""
_MEAN = "derived: mean of the exact Gaussian profiles over the coins, as if the adversary knew them"


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicMixture(SampledStep):
    """Gaussian releases of random shift μ. The server learns μ with the release.

    Let δ_G(ε; μ) be the profile of a Gaussian release. If participation is a secret sample of rate γ, a round has the
    profile γ·E δ_G(ln(1 + (e^ε − 1)/γ); μ). This is the mean of the profiles of sampled releases with fixed shift. So
    the shift can be treated as public.
    """

    law: ShiftLaw  # the distribution of the shift

    @property
    def remark(self) -> str:
        return " at the largest shift" + (", nothing credited to sampling" if self.rate < 1 else "")

    @property
    def reached(self) -> bool:
        return self.rate == 1 and self.law.mu.size <= _MOST_NODES

    @property
    def few(self) -> bool:
        """Whether the Rényi curve of a round is computed for each value of the shift, and then averaged. This is done
        if clients are sampled, and the shift has at most `FEW` values and an exact profile."""
        return self.rate < 1 and self.law.profile and self.law.mu.size <= FEW

    def rdp(self, orders: Array, count: int) -> Array:
        if self.rate == 1:
            return np.asarray(count * rdp(orders, self.law), float)
        if self.few:
            each = sampled_renyi.fixed_size_gaussian_rdp(orders, self.rate, self.law.mu)
            return count * self._mean_curve(orders, each)
        curve = sampled_renyi.without_replacement_rdp(orders, self.rate, lambda order: rdp(order, self.law))
        return np.asarray(count * curve, float)

    def fine_rdp(self, orders: Array, count: int) -> Array:
        if not self.few:
            return self.rdp(orders, count)
        each = [sampled_renyi.without_replacement_gaussian_curve(orders, self.rate, mu) for mu in self.law.mu.tolist()]
        return np.minimum(self.rdp(orders, count), count * self._mean_curve(orders, np.array(each)))

    def shift(self, count: int) -> float:
        return sqrt(float(self.law.mu.max()) ** 2 * count)

    def exact(self, count: int) -> ClosedForm | None:
        profile = self._profile(self.law)
        if profile is None or count > 1:
            return None
        sampled = self.rate < 1
        return ClosedForm.of_profile(
            f"mean of the {'sampled' if sampled else 'exact'} profiles over the coins",
            f"{BALLE_BARTHE_GABOARDI}; {_MEAN}" if sampled else _MEAN,
            lambda delta: invert(profile, delta),
            lambda epsilon: float(profile(np.array(epsilon))),
        )

    def pairs(self, count: int) -> Pairs | None:
        profile = self._profile(self.law if self.law.mu.size <= _MOST_NODES else self.law.raised())
        return None if profile is None else [(profile, count)]

    @property
    def gains(self) -> bool:
        return self.law.profile and self.rate > 0 and bool(self.law.mu.max() > 0)

    def pieces(self, count: int) -> list[Piece] | None:
        if not self.law.profile:
            return None
        law = self.law.raised(_POINTS)
        moves = law.mu > 0
        if self.rate == 0 or not moves.any():
            return []
        return [Piece(law.mu[moves], np.exp(law.log_weight)[moves], self.rate, count, False)]

    def _mean_curve(self, orders: Array, curves: Array) -> Array:
        """The Rényi curve [A] of the mixture: the moments e^{(α − 1)·ε(α)} of J curves, [J, A], are averaged."""
        return _log_mean_exp((orders - 1)[:, None] * curves.T, self.law.log_weight) / (orders - 1)

    def _profile(self, law: ShiftLaw) -> Profile | None:
        """The profile of one release with this law of the shift; None if `law` holds for the Rényi divergence only."""
        if not law.profile:
            return None
        base, rate = profile(law), self.rate
        return base if rate == 1 else lambda epsilon: subsampling.without_replacement_delta(epsilon, rate, base)


def profile(law: ShiftLaw) -> Profile:
    """The privacy profile δ(ε) = E_λ δ_G(ε; μ(λ)) of a Gaussian release whose mixing ratio λ is random and known to the
    server.

    δ_G(ε; μ) is the profile of a Gaussian release of shift μ, and `law` is the distribution of the shift. The mean is
    exact, since the ratios are independent of the data.

    Source: derived; DP-CutMixSL Theorem 1 has a fixed λ instead.
    """
    weight = np.exp(law.log_weight)
    some = (weight > 0) & (law.mu > 0)  # weights that are left out are below the smallest float
    mu, weight = law.mu[some], weight[some]

    def delta(epsilon: ArrayLike) -> Array:
        e = np.asarray(epsilon, float)
        if not mu.size:
            return np.zeros(e.shape)
        if e.size * mu.size > _MANY:
            values, place = np.unique(e, return_inverse=True)
            return mean_profile(values, mu, weight)[place.reshape(e.shape)]
        if e.size == 1:  # by logarithms, which keep all digits
            one = np.exp(gaussian.log_delta(e.ravel(), mu)) @ weight
            return np.full(e.shape, min(float(one), 1.0))
        flat, deltas = e.ravel(), np.empty(e.size)
        step = max(1, _CHUNK // mu.size)
        for start in range(0, flat.size, step):
            part = flat[start : start + step, None]
            deltas[start : start + step] = gaussian.fast_delta(part, mu) @ weight
        return np.minimum(deltas, 1.0).reshape(e.shape)

    return delta


def rdp(orders: ArrayLike, law: ShiftLaw) -> Array:
    """The Rényi divergence of a Gaussian release of random shift μ, at orders α > 1: ε(α) = ln E
    exp((α−1)·α·μ²/2)/(α−1).

    `law` is the distribution of μ for the record that differs between neighbors, not for the record with the largest
    mixing ratio of its group.

    Source: derived for published ratios; for hidden ratios it is an upper bound, by joint convexity.
    """
    a = np.asarray(orders, float)
    flat, curve = a.ravel(), np.empty(a.size)
    squared, step = law.mu**2, max(1, _BLOCK // law.mu.size)
    with np.errstate(under="ignore"):
        for start in range(0, flat.size, step):
            some = flat[start : start + step]
            curve[start : start + step] = _log_mean_exp(((some - 1) * some / 2)[:, None] * squared, law.log_weight)
    return np.asarray((curve / (flat - 1)).reshape(a.shape))


def _log_mean_exp(exponents: Array, log_weight: Array) -> Array:
    """ln E e^y at A orders over J values y ≥ 0, [A, J] → [A]; as ln(1 + E(e^y − 1)), a tiny value keeps its digits."""
    if exponents.max() < 1:
        return np.asarray(np.log1p(np.einsum("aj,j->a", np.expm1(exponents), np.exp(log_weight))))
    with np.errstate(divide="ignore"):
        gains = np.where(exponents > 40, exponents, np.log(np.expm1(np.minimum(exponents, 40))))
    return np.asarray(np.logaddexp(0, logsumexp(gains + log_weight, axis=1)))


def invert(profile: Profile, delta: float) -> float:
    """The smallest ε ≥ 0 at which the privacy profile (a function from ε to δ) is at most `delta`."""

    def at(epsilon: float) -> float:
        return float(profile(np.array(epsilon)))

    if at(0.0) <= delta:
        return 0.0
    from scipy.optimize import brentq  # takes as long to import as everything else

    high = 1.0
    while at(high) > delta:
        high *= 2

    def gap(epsilon: float) -> float:
        value = at(epsilon)
        return log(value) - log(delta) if value > 0 else -inf

    found = float(brentq(lambda e: max(gap(e), -1e3), 0.0, high, xtol=1e-300, rtol=1e-13))
    while at(found) > delta:  # the root may lie on either side
        found *= 1 + 2e-13
    return found
