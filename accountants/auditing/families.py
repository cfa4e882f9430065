"""Families of trade-off curves with one parameter, the strength, which an auditor infers from an attack's errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from privkit.accountants import answer, validate
from privkit.accountants.bounds import gaussian
from privkit.accountants.calibration import scaled
from privkit.accountants.region import Region, region
from privkit.accountants.search import doubled, narrowed
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.shared.array import Array

_LARGEST = 64.0  # largest strength that is reported: above it, e^(μ²/2) overflows


class Rates(Protocol):
    """The true and false positive rates that an attack can have. `Region` implements this interface and describes its
    methods."""

    @property
    def advantage(self) -> float: ...
    def true_positives(self, false_positives: ArrayLike) -> Array: ...
    def false_positives(self, true_positives: ArrayLike) -> Array: ...


class Family(ABC):
    """A family of trade-off curves with one parameter, the strength ≥ 0. At strength 0 an attack learns nothing; a
    larger strength lets it learn more."""

    assumption: str  # what a bound assumes if it uses this family, in a sentence
    # this assumption in a few words, printed beside the bound; empty if nothing is assumed
    assumed: str = "the family of curves that was given"
    precision: float = 1e-9  # relative width at which the search for a strength stops

    @property
    def one_sided(self) -> bool:
        """Whether an attack recognizes the presence of a canary (a record that the auditor inserts or leaves out) far
        better than its absence. Guesses of "non-member" then help little."""
        return False

    @abstractmethod
    def at(self, strength: float) -> Rates:
        """The true and false positive rates that the curve with this strength (≥ 0) allows an attack."""

    @abstractmethod
    def epsilon(self, strength: float, delta: float) -> float:
        """The ε at δ of the curve with this strength (≥ 0), or the accountant's upper bound on it."""

    def lower(self, strength: float, delta: float) -> float:
        """The ε at δ that an audit reports as its lower bound, if it infers that the curve has at least this strength.

        By default it is `epsilon`, which must then be exact. If a family's `epsilon` is the accountant's upper bound,
        this method returns the accountant's lower bound. If the accountant has none, the method returns `epsilon`,
        which may be too large. Compare a claimed ε with `epsilon`; use this method to bound the mechanism's true ε.
        """
        return self.epsilon(strength, delta)

    @abstractmethod
    def said(self, strength: float) -> str:
        """The inferred lower limit on the strength as a phrase, for the `method` of an audit's result."""

    def strength(self, epsilon: float, delta: float) -> float:
        """The largest strength whose curve has at most this ε at δ."""
        return largest_rejected(lambda strength: self.epsilon(strength, delta) <= epsilon, self.precision)


@dataclass(frozen=True, kw_only=True)
class _GaussianRates:
    """The true and false positive rates that an attack on a Gaussian release can have. `mu` ≥ 0 is the distance of the
    two neighbors' means, divided by the noise's standard deviation.

    Source: Dong, Roth and Su 2022, Definition 4.
    """

    mu: float

    @property
    def advantage(self) -> float:
        return float(2 * ndtr(self.mu / 2) - 1)

    def true_positives(self, false_positives: ArrayLike) -> Array:
        return np.asarray(ndtr(ndtri(false_positives) + self.mu))

    def false_positives(self, true_positives: ArrayLike) -> Array:
        return np.asarray(ndtr(ndtri(true_positives) - self.mu))


@dataclass(frozen=True)
class Gaussian(Family):
    """The trade-off curves of Gaussian mechanisms. The strength is μ, the L2 sensitivity divided by the noise's σ.

    >>> round(Gaussian().epsilon(1.0, 1e-5), 4)
    4.3772
    """

    assumption = "the mechanism's trade-off curve is Gaussian for some μ, or the claim that is tested is such a curve"
    assumed = "a Gaussian curve"

    def at(self, strength: float) -> _GaussianRates:
        return _GaussianRates(mu=strength)

    def epsilon(self, strength: float, delta: float) -> float:
        at = validate.delta(delta)  # at δ = 0 no Gaussian has an ε
        return float(gaussian.epsilon(at, strength)) if strength > 0 else 0.0

    def said(self, strength: float) -> str:
        return f"Gaussian with μ >= {strength:.4g}"


