"""Odometers: a bound on the privacy that a run has spent so far.

A filter (`filters`) limits the privacy loss of a whole run; an odometer bounds the loss of the releases charged so
far. With probability 1 − δ, all its readings during a run are correct at once, even if later releases are chosen
by looking at earlier ones. For this, filters with smaller and smaller limits run side by side. The reading comes from
the filter with the smallest limit that is not yet exceeded. A reading holds for any two neighboring data sets that are
fixed in advance, but not for all pairs together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log1p

from privkit.accountants.filters import Filter
from privkit.shared.array import Array
from privkit.shared.rounding import rounded_up

LEVELS = 32  # number of filters: each limit is √½ of the one before, and each has an equal share of δ
_SHARES = [0.5**k for k in range(1, 9)]
"""Fractions q of a filter's δ that `reading` tries."""


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

    P and Q are the laws of the releases for two fixed neighbors. The odometer has 32 filters with limits from
    `kept.limit` downward (levels), which share δ evenly. Proof for one level: stop a run within this level as soon as
    its loss exceeds ε. The releases decide when it stops, so the level's filter holds for the stopped run. Its profile
    then obeys δ(ε') ≥ P(loss > ε)·(1 − e^(ε' − ε)) for every ε' < ε. Take any q in (0, 1), and let ε' be the filter's ε
    at q times the level's δ. With ε = ε' − ln(1 − q), P(loss > ε) is at most the level's δ.

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
