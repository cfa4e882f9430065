"""The proven region: the true and false positive rates that a mechanism's privacy profile allows an attack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import compile as compiled
from privkit.accountants.bounds.coarse_composition import CoarseComposition
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.shared.array import Array
from privkit.shared.limits import PRIORS, Limits

_NODES = 257  # number of values of ε from which a region is computed
_TAIL, _LARGEST = 1e-9, 700.0
"""δ at the largest ε of a region, and the largest ε whose exponential is a float."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """The true and false positive rates that a test for a record's presence can have under (ε_j, δ_j)-DP, j = 1 … J.

    Let TPR and FPR be the true and false positive rate of a test. For every j, TPR ≤ δ_j + e^{ε_j}·FPR and 1 − FPR ≤
    δ_j + e^{ε_j}·(1 − TPR). `epsilons` [J] holds the ε_j ≥ 0, and `deltas` [J] the δ_j in [0, 1].

    Source: Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015, Theorem 2.1; Dong, Roth and Su 2022, Prop. 2.12.

    >>> one = Region(epsilons=np.array([1.0]), deltas=np.array([0.0]))
    >>> one.true_positives(0.1).round(4).tolist(), round(one.advantage, 4)
    (0.2718, 0.4621)
    """

    epsilons: Array
    deltas: Array

    def true_positives(self, false_positives: ArrayLike) -> Array:
        """The largest true positive rate at each of A `false_positives` rates in [0, 1]: float [A]."""
        rate = _checked_rates("a false positive rate", false_positives)[..., None]
        rest = 1 - self.deltas - rate
        most = np.minimum(self.deltas + np.exp(self.epsilons) * rate, 1 - rest * np.exp(-self.epsilons))
        return np.asarray(np.clip(most.min(-1), rate[..., 0], 1))

    def false_positives(self, true_positives: ArrayLike) -> Array:
        """The smallest false positive rate at each of A `true_positives` rates in [0, 1]: float [A]."""
        rate = _checked_rates("a true positive rate", true_positives)[..., None]
        above, missed = rate - self.deltas, 1 - rate
        least = np.maximum(above * np.exp(-self.epsilons), above - np.expm1(self.epsilons) * missed)
        return np.asarray(np.clip(least.max(-1), 0, rate[..., 0]))

    @property
    def advantage(self) -> float:
        """The largest TPR − FPR, in [0, 1]: the total variation, if ε = 0 is among the `epsilons`."""
        return float(np.min(np.tanh(self.epsilons / 2) * (1 - self.deltas) + self.deltas))

    def limits(self) -> Limits:
        """The largest true positive rates on a grid of false positive rates, as reports show them."""
        rates = np.union1d([0.0, *PRIORS], np.concatenate([np.geomspace(1e-4, 0.1, 22), np.linspace(0.1, 1.0, 28)]))
        return Limits(
            advantage=self.advantage,
            false_positives=tuple(rates.tolist()),
            true_positives=tuple(self.true_positives(rates).tolist()),
        )


def region(mechanism: SplitMechanism, *, tight: bool = True) -> Region:
    """Compute the true and false positive rates that a mechanism allows an attack, from its δ at 257 values of ε.

    These values range from 0 to the ε at which δ is 1e-9, at most 700. `tight` allows numerical composition.

    >>> from privkit.accountants.table import mechanism_of
    >>> one = mechanism_of({"mechanism": "gaussian", "sigma": 2, "dimensions": 4, "clip_high": 1})
    >>> round(region(one).advantage, 4)
    0.3829
    """
    bounds = compiled.bounds(compiled.steps(mechanism), tight=tight)
    largest = min(bound.epsilon(_TAIL).value for bound in bounds)
    epsilons = np.linspace(0, min(largest, _LARGEST), _NODES)
    # Coarse composition is the slowest bound at many ε, and gives a larger δ than fine composition.
    quick = [bound for bound in bounds if not isinstance(bound, CoarseComposition)]
    logs = np.min([bound.log_deltas(epsilons) for bound in quick], axis=0)
    return Region(epsilons=epsilons, deltas=np.exp(np.minimum(logs, 0.0)))


def _checked_rates(name: str, values: ArrayLike) -> Array:
    checked = np.asarray(values, float)
    if not np.all((checked >= 0) & (checked <= 1)):
        raise ValueError(f"{name} must lie in [0, 1], got {values!r}")
    return checked
