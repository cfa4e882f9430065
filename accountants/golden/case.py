"""One reference value and the call that must reproduce it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reference value.

    Attributes:
        id: unique; the name of the case in the reference tables.
        what: the quantity, in words.
        compute: the call, without arguments.
        expected: the reference value.
        rel: relative tolerance.
        abs: absolute tolerance.
        source: where the reference value comes from.
    """

    id: str
    what: str
    compute: Callable[[], float]
    expected: float
    rel: float = 0.0
    abs: float = 0.0
    source: str = ""

    def check(self) -> tuple[bool, float]:
        """Whether the call reproduces the value, and what it gave.

        >>> Case(id="x", what="two", compute=lambda: 2.0, expected=2.0).check()
        (True, 2.0)
        """
        found = float(self.compute())
        return isfinite(found) and abs(found - self.expected) <= max(self.abs, self.rel * abs(self.expected)), found
