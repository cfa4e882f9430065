"""Amplification by subsampling: tight privacy profiles. The Rényi curves are in `sampled_renyi`.

A rate is a probability in [0, 1], and ε is a number or an array. A base profile is the profile without sampling: a
function that returns δ in [0, 1] for an array of ε ≥ 0.
"""

from __future__ import annotations

from math import inf
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.accountants.bounds.loss_distribution import Profile
from privkit.shared.array import Array


@overload
def amplify(epsilon: float, rate: float) -> float: ...
@overload
def amplify(epsilon: ArrayLike, rate: ArrayLike) -> Array: ...
def amplify(epsilon: ArrayLike, rate: ArrayLike) -> float | Array:
    """The ε after subsampling at rate γ of a mechanism with a given ε: ln(1 + γ(e^ε − 1)). Its δ becomes γδ.

    ε can be any real number or array; nothing overflows. Rates in [0, 1] broadcast against ε.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9 (without replacement) and Theorem 8 (Poisson).
    """
    e, g = finite_numbers("epsilon", epsilon), rates(rate)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        small = np.log1p(g * np.expm1(np.clip(e, -1, 30)))  # the sum below would lose digits
        amplified = np.where((e >= -1) & (e <= 30), small, np.logaddexp(np.log(g) + e, np.log1p(-g)))
    return amplified if amplified.ndim else float(amplified)


@overload
def deamplify(epsilon: float, rate: float) -> float: ...
@overload
def deamplify(epsilon: ArrayLike, rate: ArrayLike) -> Array: ...
def deamplify(epsilon: ArrayLike, rate: ArrayLike) -> float | Array:
    """The ε without sampling of a mechanism that has `epsilon` after subsampling at rate γ: ln(1 + (e^ε − 1)/γ), the
    inverse of `amplify`.

    This needs γ > 0 and ε > ln(1 − γ). The value ln(1 − γ) is the limit of `amplify` as its ε falls to −∞.
    """
    e, g = finite_numbers("epsilon", epsilon), rates(rate, positive=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.expm1(np.minimum(e, 30)) / g)
        deamplified = np.where(e <= 30, small, e - np.log(g) + np.log1p(-(1 - g) * np.exp(-e)))
    if not np.all(np.isfinite(deamplified)):
        raise ValueError(f"epsilon must be > ln(1 - rate), got {epsilon!r} with rate {rate!r}")
    return deamplified if deamplified.ndim else float(deamplified)


def without_replacement_delta(epsilon: ArrayLike, rate: float, base_delta: Profile) -> Array:
    """The tight δ at ε of one release from k of n clients, drawn without replacement and kept secret, under
    replace-one.

    With γ = k/n (`rate`) and the profile `base_delta` without sampling, δ(ε) = γ·δ_base(ln(1 + (e^ε − 1)/γ)) for ε ≥ 0.
    For ε < 0 the neighbors are exchanged: δ(−ε) = 1 − e^{−ε} + e^{−ε}δ(ε).

    For ε ≥ 0 this is also the profile of one Poisson-sampled release with a record against a release without it. It is
    never below the profile of the other direction (`poisson_added_delta`); composition needs both.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9 (attained if all other data are zero) and Theorem 8 (Poisson).
    """
    e, g = finite_numbers("epsilon", epsilon), float(rates(validate.real("rate", rate)))
    size = np.abs(e)
    delta = np.zeros_like(e) if g == 0 else g * _probabilities(base_delta(np.asarray(deamplify(size, g), float)))
    return np.where(e >= 0, delta, -np.expm1(-size) + np.exp(-size) * delta)


def poisson_added_delta(epsilon: ArrayLike, rate: float, base_delta: Profile) -> Array:
    """The tight δ at ε ≥ 0 of one Poisson-sampled release without a record against a release with it.

    With q = `rate` and the profile `base_delta` without sampling, δ(ε) = (1 − (1−q)e^ε)·δ_base(ln(q·e^ε/(1 −
    (1−q)e^ε))). The loss is at most −ln(1 − q), so δ is 0 for larger ε.

    Source: derived from the hockey-stick integral; Zhu, Dong and Wang 2022 (dominating pairs under Poisson sampling).
    """
    e, q = finite_numbers("epsilon", epsilon, least=0), float(rates(validate.real("rate", rate)))
    if q == 0:
        return np.zeros_like(e)
    with np.errstate(divide="ignore"):
        share = np.where(e < -np.log1p(-q), q - (1 - q) * np.expm1(np.minimum(e, 700)), 0.0)
        inside = share > 0
        inner = np.log(q) + e - np.log(np.where(inside, share, 1.0))
    return np.where(inside, share * _probabilities(base_delta(np.where(inside, np.maximum(inner, 0), 0))), 0.0)


def finite_numbers(name: str, value: ArrayLike, *, least: float = -inf) -> Array:
    """The values as a float array. Booleans, NaN, infinities, text and values below `least` raise a ValueError with the
    argument's `name`.

    >>> finite_numbers("epsilon", [1, 2]).tolist()
    [1.0, 2.0]
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or not np.all(np.isfinite(array) & (array >= least)):
        raise ValueError(f"{name} must be a finite number{f' >= {least:g}' * (least > -inf)}, got {value!r}")
    return array.astype(float)


def checked_orders(value: ArrayLike, most: float = inf) -> Array:
    """The Rényi orders as floats. ValueError if there is no order, or if an order is ≤ 1 or > `most`."""
    array = finite_numbers("order", value)
    if not array.size or np.any((array <= 1) | (array > most)):
        limit = f" and <= {most:g}" * (most < inf)
        raise ValueError(f"orders must be numbers > 1{limit}, at least one, got {value!r}")
    return array


def rates(value: ArrayLike, *, positive: bool = False) -> Array:
    """The sampling rates as floats. ValueError if one is outside [0, 1], or is 0 although rates must be `positive`."""
    array = finite_numbers("rate", value)
    if np.any((array < 0) | (array > 1) | (positive & (array == 0))):
        raise ValueError(f"rate must lie in {'(0' if positive else '[0'}, 1], got {value!r}")
    return array


def _probabilities(values: ArrayLike) -> Array:
    array = np.asarray(values, float)
    if not np.all((array >= 0) & (array <= 1)):
        raise ValueError("the base privacy profile must give numbers in [0, 1]")
    return array
