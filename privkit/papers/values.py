"""Every number that a paper prints, as data: `values.csv` of its folder."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, kw_only=True)
class PrintedValue:
    """One printed number.

    Attributes:
        table: table, figure or section of the paper.
        row: of the table.
        column: of the table.
        value: as printed; None if the cell holds words, which `note` then gives.
        spread: the number after ±, or None.
        unit: unit, and the range of the data for an error of images.
        line: of the paper's text from which it was read.
        note: words of the cell.
    """

    table: str
    row: str
    column: str
    value: float | None
    spread: float | None
    unit: str
    line: int
    note: str


@cache
def printed_values(paper: str) -> tuple[PrintedValue, ...]:
    """All printed numbers of a paper, in its own order.

    Args:
        paper: name of its folder.

    >>> len(printed_values("dp_cutmixsl")) > 100
    True
    """
    text = (files(f"privkit.papers.{paper}") / "values.csv").read_text(encoding="utf-8")
    return tuple(
        PrintedValue(
            table=row["table"],
            row=row["row"],
            column=row["column"],
            value=float(row["value"]) if row["value"] else None,
            spread=float(row["spread"]) if row["spread"] else None,
            unit=row["unit"],
            line=int(row["line"]),
            note=row["note"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def printed(paper: str, table: str, row: str, column: str) -> float:
    """One printed number.

    Raises:
        KeyError: if the paper prints no such number.

    >>> printed("dp_cutmixsl", "Fig. 7", "DP-MixSL", "k₂*")
    28.55
    """
    for value in printed_values(paper):
        if (value.table, value.row, value.column) == (table, row, column) and value.value is not None:
            return value.value
    raise KeyError(f"{paper} prints no number in {table}, row {row!r}, column {column!r}")
