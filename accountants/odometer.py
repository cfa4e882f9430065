"""Odometers: what a run has spent so far, true at every moment at once, although releases decide how it goes on.

A filter answers for its whole limit. An odometer answers for what was charged: filters of smaller limits hold side by
side, and the smallest one that is not exceeded yet speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log1p

from privkit.accountants.filters import Filter
from privkit.shared.array import Array

LEVELS = 32
"""Filters side by side: the limit of each is √½ of the one before, and each has an equal share of δ."""
_SHARES = [0.5**k for k in range(1, 9)]
"""Parts of a level's δ at which its ε is asked; the rest pays for the step from δ to the tail of the loss."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an odometer says at one moment.

    Attributes:
        epsilon: ε of this moment, ≥ 0, in nats.
        delta: δ of the odometer, chosen before the first release.
    """

    epsilon: float
    delta: float

    @property
    def statement(self) -> str:
        """The reading in one sentence."""
        return (
            f"with probability at least 1 − {self.delta:g}, the privacy loss of all releases so far is at most "
            f"{self.epsilon:.4g}, now and at every other moment's own reading"
        )


def reading(kept: Filter, total: Array, delta: float) -> Reading:
    """What the charges so far have spent.

    Fix two neighbors, and stop a run within one level as soon as its loss exceeds ε. Releases decide that stop, so the
    level's filter holds there: δ(ε') ≥ P(loss > ε)·(1 − e^(ε' − ε)) for every ε' < ε. So ε = ε'(qδ) − ln(1 − q) keeps
    P below δ for each q in (0, 1). The levels share δ evenly.

    Args:
        kept: the filter of the run.
        total: what was charged, [Σμ², Rényi curve], within the filter's limit.
        delta: in (0, 1).

    Source: Rogers et al. 2016, Definition 3.3 (odometers); levels as Lécuyer 2021, "Practical privacy filters and
    odometers with Rényi differential privacy"; the step from δ to the tail is derived.

    >>> import numpy as np
    >>> spent = np.concatenate([[0.09], np.zeros(99)])
    >>> round(reading(Filter(at=0, limit=1.0), spent, 1e-5).epsilon, 2)
    1.89
    """
    spent = float(total[kept.at])
    if spent == 0:
        return Reading(epsilon=0.0, delta=delta)
    level = kept
    for _ in range(LEVELS - 1):
        smaller = replace(level, limit=level.limit * 0.5**0.5)
        if not smaller.admits(total):
            break
        level = smaller
    share, bound = delta / LEVELS, level.bound
    epsilon = min(bound.epsilon(q * share).value - log1p(-q) for q in _SHARES)
    return Reading(epsilon=epsilon, delta=delta)
