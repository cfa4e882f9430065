"""Checks of the accountants' arguments: a bad value raises a ValueError that explains it."""

from __future__ import annotations

from privkit.constraints import choice, real, whole

__all__ = ["choice", "delta", "real", "whole"]


def delta(value: object, name: str = "delta") -> float:
    """Check that δ lies strictly between 0 and 1, and return it."""
    return real(name, value, above=0, below=1)
