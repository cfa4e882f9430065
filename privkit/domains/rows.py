"""Rows of text files: a bad one is named with its line, and is skipped only on request."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from privkit.domains.official import file_inside, one_sentence
from privkit.errors import DataError

Raw = TypeVar("Raw")
Row = TypeVar("Row")


class BadRow(Exception):
    """A row that cannot be used: what is wrong with it, and how to repair it."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem)
        self.cure = cure


def good_rows(
    name: str, path: Path, rows: Iterable[tuple[str, Raw]], parse: Callable[[Raw], Row], *, skip_bad: bool
) -> tuple[list[Row], tuple[str, ...]]:
    """The rows that can be read.

    Args:
        name: of the dataset.
        path: of the file.
        rows: the place of each row in the file, such as "line 7", and its bytes.
        parse: turns bytes into a row, or raises `BadRow`.
        skip_bad: whether bad rows are left out; otherwise the first is an error.

    Returns:
        The good rows, and a sentence on those that were left out, if any.

    Raises:
        DataError: if a row is bad, with the count of good ones; or if none is good.

    >>> good_rows("some", Path("a.txt"), [("line 1", b"yes"), ("line 2", bytes([255]))], utf8, skip_bad=True)
    (['yes'], ('1 of 2 rows of a.txt were left out as bad, the first because line 2 is not UTF-8 text',))
    """
    good: list[Row] = []
    bad, first = 0, ("", "", "")
    for place, raw in rows:
        try:
            good.append(parse(raw))
        except BadRow as error:
            bad += 1
            first = (place, str(error), error.cure) if bad == 1 else first
    count = len(good) + bad
    if not count:
        raise DataError(f"{name}: {path} holds no row; add some")
    place, problem, cure = first
    if bad and not (skip_bad and good):
        skipping = "give --skip-bad-rows (skip_bad_rows=true)"
        beside = f", or {skipping} to go on with the {len(good)} of {count} rows that are good"
        raise DataError(f"{name}: {place} of {path} {problem}; {cure}{beside if good else ''}")
    left_out = f"{bad} of {count} rows of {path.name} were left out as bad, the first because {place} {problem}"
    return good, (left_out,) if bad else ()


def numbered_lines(name: str, root: Path, file: str, *, most: int | None = None) -> Iterator[tuple[str, bytes]]:
    """The lines of a file in the data root, as it is or compressed by gzip (.gz), each with its place.

    Args:
        name: of the dataset.
        root: the data root.
        file: its path there, without `..`.
        most: lines that are read; None for all.

    Raises:
        DataError: if it is missing, outside of the root or cannot be unpacked.
    """
    advice = "put the whole file there, as it is or compressed by gzip (.gz)"
    path = file_inside(name, root, file, advice)
    with one_sentence(name, path, advice), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as handle:
        for number, line in enumerate(islice(handle, most), 1):
            yield f"line {number}", line.rstrip(b"\r\n")


def utf8(raw: bytes) -> str:
    """The text of some bytes.

    Raises:
        BadRow: if they are not UTF-8.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRow("is not UTF-8 text", "save the file as UTF-8") from None
