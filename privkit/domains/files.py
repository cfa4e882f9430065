"""Checks files of datasets: a missing or damaged file, or a bad row, raises an error of one sentence."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

from privkit.errors import DataError
from privkit.torch_utils.out_of_memory import ran_out


def need_root(name: str, root: Path | None, inside: str) -> Path:
    """Return the data root, the folder of all datasets. Raises `DataError` if `root` is None or no folder."""
    if root is None:
        raise DataError(
            f"{name} needs a data root: pass --data-root DIR (or set PRIVKIT_DATA) to the folder that holds {inside}"
        )
    if not os.path.isdir(root):  # False, unlike Path.is_dir, if permission is denied
        raise DataError(f"the data root {root} is not a folder; create it, or pass the one that holds {inside}")
    return root


def check_files(name: str, folder: Path, files: Sequence[tuple[str, str | None]], advice: str) -> None:
    """Raise `DataError` unless each file, a pair (name in `folder`, MD5 or None), exists and has the given MD5."""
    for file, md5 in files:
        path = folder / file
        if not path.is_file():
            raise DataError(f"{name}: {path} is missing; {advice}")
        if md5 is not None:
            with path.open("rb") as handle:
                if hashlib.file_digest(handle, "md5").hexdigest() != md5:
                    raise DataError(f"{name}: {path} is damaged (its MD5 is not the official one); {advice}")


def file_inside(name: str, root: Path, file: str, advice: str) -> Path:
    """Return the path of a user's file. Raises `DataError` if the file is missing or lies outside the data root."""
    path = root / file
    if not path.resolve().is_relative_to(root.resolve()):
        raise DataError(f"{name}: {file} lies outside of the data root {root}; name a file inside it")
    check_files(name, root, [(file, None)], advice)
    return path


def check_exists(name: str, folder: Path, advice: str) -> None:
    """Raise `DataError` if the folder is missing."""
    if not folder.is_dir():
        raise DataError(f"{name}: {folder} is missing; {advice}")


def reason(error: Exception) -> str:
    """The first sentence of an error, on one line. Torchvision's errors continue with advice on Python arguments."""
    return " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__


@contextmanager
def one_sentence(name: str, place: Path, advice: str) -> Iterator[None]:
    """Context manager that turns an error while `place` is read into a `DataError` of one sentence. It ends in
    `advice`, or says how to install a package that is missing. Errors of exhausted memory, and errors that already are
    a `DataError`, pass unchanged.
    """
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # pickle, csv, tarfile, gzip and h5py each raise their own kind
        if ran_out(error):
            raise
        # torchvision turns the ImportError of an optional package into a RuntimeError
        cause = error.__context__ if isinstance(error.__context__, ImportError) else error
        if isinstance(cause, ImportError) and cause.name:
            raise DataError(f"{name} needs one more package: pip install {cause.name}") from error
        raise DataError(f"{name}: {place} cannot be read ({reason(error)}); {advice}") from error


def advice_on_missing(download: bool) -> str:
    """What to do about a missing file, as text; `download` says whether a download was tried."""
    if download:
        return "the download did not bring it: fetch the official file by hand"
    return "put the official file there, or add --download to fetch it"


Raw = TypeVar("Raw")
_Row = TypeVar("_Row")


class BadRow(Exception):
    """Raised for an unusable row of a file; the message says what is wrong, and `cure` says how to repair the row."""

    def __init__(self, problem: str, cure: str) -> None:
        super().__init__(problem)
        self.cure = cure


def good_rows(
    name: str, path: Path, rows: Iterable[tuple[str, Raw]], parse: Callable[[Raw], _Row], *, skip_bad: bool
) -> tuple[list[_Row], tuple[str, ...]]:
    """Parse the rows of a file, given as pairs of a place such as "line 7" and the raw row; `parse` raises `BadRow` for
    a bad row. Returns the parsed rows, and a tuple with one sentence that counts omitted rows, or an empty tuple.
    Raises `DataError` if no row can be parsed, or if `skip_bad` is false and a row is bad.

    >>> good_rows("some", Path("a.txt"), [("line 1", b"yes"), ("line 2", bytes([255]))], utf8, skip_bad=True)
    (['yes'], ('1 of 2 rows of a.txt were left out as bad, the first because line 2 is not UTF-8 text',))
    """
    good: list[_Row] = []
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
    """Yield the first `most` lines (None: all) of a plain or gzip (.gz) file in the data root, as ("line 7", bytes).
    Raises `DataError` if the file is missing, lies outside the root, or cannot be unpacked.
    """
    advice = "put the whole file there, as it is or compressed by gzip (.gz)"
    path = file_inside(name, root, file, advice)
    with one_sentence(name, path, advice), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as handle:
        for number, line in enumerate(islice(handle, most), 1):
            yield f"line {number}", line.rstrip(b"\r\n")


def utf8(raw: bytes) -> str:
    """Decode UTF-8 bytes; raises `BadRow` for other bytes."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRow("is not UTF-8 text", "save the file as UTF-8") from None
