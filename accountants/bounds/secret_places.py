"""k of t secret places, each of which holds one Gaussian shift: random allocation of rounds, and hidden masks."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from privkit.accountants.bounds import allocation, gaussian, round_profiles
from privkit.accountants.bounds.step import Pairs, Step
from privkit.shared.array import Array

ORDERS = np.concatenate([[1.25, 1.5], np.arange(2.0, 65.0), [96.0, 128.0]])
"""Orders at which curves of secret places are tried; the time grows with the square of the largest."""
_MOST_OVERLAPS = 1_024
"""Places up to which the exact overlap of two or three subsets is summed."""


@dataclass(frozen=True, kw_only=True)
class SecretPlaces(Step):
    """A shift in k of t places, drawn uniformly and secretly: split at random into k blocks, each of which holds one.

    A uniform choice of one place in each block of a uniform partition is a uniform subset. Telling the partition cannot
    lower a divergence (joint convexity), and then the blocks are independent. More than half of the places are as many
    as are left, and a shift that is told: along (1, …, 1) every subset moves the mean by k/√t, and across it a subset
    and its complement mirror each other, so that k of t is t − k of t and one Gaussian of μ²(2k − t).

    Attributes:
        chosen: k in 1..t.
        places: t.
        mu: shift in one place, ≥ 0.
        masked: whether the places are patches of a release; else they are rounds.
    """

    chosen: int
    places: int
    mu: float
    masked: bool = False

    @property
    def orders(self) -> Array:
        return ORDERS

    @property
    def how(self) -> str:
        return ", hidden masks" if self.masked else ", random allocation"

    @property
    def source(self) -> str:
        if self.masked:
            return "derived: a hidden mask under addition is a random allocation over patches"
        return "Feldman and Shenfeld 2025"

    @property
    def remark(self) -> str:
        return ", all secrets told"

    @property
    def known(self) -> int:
        """Places that are told."""
        return max(2 * self.chosen - self.places, 0)

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """(places of a block, how many such blocks)."""
        hidden = min(self.chosen, self.places - self.chosen)
        size, larger = divmod(self.places, max(hidden, 1))
        return [(block, count) for block, count in ((size, hidden - larger), (size + 1, larger)) if count > 0]

    def rdp(self, orders: Array, count: int) -> Array:
        rest = np.zeros_like(orders)
        for block, number in self.blocks:
            rest = rest + number * allocation.rdp(orders, block, self.mu)
        hidden = min(self.chosen, self.places - self.chosen)
        for i in np.flatnonzero(np.isin(orders, (2, 3))) if hidden > 1 and self.places <= _MOST_OVERLAPS else ():
            whole = allocation.log_overlap(int(orders[i]), hidden, self.places, self.mu) / (orders[i] - 1)
            reverse = sum(number * allocation.reverse_rdp(orders[i], block, self.mu) for block, number in self.blocks)
            rest[i] = min(rest[i], max(whole, reverse))
        told = gaussian.rdp(orders, self.mu * sqrt(self.known * count))
        return np.minimum(told + count * rest, gaussian.rdp(orders, self.shift(count)))

    def shift(self, count: int) -> float:
        return sqrt(self.chosen * count) * self.mu

    def pairs(self, count: int) -> Pairs | None:
        pairs: Pairs = [(allocation.profile(block, self.mu), count * number) for block, number in self.blocks]
        if self.known:
            pairs.append((round_profiles.gaussian_profile(self.mu * sqrt(self.known * count)), 1))
        return pairs or None


@dataclass(frozen=True, kw_only=True)
class ToldPlaces(Step):
    """A shift in k secret places, charged as if the server knew them: one Gaussian, since no credit is derived.

    Attributes:
        chosen: k.
        mu: shift in one place, ≥ 0.

    Source: derived: joint convexity.
    """

    chosen: int
    mu: float

    @property
    def remark(self) -> str:
        return ", all secrets told"

    def rdp(self, orders: Array, count: int) -> Array:
        return gaussian.rdp(orders, self.shift(count))

    def shift(self, count: int) -> float:
        return sqrt(self.chosen * count) * self.mu
