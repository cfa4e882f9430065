"""Reference values that `privkit doctor` recomputes: a file of JSON lines an area, and small evaluators beside it.

Values that no certificate rests on, such as those of other libraries' orders, are among the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from privkit.accountants.golden.case import Case

__all__ = ["AREAS", "Case", "cases"]

AREAS = ("auditing", "gaussian", "mixing", "permutations", "subsampling")
"""Modules of this folder; each reads its file into a tuple `CASES`."""


def cases() -> Iterator[Case]:
    """All cases, area by area."""
    for area in AREAS:
        yield from import_module(f"{__name__}.{area}").CASES
