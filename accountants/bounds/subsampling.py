"""Amplification by subsampling: tight privacy profiles. The Rényi curves are in `subsampled_rdp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from privkit.accountants import validate
from privkit.shared.array import Array

Profile = Callable[[Array], Array]
"""δ at an array of ε ≥ 0."""


@overload
def amplify(epsilon: float, rate: float) -> float: ...
@overload
def amplify(epsilon: ArrayLike, rate: ArrayLike) -> Array: ...
def amplify(epsilon: ArrayLike, rate: ArrayLike) -> float | Array:
    """ε after subsampling: ln(1 + γ(e^ε − 1)), for any ε without overflow.

    Args:
        epsilon: ε of the base mechanism, any real number; scalar or array.
        rate: γ in [0, 1]; broadcasts against `epsilon`.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9 (without replacement) and Theorem 8 (Poisson). δ becomes γδ.

    >>> round(amplify(1.0, 0.1), 6), amplify(3000.0, 1.0)
    (0.158565, 3000.0)
    """
    e, g = finite_numbers("epsilon", epsilon), rates(rate)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        small = np.log1p(g * np.expm1(np.clip(e, -1, 30)))  # the sum below loses digits there
        amplified = np.where((e >= -1) & (e <= 30), small, np.logaddexp(np.log(g) + e, np.log1p(-g)))
    return amplified if amplified.ndim else float(amplified)


@overload
def deamplify(epsilon: float, rate: float) -> float: ...
@overload
def deamplify(epsilon: ArrayLike, rate: ArrayLike) -> Array: ...
def deamplify(epsilon: ArrayLike, rate: ArrayLike) -> float | Array:
    """ε of the base mechanism that subsampling turns into `epsilon`: ln(1 + (e^ε − 1)/γ).

    Args:
        epsilon: ε > ln(1 − γ), which is what the base ε → −∞ becomes; scalar or array.
        rate: γ in (0, 1].

    Source: the inverse of `amplify`.

    >>> round(deamplify(amplify(1.0, 0.1), 0.1), 12)
    1.0
    """
    e, g = finite_numbers("epsilon", epsilon), rates(rate, positive=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.expm1(np.minimum(e, 30)) / g)
        deamplified = np.where(e <= 30, small, e - np.log(g) + np.log1p(-(1 - g) * np.exp(-e)))
    if not np.all(np.isfinite(deamplified)):
        raise ValueError(f"epsilon must be > ln(1 - rate), got {epsilon!r} with rate {rate!r}")
    return deamplified if deamplified.ndim else float(deamplified)


def without_replacement_delta(epsilon: ArrayLike, rate: float, base_delta: Profile) -> Array:
    """Tight privacy profile of one release from k of n clients, drawn without replacement and kept secret.

    For ε ≥ 0 it is γ·δ_base(ln(1 + (e^ε − 1)/γ)), γ = k/n, replace-one; for ε < 0 it follows from the exchange of the
    neighbors, δ(−ε) = 1 − e^{−ε} + e^{−ε}δ(ε).

    Args:
        epsilon: ε, any real number; scalar or array.
        rate: γ = k/n in [0, 1].
        base_delta: vectorised profile δ(ε ≥ 0) of the mechanism on the chosen clients.

    Raises:
        ValueError: if an argument is out of range, or the base profile is no number in [0, 1].

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9; attained where all other data are zero.

    >>> from privkit.accountants.bounds import gaussian
    >>> float(without_replacement_delta(0.0, 0.2, lambda e: gaussian.delta(e, 1.0)).round(6))
    0.076585
    """
    e, g = finite_numbers("epsilon", epsilon), float(rates(validate.real("rate", rate)))
    size = np.abs(e)
    delta = np.zeros_like(e) if g == 0 else g * _probabilities(base_delta(np.asarray(deamplify(size, g), float)))
    return np.where(e >= 0, delta, -np.expm1(-size) + np.exp(-size) * delta)


def without_replacement_epsilon(delta: float, rate: float, base_epsilon: Callable[[float], float]) -> float:
    """Tight ε of one release from k of n clients: ln(1 + γ(e^{ε_base(δ/γ)} − 1)), and 0 where δ ≥ γ.

    Args:
        delta: δ in (0, 1).
        rate: γ = k/n in [0, 1].
        base_epsilon: ε(δ) of the mechanism on the chosen clients.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 9. At δ ≥ γ, publishing a chosen client's data is allowed.

    >>> from privkit.accountants.bounds import gaussian
    >>> without_replacement_epsilon(0.5, 0.5, lambda delta: gaussian.epsilon(delta, 23.77))
    0.0
    """
    d, g = validate.delta(delta), float(rates(validate.real("rate", rate)))
    return 0.0 if d >= g else float(amplify(validate.real("base epsilon", base_epsilon(d / g), least=0), g))


def poisson_removed_delta(epsilon: ArrayLike, rate: float, base_delta: Profile) -> Array:
    """Tight privacy profile of one release under Poisson sampling, with a record against without it.

    It is never below the other direction (`poisson_added_delta`); composition needs both.

    Args:
        epsilon: ε ≥ 0; scalar or array.
        rate: q in [0, 1], the probability with which a record takes part.
        base_delta: vectorised profile δ(ε ≥ 0) of the mechanism with the record against without it.

    Source: Balle, Barthe and Gaboardi 2018, Theorem 8.

    >>> from privkit.accountants.bounds import gaussian
    >>> float(poisson_removed_delta(0.05, 0.1, lambda e: gaussian.delta(e, 1.0)).round(6))
    0.026144
    """
    return without_replacement_delta(nonnegative("epsilon", epsilon), rate, base_delta)


def poisson_added_delta(epsilon: ArrayLike, rate: float, base_delta: Profile) -> Array:
    """Tight privacy profile of one release under Poisson sampling, without a record against with it.

    The loss is at most −ln(1 − q): δ = (1 − (1−q)e^ε)·δ_base(ln(q·e^ε/(1 − (1−q)e^ε))), and 0 from there on.

    Args:
        epsilon: ε ≥ 0; scalar or array.
        rate: q in [0, 1].
        base_delta: vectorised profile δ(ε ≥ 0) of the mechanism without the record against with it.

    Source: derived from the hockey-stick integral; Zhu, Dong and Wang 2022 (dominating pairs under Poisson sampling).

    >>> from privkit.accountants.bounds import gaussian
    >>> float(poisson_added_delta(0.05, 0.1, lambda e: gaussian.delta(e, 1.0)).round(6))
    0.010573
    """
    e, q = nonnegative("epsilon", epsilon), float(rates(validate.real("rate", rate)))
    if q == 0:
        return np.zeros_like(e)
    with np.errstate(divide="ignore"):
        share = np.where(e < -np.log1p(-q), q - (1 - q) * np.expm1(np.minimum(e, 700)), 0.0)
        inside = share > 0
        inner = np.log(q) + e - np.log(np.where(inside, share, 1.0))
    return np.where(inside, share * _probabilities(base_delta(np.where(inside, np.maximum(inner, 0), 0))), 0.0)


def finite_numbers(name: str, value: ArrayLike) -> Array:
    """Finite numbers as floats; booleans, NaN and words are refused.

    Raises:
        ValueError: with the name and what was given.

    >>> finite_numbers("epsilon", [1, 2]).tolist()
    [1.0, 2.0]
    """
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return array.astype(float)


def nonnegative(name: str, value: ArrayLike) -> Array:
    """Finite numbers ≥ 0.

    Raises:
        ValueError: with the name and what was given.

    >>> nonnegative("mu", 1).tolist()
    1.0
    """
    array = finite_numbers(name, value)
    if np.any(array < 0):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
    return array


def rates(value: ArrayLike, *, positive: bool = False) -> Array:
    """Sampling rates in [0, 1], or (0, 1] where they must be `positive`.

    Raises:
        ValueError: with what is allowed and what was given.

    >>> rates([0, 0.1]).tolist()
    [0.0, 0.1]
    """
    array = finite_numbers("rate", value)
    if np.any((array < 0) | (array > 1) | (positive & (array == 0))):
        raise ValueError(f"rate must lie in {'(0' if positive else '[0'}, 1], got {value!r}")
    return array


def _probabilities(values: ArrayLike) -> Array:
    """Values of a base profile; anything outside [0, 1] is refused."""
    array = np.asarray(values, float)
    if not np.all((array >= 0) & (array <= 1)):
        raise ValueError("the base privacy profile must give numbers in [0, 1]")
    return array
