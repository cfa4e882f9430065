"""Arguments of accountants: refused with a sentence, never silently turned into a number."""

from __future__ import annotations

from privkit.constraints import choice, real, whole

__all__ = ["choice", "delta", "real", "whole"]


def delta(value: object, name: str = "delta") -> float:
    """δ, strictly between 0 and 1."""
    return real(name, value, above=0, below=1)
