"""Read the rows of a parameter table from a file: CSV with commas, semicolons or tabs; TOML; or JSON."""

from __future__ import annotations

import csv
import errno
import json
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from privkit.accountants.columns import TOO_MANY, check_known, known, spelled

_MOST_BYTES = 1 << 26  # size limit of a TOML or JSON table, which is read whole
_MOST_DOTS = 200
_SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers")
_DELIMITERS = (",", ";", "\t")


class Cells(dict[str, Any]):
    """The cells of one row of a CSV file."""

    line = 0  # number of the line on which the row ends, as an editor counts


def load_rows(path: Path | None, stream: TextIO | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a parameter table, each as a dict from header to cell. A file named *.toml holds `[[row]]`
    tables, and *.json a list of objects. Any other file is CSV, and so is a stream.

    Of comma, semicolon and tab, CSV is split at the delimiter that yields the most known column names. Empty lines and
    lines that begin with # are skipped. A cell that a row lacks is empty. Raises ValueError if the file cannot be read
    in its format, or if a CSV header names an unknown column.
    """
    where = "standard input" if path is None else str(path)
    try:
        if path is None:
            assert stream is not None
            yield from _csv(stream, where)
        elif path.suffix == ".toml":
            yield from _objects(tomllib.loads(_whole_text(path)).get("row"), path)
        elif path.suffix == ".json":
            yield from _objects(json.loads(_whole_text(path)), path)
        else:
            _check_kind(path)
            if path.suffix.lower() in _SHEETS:
                raise ValueError(f"{where} is a spreadsheet ({path.suffix}); save its table as CSV in UTF-8")
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield from _csv(file, where)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error
    except OSError as error:
        raise ValueError(f"{where} cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ValueError(f"{where} is nested too deeply") from error
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ValueError(f"{where}: {error}") from error


def _check_kind(path: Path) -> None:
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a file")


def _whole_text(path: Path) -> str:
    _check_kind(path)
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES >> 20} MiB; save it as CSV, which is read row by row")
    text = data.decode("utf-8-sig")
    for number, line in enumerate(text.splitlines() if path.suffix == ".toml" else (), start=1):
        if line.count(".") > _MOST_DOTS:  # a dotted key takes time and memory in the square of its parts
            raise ValueError(f"{path} line {number} has more than {_MOST_DOTS} dots")
    return text


def _csv(file: Iterable[str], where: str) -> Iterator[Mapping[str, Any]]:
    counted = _Counted(file)
    lines = _content(counted)
    first = next(lines, "")
    if "\0" in first:
        raise ValueError(f"{where} is not text: it holds zero bytes; save the table as CSV in UTF-8")
    if not first.strip():
        raise ValueError(f"{where} is empty; its first line must name columns (see privkit epsilon --schema)")
    headers = {mark: [spelled(name) for name in next(csv.reader([first], delimiter=mark))] for mark in _DELIMITERS}
    delimiter = max(_DELIMITERS, key=lambda mark: sum(known(name) for name in headers[mark]))
    names = headers[delimiter]
    while names and not names[-1]:  # a delimiter at the end of the line
        names.pop()
    try:
        check_known(names)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{where} names the column {twice[0]!r} twice")
    for cells in csv.reader(lines, delimiter=delimiter):
        values = [cell.strip() for cell in cells]
        if any(values):
            row = Cells(zip(names, values + [""] * (len(names) - len(values)), strict=False))
            row.line = counted.line
            if any(values[len(names) :]):
                row[TOO_MANY] = values[len(names) :]
            yield row


class _Counted:
    def __init__(self, file: Iterable[str]) -> None:
        self._file, self.line = file, 0

    def __iter__(self) -> Iterator[str]:
        for self.line, text in enumerate(self._file, start=1):  # noqa: B020
            yield text


def _content(file: Iterable[str]) -> Iterator[str]:
    """The lines without comments and without empty lines before the header; a line inside quotes is not a comment."""
    quoted, begun = False, False
    for line in file:
        if not quoted and (line.lstrip().startswith("#") or not (begun or line.strip())):
            continue
        begun = True
        quoted ^= line.count('"') % 2 == 1
        yield line


def _objects(value: Any, path: Path) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        wanted = "[[row]] tables" if path.suffix == ".toml" else "a list of objects"
        raise ValueError(f"{path} must hold {wanted}, one per row")
    names = dict.fromkeys(spelled(name) for row in value for name in row)
    for row in value:
        yield names | {spelled(name): cell for name, cell in row.items()}
