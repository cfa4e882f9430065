"""Arguments of accountants: refused with a sentence, never silently turned into a number."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from numbers import Integral, Real


def real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """A finite number inside the bounds, as a Python float (an int or float32 inside a sampler is mispriced elsewhere).

    Raises:
        ValueError: with the name, what is allowed and what was given; booleans and NaN are no numbers.

    >>> real("sigma", 2, above=0)
    2.0
    """
    if type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)):
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond any float
            number = inf
        if (
            isfinite(number)
            and (above is None or number > above)
            and (least is None or number >= least)
            and (most is None or number <= most)
            and (below is None or number < below)
        ):
            return number
    limits = ((">", above), (">=", least), ("<=", most), ("<", below))
    bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in limits if bound is not None)
    raise ValueError(f"{name} must be a finite number{' ' * bool(bounds)}{bounds}, got {value!r}")


LARGEST_WHOLE = 2**53
"""Whole numbers up to here are floats without rounding."""


def whole(name: str, value: object, *, least: int = 1, most: int = LARGEST_WHOLE) -> int:
    """A whole number inside the bounds.

    >>> whole("rounds", 3)
    3
    """
    number = int(value) if type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool)) else None
    if number is None or not least <= number <= most:
        upper = f" and <= {most}" if (number is not None and number > most) or most < LARGEST_WHOLE else ""
        raise ValueError(f"{name} must be a whole number >= {least}{upper}, got {value!r}")
    return number


def fields(spec: object, **values: float) -> None:
    """Store checked numbers in a frozen specification as plain Python numbers.

    A float32 keeps its few digits in every product that it enters, so it is made a float at the door.
    """
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def delta(value: object, name: str = "delta") -> float:
    """δ, strictly between 0 and 1.

    >>> delta(1e-5)
    1e-05
    """
    return real(name, value, above=0, below=1)


def orders(values: Sequence[float]) -> list[float]:
    """Rényi orders, each > 1; at least one.

    >>> orders([1.5, 2])
    [1.5, 2.0]
    """
    found = [real("order", value, above=1) for value in values]
    if not found:
        raise ValueError("orders must hold at least one order > 1, got none")
    return found


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """One of a few words.

    >>> choice("norm", "l2", ("l1", "l2"))
    'l2'
    """
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def instance(name: str, value: object, allowed: tuple[type, ...]) -> None:
    """An object of one of a few classes.

    >>> instance("sigma", 1.0, (float,))
    """
    if not isinstance(value, allowed):
        names = ", ".join(cls.__name__ for cls in allowed)
        raise ValueError(f"{name} must be one of {names}, got {value!r}")
