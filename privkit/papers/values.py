"""Every number that a paper prints, read from `values.csv` in its folder."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from privkit.files.toml_text import parse_toml


@dataclass(frozen=True, kw_only=True)
class PrintedValue:
    """One number that a paper prints, with its place."""

    table: str  # table, figure or section of the paper
    row: str  # row of the table
    column: str  # column of the table
    value: float | None  # the number as printed; None if words are printed, which `note` then gives
    spread: float | None  # the number after ±; None if there is none
    unit: str  # unit of the number; for an error of images, also their range
    line: int  # the line of the paper's text with this value
    note: str  # words printed instead of a number; for a setting, why privkit's experiments use another value


@cache
def paper_toml(name: str, paper: str = "") -> dict[str, Any]:
    """Read a TOML file in a paper's folder, by default in the folder of all papers; empty without such a file."""
    file = files(f"privkit.papers.{paper}".rstrip(".")) / name
    return parse_toml(file.read_text(encoding="utf-8")) if file.is_file() else {}


@cache
def printed_values(paper: str) -> tuple[PrintedValue, ...]:
    """Read all numbers that a paper prints, in the paper's order; `paper` is the name of its folder."""
    text = (files(f"privkit.papers.{paper}") / "values.csv").read_text(encoding="utf-8")
    reading: dict[str, Callable[[str], Any]] = {"value": _number, "spread": _number, "line": int}
    return tuple(
        PrintedValue(**{name: reading.get(name, str)(cell) for name, cell in row.items()})
        for row in csv.DictReader(text.splitlines())
    )


def deviations(paper: str) -> tuple[PrintedValue, ...]:
    """Printed settings of a paper that privkit's experiments do not follow; each value's field `note` says why."""
    of_settings = (one for one in printed_values(paper) if one.table in ("settings", "Table 2"))
    return tuple(one for one in of_settings if one.note and one.value is not None)


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def printed(paper: str, table: str, row: str, column: str) -> float:
    """One number that a paper prints, by its table, row and column. Raises `KeyError` if there is no such number."""
    for value in printed_values(paper):
        if (value.table, value.row, value.column) == (table, row, column) and value.value is not None:
            return value.value
    raise KeyError(f"{paper} prints no number in {table}, row {row!r}, column {column!r}")
