"""Gaussian releases of constant shift: from everyone, from k of n clients, or Poisson-sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Literal

import numpy as np

from privkit.accountants.bounds import gaussian, sampled_renyi
from privkit.accountants.bounds.bound import ClosedForm
from privkit.accountants.bounds.renyi import SAMPLED_ORDERS
from privkit.accountants.bounds.step import USUAL_ORDERS, Pairs, Step
from privkit.accountants.bounds.subsampling import amplify, deamplify, without_replacement_delta
from privkit.accountants.bounds.third_record import rounds_profile
from privkit.accountants.bounds.truncated_losses import Piece
from privkit.shared.array import Array

Sampling = Literal["every_round", "without_replacement", "poisson"]

BALLE_BARTHE_GABOARDI = "Balle, Barthe and Gaboardi 2018, Theorem 9"
_CERTAIN = np.ones(1)  # probability of the only shift
_POISSON = "Balle, Barthe and Gaboardi 2018, Theorem 8"
_HOW = {"every_round": "", "without_replacement": ", sampled k of n", "poisson": ", Poisson-sampled"}
_RENYI = {
    "every_round": "Mironov 2017",
    "without_replacement": "Balle, Barthe and Gaboardi 2018, Theorem 9; Wang, Balle and Kasiviswanathan 2019",
    "poisson": "Mironov, Talwar and Zhang 2019",
}


@dataclass(frozen=True, kw_only=True)
class SampledStep(Step):
    """Releases that each contain the protected record or client with probability `rate`. It is 1 if everyone takes
    part."""

    rate: float = 1.0  # γ = k/n for a secret sample of k of n clients; q for Poisson sampling

    @property
    def sampled(self) -> Sampling:
        """The kind of sampling by which clients take part in a release."""
        return "without_replacement" if self.rate < 1 else "every_round"

    @property
    def orders(self) -> Array:
        return SAMPLED_ORDERS if self.rate < 1 else USUAL_ORDERS

    @property
    def how(self) -> str:
        return _HOW[self.sampled]

    @property
    def source(self) -> str:
        return _RENYI[self.sampled]


@dataclass(frozen=True, kw_only=True)
class GaussianRelease(SampledStep):
    """Gaussian releases that all have the same shift `mu`."""

    mu: float  # shift of one release in standard deviations of the noise, ≥ 0
    sampling: Sampling = "every_round"  # how the members of a release are chosen; the rate is 1 with "every_round"
    worst: bool = True  # whether a pair of neighbors is known that attains the profile

    @property
    def sampled(self) -> Sampling:
        return self.sampling

    @property
    def remark(self) -> str:
        return ", nothing credited to sampling" if self.rate < 1 else ""

    @property
    def reached(self) -> bool:
        return self.worst and (self.rate == 1 or self.sampling == "poisson")

    def rdp(self, orders: Array, count: int) -> Array:
        return np.asarray(count * type(self).curves([self], orders)[0], float)

    def fine_rdp(self, orders: Array, count: int) -> Array:
        if self.rate == 1:
            return self.rdp(orders, count)
        poisson = self.sampling == "poisson"
        curve = sampled_renyi.poisson_gaussian_curve if poisson else sampled_renyi.without_replacement_gaussian_curve
        return np.minimum(self.rdp(orders, count), count * curve(orders, self.rate, self.mu))

    @staticmethod
    def curves(releases: Sequence[GaussianRelease], orders: Array) -> Array:
        """Rényi curves of R single releases with the same kind of sampling, at A orders: float [R, A]."""
        mu, rate = np.array([one.mu for one in releases]), np.array([one.rate for one in releases])
        if releases[0].sampling == "poisson":
            return sampled_renyi.poisson_gaussian_rdp(orders, rate, mu)
        if releases[0].sampling == "without_replacement":
            return sampled_renyi.fixed_size_gaussian_rdp(orders, rate, mu)
        return gaussian.rdp(orders, mu[:, None])

    def shift(self, count: int) -> float:
        return sqrt(count * self.mu**2)

    def exact(self, count: int) -> ClosedForm | None:
        """The exact bound of one sampled release; None for several releases, or without sampling.

        Under Poisson sampling, the bound compares the release with the record to the release without it, which is the
        worse direction.
        """
        if count > 1 or self.rate in (0, 1):
            return None
        rate, mu = self.rate, self.mu

        def epsilon(delta: float) -> float:
            return 0.0 if delta >= rate else float(amplify(gaussian.epsilon(delta / rate, mu), rate))

        return ClosedForm(
            method="exact sampled profile",
            source=BALLE_BARTHE_GABOARDI if self.sampling == "without_replacement" else _POISSON,
            to_epsilon=epsilon,
            to_log_delta=lambda epsilon: log(rate) + float(gaussian.log_delta(deamplify(epsilon, rate), mu)),
        )

    def pairs(self, count: int) -> Pairs | None:
        if self.sampling == "poisson":
            return [(gaussian.poisson_profiles(self.rate, self.mu), count)]
        return [(self._profile, count)]

    def joined(self, count: int) -> Pairs | None:
        if self.sampling != "without_replacement" or not 0 < self.rate < 1 or count == 1:
            return None
        several = rounds_profile(self.rate, self.mu, count)
        return None if several is None else [several]

    @property
    def gains(self) -> bool:
        return 0 < self.rate < 1 and self.mu > 0

    def pieces(self, count: int) -> list[Piece]:
        if self.rate == 0 or self.mu == 0:
            return []
        sampled = self.sampling == "poisson" and self.rate < 1
        return [Piece(np.array([self.mu]), _CERTAIN, self.rate, count, sampled)]

    def attained(self, count: int) -> Pairs | None:
        """The profiles that a known pair of neighbors attains under sampling of k of n clients. One neighbor has a
        record where the other has a zero record, and all other records are zero."""
        return [(gaussian.poisson_profiles(self.rate, self.mu), count)] if self.worst else None

    def _profile(self, epsilon: Array) -> Array:
        if self.rate == 1:
            return gaussian.fast_delta(epsilon, self.mu)
        return without_replacement_delta(epsilon, self.rate, lambda e: gaussian.fast_delta(e, self.mu))
