"""The interface of a step: one mechanism of a run with its repetitions, and the quantities that theorems need of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf
from typing import TypeAlias

import numpy as np

from privkit.accountants.bounds.bound import Bound
from privkit.accountants.bounds.loss_distribution import Pair, Profile
from privkit.accountants.bounds.renyi import RENYI_ORDERS
from privkit.accountants.bounds.truncated_losses import Piece
from privkit.shared.array import Array

Pairs: TypeAlias = list[tuple[Profile | Pair, int]]  # privacy profiles of single rounds, and how often each is composed
USUAL_ORDERS = np.array(RENYI_ORDERS)


class Step(ABC):
    """One mechanism of a run. A run is a list of steps with their numbers of repetitions, and its privacy loss is their
    composition.

    Every method describes `count` repetitions together. If a theorem does not apply, the shift or loss is infinite, or
    the result is None. A step must have a Rényi curve (`rdp`); everything else is optional.
    """

    @property
    def orders(self) -> Array:
        """Rényi orders worth trying; all steps of one class share one array."""
        return USUAL_ORDERS

    @property
    def how(self) -> str:
        """The kind of sampling, as words that follow the method's name in a certificate."""
        return ""

    @property
    def source(self) -> str:
        """The source of the Rényi curve, as text."""
        return "Mironov 2017"

    @property
    def profile_source(self) -> str:
        """The source of the profiles in `pairs`; empty if the source of numerical composition is enough."""
        return ""

    @property
    def remark(self) -> str:
        """Words that say why a Gaussian with this `shift` may overstate the privacy loss; empty if it does not."""
        return ""

    @property
    def reached(self) -> bool:
        """Whether one pair of neighbors attains the profiles of `pairs` in both directions."""
        return False

    @property
    def gains(self) -> bool:
        """Whether composition on a coarse grid gives a smaller bound than the closed forms."""
        return False

    @abstractmethod
    def rdp(self, orders: Array, count: int) -> Array:
        """Upper bounds on the Rényi divergence of `count` repetitions at A orders α > 1: float [A]."""

    def fine_rdp(self, orders: Array, count: int) -> Array:
        """Upper bounds like `rdp`, [A], and never larger. If `rdp` interpolates between orders, slower integrals are
        used."""
        return self.rdp(orders, count)

    def shift(self, count: int) -> float:
        """μ ≥ 0 of one Gaussian release that dominates `count` repetitions; `inf` if none is known."""
        return inf

    def pure(self, count: int) -> float:
        """The largest privacy loss of `count` repetitions, in nats; `inf` if it is unbounded."""
        return inf

    def most(self, count: int) -> list[tuple[float, int]]:
        """The independent releases of `count` repetitions, as pairs (largest privacy loss in nats, number of such
        releases). The list is empty if a loss is unbounded."""
        return []

    def exact(self, count: int) -> Bound | None:
        """An exact bound other than the bound of one Gaussian with this `shift`; None if none is known."""
        return None

    def pairs(self, count: int) -> Pairs | None:
        """Privacy profiles that dominate `count` repetitions, for numerical composition; None if none are known."""
        return None

    def joined(self, count: int) -> Pairs | None:
        """Profiles of several rounds together that compose to a smaller δ than `pairs`; None if none are known."""
        return None

    def pieces(self, count: int) -> list[Piece] | None:
        """The step's releases as groups of equal releases, for composition on a coarse grid, which rounds losses to a
        few nodes. None if this is not possible; empty if the releases do not depend on the record."""
        return None

    def attained(self, count: int) -> Pairs | None:
        """Profiles that one pair of neighbors attains in one direction, P against Q; they are used if `reached` is
        false."""
        return None


Steps: TypeAlias = Sequence[tuple[Step, int]]  # a run: steps, and how often each is repeated
