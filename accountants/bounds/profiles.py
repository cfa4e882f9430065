"""Exact privacy profiles of one round: δ(ε) of a Gaussian whose shift is random, with or without sampling."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privkit.accountants.bounds import gaussian, subsampling
from privkit.accountants.spec.mechanism import ShiftLaw, SplitMechanism
from privkit.accountants.spec.parts import Poisson

Array = NDArray[np.float64]
Profile = Callable[[ArrayLike], Array]

CHUNK = 1 << 17
"""Elements of ε × nodes that are held at a time."""


def mixture(law: ShiftLaw) -> Profile:
    """δ(ε) = E_λ δ_G(ε; μ(λ)) for coins that the server knows: the mean of the profiles, since the coins carry nothing.

    Source: derived; DP-CutMixSL Theorem 1 puts a fixed λ in its place.

    >>> two = ShiftLaw(mu=np.array([0.3, 0.7]), log_weight=np.log([0.5, 0.5]))
    >>> float(mixture(two)(2.7928482396581304).round(9))
    1e-05
    """

    weight = np.exp(law.log_weight)
    mu, weight = law.mu[weight > 0], weight[weight > 0]  # what is left out is below the smallest float

    def delta(epsilon: ArrayLike) -> Array:
        e = np.asarray(epsilon, float)
        flat, found = e.ravel(), np.empty(e.size)
        step = max(1, CHUNK // mu.size)
        for start in range(0, flat.size, step):
            part = flat[start : start + step, None]
            found[start : start + step] = gaussian.fast_delta(part, mu) @ weight
        return np.minimum(found, 1.0).reshape(e.shape)

    return delta


def one_round(mechanism: SplitMechanism) -> Profile | None:
    """Exact profile of one round, ε ≥ 0; None where none is known (Laplace, Poisson, masks under a global clip).

    Sampling k of n: δ′(ln(1 + γ(e^ε − 1))) = γ·δ(ε).

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9, attained where the others' data are zero.
    """
    if mechanism.noise.law != "gaussian" or isinstance(mechanism.sampling, Poisson):
        return None
    law = mechanism.shift()
    if not law.profile:
        return None
    base, rate = mixture(law), mechanism.sampling.rate
    if rate == 1:
        return base
    return lambda epsilon: subsampling.without_replacement_delta(epsilon, rate, base)


def invert(profile: Profile, delta: float) -> float:
    """Smallest ε ≥ 0 with δ(ε) ≤ δ.

    >>> round(invert(lambda e: gaussian.delta(np.asarray(e, float), 1.0), 1e-5), 6)
    4.377178
    """
    if float(profile(0.0)) <= delta:
        return 0.0
    from scipy.optimize import brentq  # costs as much to import as all the rest

    high = 1.0
    while float(profile(high)) > delta:
        high *= 2

    def gap(epsilon: float) -> float:
        value = float(profile(epsilon))
        return log(value / delta) if value > exp(-700) else -inf

    return float(brentq(lambda e: max(gap(e), -1e3), 0.0, high, xtol=1e-12, rtol=1e-13))
