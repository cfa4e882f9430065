"""Arguments of accountants: refused with a sentence, never silently turned into a number."""

from __future__ import annotations

from collections.abc import Sequence

from privkit.constraints import LARGEST_WHOLE, choice, instance, real, whole

__all__ = ["LARGEST_WHOLE", "choice", "delta", "fields", "instance", "orders", "real", "whole"]


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
    checked = [real("order", value, above=1) for value in values]
    if not checked:
        raise ValueError("orders must hold at least one order > 1, got none")
    return checked
