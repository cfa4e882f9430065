"""Odometers: a bound on the privacy that a run has spent so far.

Readings hold at all moments together, although the releases decide how the run continues. A filter answers for its
whole limit; an odometer answers for the charges so far. Filters with smaller limits run side by side, and the smallest
filter that is not yet exceeded gives the reading. A reading holds for any two neighboring data sets that are fixed in
advance, but not for all pairs together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log1p

from privkit.accountants.filters import Filter
from privkit.shared.array import Array
from privkit.shared.rounding import rounded_up

LEVELS = 32  # number of filters: each limit is √½ of the one before, and each has an equal share of δ
_SHARES = [0.5**k for k in range(1, 9)]
"""Parts of a level's δ at which its ε is asked; the rest pays for the step from δ to the tail of the loss."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The reading of an odometer at one moment."""

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
    """The privacy spent by the charges so far: a bound on the loss ln P/Q of all releases, drawn from P.

    A level is one of the smaller limits. Fix two neighbors, and stop a run within one level as soon as its loss exceeds
    ε. The releases decide when it stops, so the level's filter holds there: δ(ε') ≥ P(loss > ε)·(1 − e^(ε' − ε)) for
    every ε' < ε. So with ε = ε'(qδ) − ln(1 − q), P(loss > ε) is at most the level's δ, for each q in (0, 1). The levels
    share δ evenly.

    `total` is [Σμ², Rényi curve], within the filter's limit. δ in (0, 1) is fixed before the first release; readings at
    several δ hold together with the sum of these δ. ValueError if `total` exceeds the limit, or δ is too small.

    Source: Rogers et al. 2016, Definition 3.3 (odometers); levels as Lécuyer 2021, "Practical privacy filters and
    odometers with Rényi differential privacy"; the step from δ to the tail is derived.

    >>> import numpy as np
    >>> spent = np.concatenate([[0.09], np.zeros(99)])
    >>> round(reading(Filter(at=0, limit=1.0), spent, 1e-5).epsilon, 2)
    1.89
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
