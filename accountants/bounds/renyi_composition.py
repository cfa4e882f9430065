"""Rényi composition as a bound: the curves of all steps are added and converted at the best order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privkit.accountants.bounds import renyi
from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.renyi import HIGH_ORDERS, SAMPLED_ORDERS
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.bounds.step import Step, Steps

Array = NDArray[np.float64]
CONVERSION = "Canonne, Kamath and Steinke 2020, Proposition 12"


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedCurves(Step):
    """A Rényi curve that was computed before, at the orders of the bound that it enters."""

    values: Array

    def rdp(self, orders: Array, count: int) -> Array:
        return count * self.values


def curves(runs: Sequence[Steps], orders: Array) -> Array:
    """[R, A] Rényi curves of runs; Gaussian releases that are sampled in one way are computed together.

    Source: Mironov 2017, Proposition 1 (curves add up).

    >>> curves([[(GaussianRelease(mu=1.0), 2)]], np.array([2.0, 8.0])).tolist()
    [[2.0, 8.0]]
    """
    found = np.zeros((len(runs), orders.size))
    together: dict[str, list[tuple[int, GaussianRelease, int]]] = {}
    for row, steps in enumerate(runs):
        for step, count in steps:
            if isinstance(step, GaussianRelease):
                together.setdefault(step.sampling, []).append((row, step, count))
            else:
                found[row] += step.rdp(orders, count)
    for members in together.values():
        rows, steps, counts = zip(*members, strict=True)
        np.add.at(found, list(rows), GaussianRelease.curves(steps, orders) * np.array(counts, float)[:, None])
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class RenyiBound(Bound):
    """The Rényi curve of a run, converted at the best order.

    Attributes:
        steps: of the run.
        orders: that are tried, [A]; after `SAMPLED_ORDERS`, `HIGH_ORDERS` are tried if the last one is the best.
        method: its name.
        source: of the curves and of the conversion.
    """

    steps: Steps
    orders: Array
    method: str
    source: str
    exact: bool = False

    @property
    def batch(self) -> Hashable:
        return id(self.orders)

    @classmethod
    def epsilons(cls, bounds: Sequence[Self], deltas: Array) -> list[Limit]:
        return _best(bounds, lambda orders, rdp, rows: renyi.canonne(orders, rdp, deltas[rows, None]), least=0.0)

    def epsilon(self, delta: float) -> Limit:
        return self.epsilons([self], np.array([delta]))[0]

    def log_delta(self, epsilon: float) -> Limit:
        return _best([self], lambda orders, rdp, rows: renyi.log_delta(orders, rdp, epsilon), least=-inf)[0]


def renyi_bound(steps: Steps) -> RenyiBound:
    """Rényi composition at the orders that suit all steps: the fewest that one of them asks for.

    Source: Mironov 2017, Proposition 1; Canonne, Kamath and Steinke 2020, Proposition 12.

    >>> float(renyi_bound([(GaussianRelease(mu=0.1, sampling="poisson", rate=0.5), 4)]).orders[-1])
    64.0
    """
    how, sources = dict.fromkeys([step.how for step, _ in steps]), dict.fromkeys([step.source for step, _ in steps])
    return RenyiBound(
        steps=steps,
        orders=min([step.orders for step, _ in steps], key=len),
        method="".join(("Rényi composition", *how)),
        source="; ".join((*sources, CONVERSION)),
    )


def _best(
    bounds: Sequence[RenyiBound], convert: Callable[[Array, Array, list[int]], Array], *, least: float
) -> list[Limit]:
    """The smallest converted value of each bound over their common orders, at least `least`."""
    orders, rows = bounds[0].orders, list(range(len(bounds)))
    values, best, edge = _smallest(bounds, orders, convert, rows)
    if orders is SAMPLED_ORDERS and (far := np.flatnonzero(best == orders[-1]).tolist()):  # few, and worth their time
        values[far], best[far], edge[far] = _smallest(bounds, HIGH_ORDERS, convert, far)
        edge[far] &= best[far] != HIGH_ORDERS[0]
    found = zip(np.maximum(values, least).tolist(), best.tolist(), edge.tolist(), strict=True)
    return [Limit(value=value, order=order, at_edge=at_edge) for value, order, at_edge in found]


def _smallest(
    bounds: Sequence[RenyiBound], orders: Array, convert: Callable[[Array, Array, list[int]], Array], rows: list[int]
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """[R] smallest value, its order, and whether that is the first or the last."""
    values = convert(orders, curves([bounds[row].steps for row in rows], orders), rows)
    at = values.argmin(1)
    return values.min(1), orders[at], (at == 0) | (at == orders.size - 1)
