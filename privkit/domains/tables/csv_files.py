"""Reads a user's CSV files as columns of text, and converts columns of numbers."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privkit.domains.files import BadRow, good_rows, numbered_lines, one_sentence
from privkit.errors import DataError, shortened

_FOREIGN = re.compile("[\udc80-\udcff]")
"""Characters that stand for a byte that is not UTF-8."""
_DELIMITER = re.compile("[;\t]")  # delimiters of spreadsheets whose numbers have a decimal comma


def csv_columns(
    name: str, root: Path, file: str, needed: Sequence[tuple[str, str]], filled: Collection[str], *, skip_bad: bool
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Read a CSV file with a header. Return the cells of each column by the column's name, and a tuple of notes: one
    sentence that says how many rows were omitted, or nothing if none were.

    Raises `DataError` if no row is good, or if two columns have the same name.

    Args:
        file: name of the file in `root`, plain or gzip (.gz); UTF-8, with or without a byte-order mark.
        needed: pairs of a dataset's option and the column that this option names; the file must have these columns.
        filled: columns in which no cell may be empty.
        skip_bad: whether to leave out bad rows instead of raising `DataError`. A row is bad if it is not UTF-8, has
            missing or extra cells, or has an empty cell in `filled`.
    """
    path = root / file
    # spreadsheets begin a file with a byte-order mark, which is part of no name
    text = (line.decode("utf-8-sig", "surrogateescape") for _, line in numbered_lines(name, root, file))
    lines = csv.reader(text)
    with one_sentence(name, path, "save it as CSV, one row per line"):
        header = next(lines, [])
    if _FOREIGN.search("".join(header)):
        raise DataError(f"{name}: the header of {path} is not UTF-8 text; save the file as UTF-8")
    for option, column in needed:
        if column not in header:
            known = f"name one of {', '.join(header)} with {option}=…" if header else "begin it with a header"
            if len(header) == 1 and (found := _DELIMITER.search(header[0])):
                known = f"separate its cells by commas, not by {found[0]!r}, and write numbers with a decimal point"
            raise DataError(f"{name}: {path} has no column {column!r}; {known}")
    if twice := [column for column, times in Counter(header).items() if times > 1]:
        raise DataError(f"{name}: {path} has several columns {shortened(twice[0])}; give each a name of its own")

    def even(row: list[str]) -> list[str]:
        if any(_FOREIGN.search(cell) for cell in row):
            raise BadRow("is not UTF-8 text", "save the file as UTF-8")
        if len(row) != len(header):
            raise BadRow(f"has {len(row)} cells instead of {len(header)}", "repair it")
        if empty := [column for column, cell in zip(header, row, strict=True) if column in filled and not cell.strip()]:
            raise BadRow(f"has no {empty[0]}", "fill it in")
        return row

    numbered = ((f"line {lines.line_num}", row) for row in lines if row)
    with one_sentence(name, path, "save it as CSV, one row per line"):
        rows, notes = good_rows(name, path, numbered, even, skip_bad=skip_bad)
    return dict(zip(header, zip(*rows, strict=True), strict=True)), notes


def dense_and_categorical(
    columns: Mapping[str, Sequence[str]],
) -> tuple[dict[str, NDArray[np.float64]], dict[str, Sequence[str]]]:
    """Separate dense columns, with only finite numbers or empty cells (NaN), from categorical columns."""
    dense = {name: numbers for name, cells in columns.items() if (numbers := _numbers(cells)) is not None}
    return dense, {name: cells for name, cells in columns.items() if name not in dense}


def need_classes(name: str, column: str, labels: Sequence[str]) -> None:
    """Raise `DataError` if a label column probably holds ids or measurements: it has at least 20 records, but fewer
    than two records per different label on average.
    """
    if len(labels) >= 20 and 2 * len(classes := set(labels)) > len(labels):
        raise DataError(
            f"{name}: {len(labels)} records have {len(classes)} different labels {column!r}; name a column of classes "
            "with label=…, or write a measurement in a few ranges"
        )


def nearly_dense(categorical: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """A hint for each categorical column in which most cells are numbers, since it may be meant as a dense column."""
    found = []
    for name, cells in categorical.items():
        words = [cell for cell in cells if _numbers([cell]) is None]
        if 0 < 2 * len(words) < len(cells):
            are, them = ("is not a number", "it") if len(words) == 1 else ("are not numbers", "them")
            found.append(
                f"the column {shortened(name)} is categorical: {len(words)} of its {len(cells)} cells {are}, such "
                f"as {shortened(words[0])}; empty {them} for a dense column"
            )
    return tuple(found)


def _numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    try:
        numbers = np.array([float(cell) if cell.strip() else np.nan for cell in cells])
    except ValueError:
        return None
    return None if np.isinf(numbers).any() else numbers
