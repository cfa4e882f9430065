"""Privacy filters and odometers, for charges that depend on earlier releases.

A ledger that takes the best of many bounds needs charges (recorded releases) that are fixed in advance. Otherwise the
best bound and the end of the run would depend on the releases. A filter limits one summed cost. It chooses one bound
before the first release. A run that stops before the limit keeps the budget, even if each charge was chosen by looking
at earlier releases.

A filter limits the privacy loss of a whole run; an odometer bounds the loss of the releases charged so far. With
probability 1 − δ, all its readings during a run are correct at once, even if later releases are chosen by looking at
earlier ones. For this, filters with smaller and smaller limits run side by side. The reading comes from the filter with
the smallest limit that is not yet exceeded. A reading holds for any two neighboring data sets that are fixed in
advance, but not for all pairs together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log1p, sqrt
from typing import TYPE_CHECKING

import numpy as np

from privkit.accountants.bounds import gaussian, renyi
from privkit.accountants.bounds.bound import Bound
from privkit.accountants.bounds.closed_forms import BALLE_WANG, GaussianBound
from privkit.accountants.bounds.renyi_composition import CONVERSION, AddedCurves, RenyiBound
from privkit.accountants.bounds.sampled import GaussianRelease
from privkit.accountants.bounds.step import USUAL_ORDERS, Steps
from privkit.shared.array import Array
from privkit.shared.rounding import rounded_up

if TYPE_CHECKING:
    from privkit.accountants.ledger import PrivacyBudget

ADAPTIVE = (
    "each charge may depend on earlier releases, but on nothing else of the data; the budget was fixed before the "
    "first release; after a refused charge, only charged releases follow"
)
"""Assumption under which a filter keeps the budget."""
FIXED = (
    "the charges and the end of the run were fixed before the first release, or do not depend on releases (otherwise "
    "keep the ledger with adaptive=True)"
)
"""Assumption of composition without a filter."""
_ROUNDING = 1e-12  # part of the limit that is left unspent, above the rounding of the sums
LEVELS = 32  # number of filters of an odometer: each limit is √½ of the one before, and each has an equal share of δ
_SHARES = [0.5**k for k in range(1, 9)]
"""Fractions q of a filter's δ that `reading` tries."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A limit on one number of the total cost of all charges (recorded releases). The cost is an array: the sum of
    squared Gaussian shifts Σμ², then the Rényi divergence at each of `USUAL_ORDERS`.

    Source: Σμ²: Smith and Thakurta 2022, and Koskela, Tobaben and Honkela 2023 (fully adaptive Gaussian differential
    privacy); one Rényi order: Feldman and Zrnic 2021.
    """

    at: int  # index of the number: 0 for Σμ², j + 1 for the Rényi divergence at order `USUAL_ORDERS[j]`
    limit: float  # the largest allowed sum of this number over all charges, > 0

    def admits(self, total: Array) -> bool:
        """Whether a cost stays within the limit, with a margin for the rounding of sums."""
        return bool(total[self.at] <= self.limit * (1 - _ROUNDING))

    def covers(self, total: Array) -> bool:
        """Whether a cost stays within the limit, without the margin of `admits`."""
        return bool(total[self.at] <= self.limit)

    @property
    def run(self) -> Steps:
        """A run that costs the whole limit. Certificates take ρ (zCDP) and μ (Gaussian DP) from this run."""
        if self.at == 0:
            return [(GaussianRelease(mu=sqrt(self.limit)), 1)]
        curve = np.where(np.arange(USUAL_ORDERS.size) == self.at - 1, self.limit, inf)
        return [(AddedCurves(values=curve), 1)]

    @property
    def bound(self) -> Bound:
        """The bound that holds for every run within the limit."""
        if self.at == 0:
            source = f"Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023; {BALLE_WANG}"
            return GaussianBound(mu=sqrt(self.limit), method="Gaussian filter: Σμ² is limited", source=source)
        order = USUAL_ORDERS[self.at - 1 : self.at]
        return RenyiBound(
            steps=[(AddedCurves(values=np.array([self.limit])), 1)],
            orders=order,
            method=f"Rényi filter at order {order[0]:g}",
            source=f"Feldman and Zrnic 2021; {CONVERSION}",
        )


def best_filter(budget: PrivacyBudget, cost: Array) -> Filter:
    """Choose the filter that keeps a budget and admits the most repetitions of the first charge.

    `cost` [1 + A] is the cost of the first charge: μ², then the Rényi divergence at A orders. Raises ValueError if
    every filter has a limit ≤ 0 or an infinite cost. The chosen filter may still refuse the first charge.

    Source: derived: the choice is made before the first release, so it depends on no release.
    """
    free = renyi.canonne(USUAL_ORDERS, np.zeros(USUAL_ORDERS.size), budget.delta)  # ε of a zero Rényi curve
    limits = np.concatenate([[gaussian.mu_for(budget.epsilon, budget.delta) ** 2], budget.epsilon - free])
    with np.errstate(divide="ignore", invalid="ignore"):
        often = np.where(limits > 0, limits / cost, -1.0)
    often = np.where(np.isnan(often), -1.0, often)
    at = int(np.argmax(often))
    if often[at] <= 0:
        raise ValueError(
            f"no filter keeps ε = {budget.epsilon:g} at δ = {budget.delta:g} for charges of this kind: add noise, or "
            "raise the budget"
        )
    return Filter(at=at, limit=float(limits[at]))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """An odometer's reading: a bound on the privacy that a run has spent so far."""

    epsilon: float  # ε of this moment, ≥ 0, in nats
    delta: float  # δ of the odometer, chosen before the first release

    @property
    def statement(self) -> str:
        """The reading in one sentence."""
        return (
            f"for any two neighboring data sets, with probability at least 1 − {self.delta:g}, the privacy loss of all "
            f"releases so far is at most {rounded_up(self.epsilon, 4)}, and at every other moment it is at most the "
            f"reading of that moment"
        )


