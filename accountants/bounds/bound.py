"""The contract of a bound: an upper limit on ε at δ and on δ at ε, both by one theorem."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Self

import numpy as np

from privkit.shared.array import Array


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The answer of a bound: ε ≥ 0, or ln δ ≤ 0. If the theorem proves nothing, ε is `inf`, or ln δ is 0."""

    value: float
    order: float | None = None  # Rényi order at which it was found; None if no order is involved
    at_edge: bool = False  # whether that order is the first or last of those tried
    lower: float | None = None  # a proven lower limit on the same quantity, if one is known


class Bound(ABC):
    """One theorem, applied to one run."""

    method: str  # name of the method, for a certificate
    source: str  # paper and theorem
    exact: bool  # whether the limit is exact for a run that attains the losses that its specification allows

    @abstractmethod
    def epsilon(self, delta: float) -> Limit:
        """Smallest ε that the theorem proves at δ in (0, 1)."""

    @abstractmethod
    def log_delta(self, epsilon: float) -> Limit:
        """Smallest ln δ that the theorem proves at ε ≥ 0."""

    def log_deltas(self, epsilons: Array) -> Array:
        """The smallest proven ln δ at each of [J] ε: [J]."""
        return np.array([self.log_delta(epsilon).value for epsilon in epsilons.tolist()])

    @property
    def batch(self) -> Hashable:
        """A key: bounds with equal keys are computed together, in one pass over arrays."""
        return id(self)

    @classmethod
    def epsilons(cls, bounds: Sequence[Self], deltas: Array) -> list[Limit]:
        """`epsilon` of bounds with the same `batch` key, each at its own δ."""
        return [bound.epsilon(delta) for bound, delta in zip(bounds, deltas.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosedForm(Bound):
    """A bound that is a formula, or one integral, in both directions: ε at δ in (0, 1), and ln δ at ε ≥ 0."""

    method: str
    source: str
    to_epsilon: Callable[[float], float]
    to_log_delta: Callable[[float], float]
    exact: bool = True

    @classmethod
    def of_profile(
        cls, method: str, source: str, to_epsilon: Callable[[float], float], to_delta: Callable[[float], float]
    ) -> Self:
        """An exact bound made from functions for δ and ε; a δ of 0 has the logarithm −∞."""

        def to_log_delta(epsilon: float) -> float:
            return log(value) if (value := to_delta(epsilon)) > 0 else -inf

        return cls(method=method, source=source, to_epsilon=to_epsilon, to_log_delta=to_log_delta)

    def epsilon(self, delta: float) -> Limit:
        return Limit(value=self.to_epsilon(delta))

    def log_delta(self, epsilon: float) -> Limit:
        return Limit(value=self.to_log_delta(epsilon))


def epsilons(bounds: Sequence[Bound], deltas: Array) -> list[Limit]:
    """ε of many bounds, each at its own δ. Bounds of one batch are computed together."""
    batches: dict[Hashable, list[int]] = {}
    for at, bound in enumerate(bounds):
        batches.setdefault(bound.batch, []).append(at)
    limits: dict[int, Limit] = {}
    for members in batches.values():
        together = [bounds[at] for at in members]
        limits |= zip(members, type(together[0]).epsilons(together, deltas[members]), strict=True)
    return [limits[at] for at in range(len(bounds))]
