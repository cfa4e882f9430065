"""Reference values that `privkit doctor` recomputes with the libraries that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from privkit.accountants.golden.case import Case

AREAS = ("auditing", "gaussian", "mixing", "permutations", "subsampling")
"""Modules of this folder; each has a tuple `CASES`."""


def cases() -> Iterator[Case]:
    """All cases, area by area."""
    for area in AREAS:
        yield from import_module(f"{__name__}.{area}").CASES