@dataclass(frozen=True, kw_only=True)
class Approximate(Family):
    """The trade-off curves of (ε, δ)-DP at one fixed δ in [0, 1), without further assumptions. The strength is ε.

    >>> round(Approximate(delta=0.0).at(1.0).advantage, 4)
    0.4621
    """

    delta: float
    assumption = "nothing is assumed of the mechanism beyond (ε, δ)-DP"
    assumed = ""

    def at(self, strength: float) -> Region:
        return Region(epsilons=np.array([strength]), deltas=np.array([self.delta]))

    def epsilon(self, strength: float, delta: float) -> float:
        if delta != self.delta:
            raise ValueError(
                f"a family of (ε, δ)-DP has one δ: got delta={delta:g} and Approximate(delta={self.delta:g}); leave "
                f"family out to use the δ of the bound"
            )
        return strength

    def said(self, strength: float) -> str:
        return f"ε >= {strength:.4g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class ScaledNoise(Family):
    """The trade-off curves of one `mechanism` with more or less noise, as this library's accountant computes them. At
    strength s the noise is divided by s. `tight` allows numerical composition.

    If the accountant knows only an upper bound on ε (`Certificate.lower` is None), this upper bound may be too large.
    The lower bound on ε that an audit derives with this family may then exceed the mechanism's true ε.

    >>> from privkit.accountants.table import mechanism_of
    >>> family = ScaledNoise(mechanism=mechanism_of({"mechanism": "laplace", "sigma": 1, "sensitivity": 1}))
    >>> round(family.at(2.0).advantage, 4), round(family.epsilon(2.0, 1e-5), 3)
    (0.6321, 2.0)
    """

    mechanism: SplitMechanism  # the claimed mechanism, at strength 1
    tight: bool = True  # whether to compose numerically if no closed form is exact
    assumption = (
        "the mechanism is the claimed one with more or less noise; the accountant computes its ε and its trade-off "
        "curve"
    )
    assumed = "the curve of the claimed mechanism, with more or less noise"
    precision = 1e-4

    @property
    def one_sided(self) -> bool:
        """True for sampling with add-or-remove neighbors: an unsampled canary has the same effect as a canary outside
        the data."""
        return self.mechanism.relation == "add_or_remove_one" and self.mechanism.sampling.rate < 1

    def strength(self, epsilon: float, delta: float) -> float:
        return 1.0

    def at(self, strength: float) -> Region:
        if strength == 0:
            return Region(epsilons=np.zeros(1), deltas=np.zeros(1))
        return region(scaled(self.mechanism, 1 / strength), tight=self.tight)

    def epsilon(self, strength: float, delta: float) -> float:
        if strength == 0:
            return 0.0
        return answer.epsilon(scaled(self.mechanism, 1 / strength), delta, tight=self.tight).epsilon

    def lower(self, strength: float, delta: float) -> float:
        if strength == 0:
            return 0.0
        charged = answer.epsilon(scaled(self.mechanism, 1 / strength), delta, tight=self.tight)
        return charged.epsilon if charged.lower is None else charged.lower

    def said(self, strength: float) -> str:
        return f"the claimed mechanism with at most {1 / strength:.4g} times its noise" if strength else "nothing"


GAUSSIAN = Gaussian()


def stated(family: Family | None, delta: float) -> Family:
    """Return the family that the caller stated; for None, `Approximate`, the family of all (ε, δ)-DP mechanisms."""
    return Approximate(delta=delta) if family is None else family


_NOTHING = 1e-6
"""Smaller strengths count as 0, since some costs, such as those of private updates, do not shrink with the strength."""


def largest_rejected(rejected: Callable[[float], bool], precision: float = 1e-9) -> float:
    """Find the largest strength that a test rejects: at most 64, and 0 if no strength above 1e-6 is rejected.

    `rejected` must be true up to some strength and false above it. The result is itself a rejected strength. It lies
    below the largest rejected strength by at most the relative `precision`.
    """
    if not rejected(0.0):
        return 0.0
    low, high = doubled(rejected, 0.0, 1.0, most=_LARGEST)
    if high > _LARGEST:
        return _LARGEST
    return narrowed(rejected, low, high, near=lambda a, b: b - a <= precision * b or b <= _NOTHING)[0]
