"""A mechanism of one Gaussian release, and what such a release really costs."""

from math import exp, log, sqrt
from typing import Any

from scipy.optimize import brentq
from scipy.stats import norm

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Clamp


def one_release(mu: float = 1.0, **changes: Any) -> SplitMechanism:
    """A Gaussian release whose unmixed shift is μ under replace-one, of one coordinate a patch."""
    coordinates = getattr(changes.get("mixing"), "patches", 1)
    given: dict[str, Any] = {
        "smashed": Clamp(low=0, high=mu / sqrt(coordinates), dimensions=coordinates),
        "noise": Noise(smashed=1.0),
        "lower_model": "frozen",
    }
    return SplitMechanism(**(given | changes))


def noised(sigma: Any, **changes: Any) -> SplitMechanism:
    """A Gaussian release at distance 1, so that μ = 1/σ."""
    return one_release(**{"noise": Noise(smashed=sigma), **changes})


def profile(epsilon: float, mu: float) -> float:
    """Exact δ of N(0, 1) against N(μ, 1), from the definition."""
    if mu == 0:
        return 0.0
    return float(norm.sf(epsilon / mu - mu / 2) - exp(epsilon + norm.logsf(epsilon / mu + mu / 2)))


def inverse(delta_of: Any, delta: float, largest: float = 500) -> float:
    """Smallest ε ≥ 0."""
    if delta_of(0.0) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: delta_of(epsilon) - delta, 0, largest, xtol=1e-12, rtol=1e-14))


def exact(mu: float, delta: float = 1e-5) -> float:
    """Exact ε of N(0, 1) against N(μ, 1)."""
    return inverse(lambda epsilon: profile(epsilon, mu), delta, mu * mu + 10 * mu * sqrt(-log(delta)) + 1)
