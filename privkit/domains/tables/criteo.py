"""Criteo's display advertising challenge: whether an advertisement was clicked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from privkit.constraints import Checked, Count
from privkit.domains.base import Pools
from privkit.domains.official import need_root
from privkit.domains.rows import BadRow, good_rows, numbered_lines, utf8
from privkit.domains.tables.reading import table_pools
from privkit.errors import shortened

FIELDS = 40
_ROW = re.compile(r"[01](\t(-?\d+)?){13}(\t([0-9a-f]{8})?){26}")
_CURE = "write label 0 or 1, 13 whole numbers and 26 words of 8 hex digits, separated by tabs; a missing one is empty"


@dataclass(frozen=True, kw_only=True)
class Criteo(Checked):
    """Criteo: 45,840,617 impressions, 13 counts and 26 categories each; the label says whether one was clicked.

    A missing count becomes its column's median, a missing category is a category of its own. The official test file
    has no labels, so test records are drawn from the training file.

    Attributes:
        file: the official training file in the data root, as it is or compressed by gzip (.gz).
        rows: that are read, from the first; ranges and categories are taken from them, as public.
        scale: "log" takes log(1 + max(count, 0)) of each count, whose columns are then called log I1 and so on;
            "linear" takes it as it is.
        skip_bad_rows: whether rows with missing or extra fields are left out. The row of an audit says how many.

    Source: Criteo Labs 2014, display advertising challenge; patch_shuffling, Table III.
    """

    name: ClassVar[str] = "criteo"
    domain: ClassVar[str] = "tables"

    file: str = "train.txt"
    rows: Count = 100_000
    scale: Literal["log", "linear"] = "log"
    skip_bad_rows: bool = False

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        root = need_root(self.name, root, self.file)
        lines = numbered_lines(self.name, root, self.file, most=self.rows)
        rows, notes = good_rows(self.name, root / self.file, lines, _fields, skip_bad=self.skip_bad_rows)
        labels, *columns = zip(*rows, strict=True)
        counts = np.array([[float(cell or "nan") for cell in column] for column in columns[:13]])
        if self.scale == "log":
            counts = np.log1p(np.maximum(counts, 0))
        prefix = "log " if self.scale == "log" else ""
        dense = {f"{prefix}I{place}": column for place, column in enumerate(counts, 1)}
        return table_pools(dense, {f"C{place}": column for place, column in enumerate(columns[13:], 1)}, labels, notes)


def _fields(line: bytes) -> list[str]:
    """Label, counts and categories of a line."""
    row = utf8(line)
    fields = row.split("\t")
    if not _ROW.fullmatch(row):
        if len(fields) != FIELDS:
            raise BadRow(f"has {len(fields)} fields instead of {FIELDS}", _CURE)
        place = next(n for n, cell in enumerate(fields, 1) if not _ALLOWED[(n > 1) + (n > 14)].fullmatch(cell))
        raise BadRow(f"has {shortened(fields[place - 1])} in field {place}", _CURE)
    return fields


_ALLOWED = (re.compile("[01]"), re.compile(r"(-?\d+)?"), re.compile("([0-9a-f]{8})?"))
"""What the label, a count and a category may be."""