def reading(kept: Filter, total: Array, delta: float) -> Reading:
    """Bound the privacy that the charges have spent so far: an upper bound ε on the loss ln(P/Q) of all releases, which
    holds with probability at least 1 − δ over releases drawn from P.

    P and Q are the laws of the releases for two fixed neighbors. The odometer has 32 filters (levels). Their limits go
    down from `kept.limit`, and each level has the same share of δ. Proof for one level: stop a run within this level as
    soon as its loss exceeds ε. The releases decide when it stops, so the level's filter holds for the stopped run. Its
    profile then obeys δ(ε') ≥ P(loss > ε)·(1 − e^(ε' − ε)) for every ε' < ε. Take any q in (0, 1), and let ε' be the
    filter's ε at q times the level's δ. With ε = ε' − ln(1 − q), P(loss > ε) is at most the level's δ.

    Args:
        kept: the filter of the run.
        total: the cost of the charges so far, within the filter's limit: Σμ², then the Rényi curve.
        delta: δ in (0, 1), fixed before the first release. Readings at several δ hold together with the sum of these δ.

    Raises:
        ValueError: if `total` exceeds the limit, or δ is too small.

    Source: Rogers et al. 2016, Definition 3.3 (odometers); levels as in Lécuyer 2021, "Practical privacy filters and
    odometers with Rényi differential privacy"; the step from δ to the tail is derived.
    """
    if not kept.covers(total):
        raise ValueError(f"an odometer needs charges within its filter, got {total[kept.at]:g} of {kept.limit:g}")
    share = delta / LEVELS
    if not share * _SHARES[-1] > 0:
        raise ValueError(f"delta = {delta:g} is too small to be shared among {LEVELS} filters; use 1e-300 or more")
    level = kept
    for _ in range(LEVELS - 1):
        smaller = replace(level, limit=level.limit * 0.5**0.5)
        if not smaller.admits(total):
            break
        level = smaller
    epsilon = min(level.bound.epsilon(q * share).value - log1p(-q) for q in _SHARES)
    return Reading(epsilon=epsilon, delta=delta)
