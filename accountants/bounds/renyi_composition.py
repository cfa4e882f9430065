"""Rényi composition as a bound: the curves of all steps are added and converted at the best order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privkit.accountants.bounds import renyi
from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.renyi import BANDS, COARSE_ORDERS, HIGH_ORDERS, SAMPLED_ORDERS
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.bounds.step import Step, Steps
from privkit.shared.array import Array

CONVERSION = "Canonne, Kamath and Steinke 2020, Proposition 12"


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedCurves(Step):
    """A step known only by its Rényi curve, which was computed earlier and is added to a run's curve."""

    values: Array  # [A] the curve at the orders at which the run is evaluated

    def rdp(self, orders: Array, count: int) -> Array:
        return count * self.values


def renyi_curves(runs: Sequence[Steps], orders: Array) -> Array:
    """Upper bounds on the Rényi divergence of each of R runs at each of A orders: float [R, A].

    A run is a list of pairs (step, number of its repetitions). Gaussian releases with the same kind of sampling are
    computed together.

    Source: Mironov 2017, Proposition 1 (curves add up).
    """
    sums = np.zeros((len(runs), orders.size))
    together: dict[str, list[tuple[int, GaussianRelease, int]]] = {}
    for row, steps in enumerate(runs):
        for step, count in steps:
            if isinstance(step, GaussianRelease):
                together.setdefault(step.sampling, []).append((row, step, count))
            else:
                sums[row] += step.rdp(orders, count)
    for members in together.values():
        rows, steps, counts = zip(*members, strict=True)
        np.add.at(sums, list(rows), GaussianRelease.curves(steps, orders) * np.array(counts, float)[:, None])
    return sums


@dataclass(frozen=True, kw_only=True, eq=False)
class RenyiBound(Bound):
    """The bound of a run by its Rényi curve, converted at the best order."""

    steps: Steps
    orders: Array  # [A] orders to try. If the last of `SAMPLED_ORDERS` is the best, `HIGH_ORDERS` are tried as well.
    method: str
    source: str  # papers of the curves and of the conversion
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

    def log_deltas(self, epsilons: Array) -> Array:
        curve = renyi_curves([self.steps], self.orders)
        return np.asarray(renyi.log_delta(self.orders, curve, epsilons[:, None]).min(1))


def renyi_bound(steps: Steps) -> RenyiBound:
    """The bound of a run by Rényi composition: the curves of all steps are added, and converted at the best order.

    Each step has a list of orders to try. The shortest of these lists is used, since it suits all steps.

    Source: Mironov 2017, Proposition 1; Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    orders = steps[0][0].orders if len(steps) == 1 else min([step.orders for step, _ in steps], key=len)
    method, source = method_and_source(tuple([(step.how, step.source) for step, _ in steps]))
    return RenyiBound(steps=steps, orders=orders, method=method, source=source)


@cache
def method_and_source(parts: tuple[tuple[str, str], ...], what: str = "Rényi composition") -> tuple[str, str]:
    """The method and the source of a composition, for a certificate. They are joined from the pairs (method, source) of
    the composition's steps.
    """
    how, sources = (dict.fromkeys(column) for column in zip(*parts, strict=True))
    return "".join((what, *how)), "; ".join((*sources, CONVERSION))


@cache
def _fine_orders() -> list[Array]:
    """For each band of `BANDS`, all orders between the coarse orders below and above the band, except for coarse
    orders."""
    coarse = np.unique(np.concatenate(COARSE_ORDERS))
    others = np.setdiff1d(SAMPLED_ORDERS, coarse)
    ends = [(coarse[coarse < first].max(initial=1.0), coarse[coarse > last].min(initial=inf)) for first, last in BANDS]
    return [others[(others > low) & (others < high)] for low, high in ends]


def _best(
    bounds: Sequence[RenyiBound], convert: Callable[[Array, Array, list[int]], Array], *, least: float
) -> list[Limit]:
    """For each bound, the smallest value of `convert` over the Rényi orders, at least `least`. All bounds have the same
    orders.

    Only some of `SAMPLED_ORDERS` are tried first, and then the orders near the best of these. This finds the minimum:
    with λ = α − 1 the converted value is (K(λ) + ln c(λ) − ln δ)/λ, where K(λ) = λ·ε_α and c comes from the conversion.
    The numerator is convex and positive at 0, so the value has a single minimum.
    """
    orders, rows = bounds[0].orders, np.arange(len(bounds))
    values, best = np.full(rows.size, inf), np.zeros(rows.size)

    def attempt(some: NDArray[np.int_], tried: Array) -> None:
        triples = convert(tried, renyi_curves([bounds[row].steps for row in some.tolist()], tried), some.tolist())
        at, smallest = triples.argmin(1), triples.min(1)
        better = smallest < values[some]
        values[some[better]], best[some[better]] = smallest[better], tried[at[better]]

    if orders is not SAMPLED_ORDERS:
        attempt(rows, orders)
        edge = (best == orders[0]) | (best == orders[-1])
    else:
        for tried in COARSE_ORDERS:
            if (some := rows[(best == 0) | (best == tried[0])]).size:
                attempt(some, tried)
        begun = best.copy()
        for (first, last), tried in zip(BANDS, _fine_orders(), strict=True):
            if (some := rows[(begun >= first) & (begun <= last)]).size:
                attempt(some, tried)
        for tried in HIGH_ORDERS:
            if (some := rows[best == tried[0]]).size:
                attempt(some, tried)
        edge = (best == orders[0]) | (best == HIGH_ORDERS[-1][-1])
    triples = zip(np.maximum(values, least).tolist(), best.tolist(), edge.tolist(), strict=True)
    return [Limit(value=value, order=order, at_edge=at_edge) for value, order, at_edge in triples]
