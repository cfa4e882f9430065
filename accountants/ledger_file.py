"""A ledger's numbered JSON lines on disk: locked, flushed, checksummed, never rewritten, and safe against a kill."""

from __future__ import annotations

import json
import os
import stat
import zlib
from contextlib import suppress
from functools import lru_cache
from numbers import Integral
from pathlib import Path

from privkit.accountants import validate
from privkit.accountants.spec import records
from privkit.accountants.spec.mechanism import SplitMechanism

_SEED = zlib.crc32(b"privkit ledger 1")  # checksum before the first line; the number is the format's version
MECHANISM = ', "mechanism": '  # text before the mechanism, the last field of a line


class LedgerError(ValueError):
    """Raised if a ledger is damaged, closed, unwritable or used by another process, or if a file is not a ledger."""


class LedgerFile:
    """An append-only file of JSON objects, one on each line. A line starts with its number and ends with a checksum.

    The checksum covers the line and all lines before it, so that a changed, missing or foreign line is found. An
    incomplete last line means that the process was killed before `append` returned. Opening the file removes this line
    and adds a sentence to `remarks`. A missing file is created, with its folders.

    Attributes:
        path: the file.
        lines: number of complete lines.
        remarks: sentences about problems on opening.

    Raises:
        LedgerError: if the file is damaged, is not a ledger, cannot be written, or is in use by another process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = LedgerFile(Path(folder, "lines.jsonl"))
    ...     file.append('"note": "first"')
    ...     file.close()
    ...     LedgerFile(file.path).read()
    ['{"charge": 1, "note": "first"}']
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, 0
        self.remarks: tuple[str, ...] = ()
        self._bodies: list[str] = []
        self._check, self._size, self._process = _SEED, 0, os.getpid()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise LedgerError(f"cannot open the ledger {path}: {error.strerror or error}") from None
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise LedgerError(f"{path} is not an ordinary file, so nothing written to it would be kept")
            self._lock()
            self._take_up()
        except BaseException:
            self.close()
            raise

    def read(self) -> list[str]:
        """Return the lines found on opening, without their checksums. Only the first call returns them."""
        bodies, self._bodies = self._bodies, []
        return bodies

    def append(self, fields: str) -> None:
        """Number a line, write it, and return once it is on disk.

        `fields` is the JSON text between the braces, ASCII only. Raises `LedgerError` if the disk is full, or if the
        file is closed or was changed (see `check`).
        """
        self.check()
        body = f"{_start(self.lines + 1)}{fields}".encode("ascii")
        check = zlib.crc32(body, self._check)
        self._write(body + _end(check) + b"\n")
        self.lines, self._check = self.lines + 1, check

    def close(self) -> None:
        """Close the file, so that others can open it."""
        self._file.close()

    def check(self) -> None:
        """Raise `LedgerError` if the file is closed, copied into another process, or changed by somebody else."""
        if self._file.closed:
            raise LedgerError(f"the ledger {self.path} is closed; open it again")
        if os.getpid() != self._process:
            raise LedgerError(f"the ledger {self.path} was opened by another process, which alone may write to it")
        here, same = os.fstat(self._file.fileno()), False
        with suppress(OSError):
            same = os.path.samestat(here, os.stat(self.path))
        if not same or here.st_size != self._size:
            raise LedgerError(f"the ledger {self.path} was changed or moved by somebody else; open it again")

    def _write(self, data: bytes) -> None:
        """Write once and flush to disk; a line cut off by a full disk is removed. After a failure, close the file."""
        try:
            if self._file.write(data) != len(data):
                raise OSError("the disk is full")
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self._size)
            self.close()
            raise LedgerError(
                f"cannot write the ledger {self.path}: {error.strerror or error}; release nothing, free some space and "
                "open it again"
            ) from None
        except BaseException:  # interrupted: the next opening finds out whether the line is on disk
            self.close()
            raise
        self._size += len(data)

    def _lock(self) -> None:
        alone = "make sure that only one process writes to this ledger"
        try:
            import fcntl
        except ImportError:
            self.remarks += (f"this system has no file locks: {alone}",)
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"the ledger {self.path} is in use by another run: wait for it, or name another"
            ) from None
        except OSError as error:
            self.remarks += (f"this folder has no file locks ({error.strerror}): {alone}",)

    def _take_up(self) -> None:
        self._file.seek(0)
        head, newline, tail = self._file.readall().rpartition(b"\n")
        for line in head.split(b"\n") if newline else ():
            if not self._take(line):
                raise LedgerError(self._damage())
        self._size = len(head) + len(newline)
        if tail and self._take(tail):  # only the newline is missing: cut by an editor, or killed before the last byte
            self._size += len(tail)
            self._write(b"\n")
        elif tail:
            if not _torn(tail, self.lines + 1):
                raise LedgerError(self._damage())
            os.ftruncate(self._file.fileno(), self._size)
            os.fsync(self._file.fileno())
            torn = f"line {self.lines + 1} was cut off by a kill and dropped: its release had not been made"
            self.remarks += (torn,)
        if not self._size:
            _sync_folder(self.path.parent)

    def _take(self, line: bytes) -> bool:
        body, _, _ = line.rpartition(b', "check": ')
        check = zlib.crc32(body, self._check)
        if line != body + _end(check) or not body.startswith(_start(self.lines + 1).encode()):
            return False
        self._bodies.append(body.decode("ascii") + "}")
        self.lines, self._check = self.lines + 1, check
        return True

    def _damage(self) -> str:
        if not self.lines:
            return f"{self.path} is not a ledger, or is damaged in its first line: name another file"
        return (
            f"the ledger {self.path} is damaged in line {self.lines + 1}, and only this line says what was released: "
            f"restore the file from a copy"
        )


def _start(number: int) -> str:
    return f'{{"charge": {number}, '


def _end(check: int) -> bytes:
    return f', "check": "{check:08x}"}}'.encode()


def _torn(tail: bytes, number: int) -> bool:
    """Whether the bytes can be an incomplete line, rather than a whole line followed by other bytes."""
    start = _start(number).encode()
    _, mark, check = tail.rpartition(b', "check": "')  # cannot occur in a note, whose quotes are escaped
    return (tail.startswith(start) or start.startswith(tail)) and not (mark and len(check) >= len('01234567"}'))


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@lru_cache(maxsize=256)
def json_and_mechanism(mechanism: SplitMechanism) -> tuple[str, SplitMechanism]:
    """A mechanism as JSON, and the mechanism that reading this JSON gives: numpy's numbers become Python's."""
    plain = records.to_json(mechanism)
    text = json.dumps(plain, default=lambda number: (int if isinstance(number, Integral) else float)(number))
    return text, _mechanism_of_json(text)


@lru_cache(maxsize=256)
def _mechanism_of_json(text: str) -> SplitMechanism:
    spec = records.from_json(json.loads(text))
    if not isinstance(spec, SplitMechanism):
        raise ValueError(f"a charge is for a split_mechanism, got {text[:40]}")
    return spec


def charge_of_line(line: str) -> tuple[SplitMechanism, int, tuple[float, float] | None]:
    """Parse a line of a ledger: the mechanism, its number of rounds, and the budget (ε, δ) of the filter that admitted
    the charge. The budget is None without a filter."""
    head, _, text = line.partition(MECHANISM)  # cannot occur in the note, whose quotes are escaped
    fields = json.loads(head + "}")
    kept = fields.get("filter")
    budget = None if kept is None else (float(kept[0]), float(kept[1]))
    return _mechanism_of_json(text[:-1]), validate.whole("rounds", fields.get("rounds")), budget
