"""One folder a paper: its formulas as published, its printed numbers, its experiments, and our results beside them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privkit.accountants.golden.case import Case

__all__ = ["reference_values"]


def reference_values() -> Iterator[Case]:
    """Every value that `privkit doctor` recomputes: the accountants' own, then the papers'."""
    from privkit.accountants import golden

    yield from golden.cases()
    for paper in ("accurate_sl", "dp_cutmixsl"):
        yield from import_module(f"{__name__}.{paper}.reference").CASES
