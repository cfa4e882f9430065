"""The interface of a bound: upper limits on ε at a given δ and on δ at a given ε, both by one theorem."""

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
    """The result of a bound.

    Attributes:
        value: ε ≥ 0 in nats, or ln δ ≤ 0. If the theorem proves nothing, ε is `inf`, or ln δ is 0.
        order: Rényi order that proves the limit; None if no order is involved.
        at_edge: whether this order is the first or the last that was tried.
        lower: a proven lower limit on the same quantity; None if none is known.
    """

    value: float
    order: float | None = None
    at_edge: bool = False
    lower: float | None = None


class Bound(ABC):
    """An upper bound on the privacy loss of one run, by one theorem.

    Attributes:
        method: name of the method, for a certificate.
        source: paper and theorem.
        exact: whether the limit is exact if neighbors attain the largest losses that the specification allows.
    """

    method: str
    source: str
    exact: bool

    @abstractmethod
    def epsilon(self, delta: float) -> Limit:
        """The smallest ε that the theorem proves at `delta` in (0, 1)."""

    @abstractmethod
    def log_delta(self, epsilon: float) -> Limit:
        """The smallest ln δ that the theorem proves at `epsilon` ≥ 0."""

    def log_deltas(self, epsilons: Array) -> Array:
        """The smallest ln δ that the theorem proves at each of J `epsilons` ≥ 0: float [J]."""
        return np.array([self.log_delta(epsilon).value for epsilon in epsilons.tolist()])

    @property
    def batch(self) -> Hashable:
        """A key for grouping: bounds with equal keys are computed together, in one pass over arrays."""
        return id(self)

    @classmethod
    def epsilons(cls, bounds: Sequence[Self], deltas: Array) -> list[Limit]:
        """Compute `epsilon` of B `bounds` with the same `batch` key, each at its own δ (`deltas` [B])."""
        return [bound.epsilon(delta) for bound, delta in zip(bounds, deltas.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosedForm(Bound):
    """A bound given by two functions, each a formula or one integral: `to_epsilon` maps δ in (0, 1) to ε, and
    `to_log_delta` maps ε ≥ 0 to ln δ. The other fields are as in `Bound`."""

    method: str
    source: str
    to_epsilon: Callable[[float], float]
    to_log_delta: Callable[[float], float]
    exact: bool = True

    @classmethod
    def of_profile(
        cls, method: str, source: str, to_epsilon: Callable[[float], float], to_delta: Callable[[float], float]
    ) -> Self:
        """Build an exact bound: `to_epsilon` maps δ to ε, and `to_delta` maps ε to δ. If δ is 0, ln δ is −inf."""

        def to_log_delta(epsilon: float) -> float:
            return log(value) if (value := to_delta(epsilon)) > 0 else -inf

        return cls(method=method, source=source, to_epsilon=to_epsilon, to_log_delta=to_log_delta)

    def epsilon(self, delta: float) -> Limit:
        return Limit(value=self.to_epsilon(delta))

    def log_delta(self, epsilon: float) -> Limit:
        return Limit(value=self.to_log_delta(epsilon))


def batched_epsilons(bounds: Sequence[Bound], deltas: Array) -> list[Limit]:
    """Compute ε of B bounds, each at its own δ (`deltas` [B]). Bounds with equal `batch` keys are computed together."""
    batches: dict[Hashable, list[int]] = {}
    for at, bound in enumerate(bounds):
        batches.setdefault(bound.batch, []).append(at)
    limits: dict[int, Limit] = {}
    for members in batches.values():
        together = [bounds[at] for at in members]
        limits |= zip(members, type(together[0]).epsilons(together, deltas[members]), strict=True)
    return [limits[at] for at in range(len(bounds))]
