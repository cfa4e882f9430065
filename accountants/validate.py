"""Arguments of accountants: refused with a sentence, never silently turned into a number."""

from __future__ import annotations

from collections.abc import Sequence

from privkit.constraints import choice, real, whole

__all__ = ["choice", "delta", "orders", "real", "whole"]


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
