"""The run folder with a single writer; its files survive killed processes, full disks and other commands."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from privkit.errors import DamagedFile, RunFolderError
from privkit.files.observed import leave_out
from privkit.files.paths import inside, open_file, root
from privkit.files.sealed import Broken, altered, digests
from privkit.files.storage import (
    append_line,
    make_folder,
    make_root,
    read_record,
    remove,
    sweep,
    write_bytes,
    write_record,
    writing,
)
from privkit.reports.schema import Manifest, Row
from privkit.run.differences import config_differences
from privkit.run.folder import RunFolder
from privkit.run.records import CELL_FILES, MADE_OF, TRAINED, holds, line, lines_of, parse_row, read_manifest, read_row

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


_FLUSH = 0.1  # smallest number of seconds between two flushes of lines to the disk
PATIENCE = 2.0  # seconds to wait for a writer that is about to end
LEADER = ".leader.json"  # file in the run folder while a command writes there: it names the process
SCRATCH = ".scratch"  # in the run folder: a folder for each cell that a worker computes


def check_usable(path: Path) -> Manifest | None:
    """The manifest of the run in a folder; None for an empty or missing folder; else raises `RunFolderError`."""
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if not os.path.isdir(there):
        raise RunFolderError(f"{there} is a file, and a run needs a folder; name a new or empty one with --out")
    if there != path:
        return None
    manifest = read_manifest(path)
    strangers = sorted(name for name in os.listdir(path) if not name.startswith("."))
    if manifest is None and strangers:
        raise RunFolderError(f"{path} holds other files ({strangers[0]}); name an empty or new folder with --out")
    return manifest


@contextmanager
def alone(run: Path) -> Iterator[None]:
    """A context manager in which no audit writes into a finished run's folder; raises `RunFolderError` if one does."""
    path = root(run)
    lock = FileLock(path / ".lock", poll_interval=0.01)
    if os.path.lexists(path / "manifest.json"):  # no lock file is made in another folder
        with writing(path / ".lock"):
            _acquire(lock, path)
    try:
        yield
    finally:
        lock.release()


class RunLedger(RunFolder):
    """The folder of one run. Inside a `with` statement, this process is its only writer.

    Raises `RunFolderError` for a folder of another configuration, with other files, or in use. `unlocked` says why the
    folder could not be locked; empty if it is locked. Workers recognize the folder by the random `token`.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__(path)
        self.manifest, self._planned = manifest, manifest.cells
        self.unlocked, self.token, self._flushed = "", secrets.token_hex(8), 0.0
        self._lock = FileLock(self.path / ".lock", poll_interval=0.01)
        check_usable(self.path)
        if os.path.lexists(self.path):
            self._own()  # before the lock file is created: a refused folder stays unchanged

    def __enter__(self) -> RunLedger:
        """Become the writer: continue the run in the folder, or begin a new run."""
        make_root(self.path)
        leave_out(self.path)
        with writing(self.path / ".lock"):
            self.unlocked = _acquire(self._lock, self.path, ", or name another folder with --out")
        try:
            earlier = self._own()  # checked again, since another process may have begun a run
            sweep(self.path)
            if earlier is not None:
                self.manifest = earlier
            else:
                self.save_manifest()
            for part in ("cells", "models", "controls"):
                with writing(self.path / part):
                    make_folder(self.path / part)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            here = {"token": self.token, "pid": os.getpid(), "host": platform.node(), "since": since}
            write_record(self.path / LEADER, here)
        except BaseException:
            self._lock.release()
            raise
        return self

    def _own(self) -> Manifest | None:
        """The manifest of an earlier run of this configuration, or None; raises `RunFolderError` for another run."""
        earlier = check_usable(self.path)
        if earlier is not None and earlier.fingerprint != self.manifest.fingerprint:
            begun = any(next(self.path.glob(pattern), None) for pattern in ("controls/*", "cells/*/result.json"))
            if not begun and not any(map(holds, self.path.glob("models/*"))):
                return None  # the earlier command was refused before it computed; the corrected one continues
            differs = next(config_differences(earlier.config, self.manifest.config), "its order")
            raise RunFolderError(
                f"{self.path} belongs to another configuration (it differs in {differs}); "
                "name another folder with --out, or repeat that run's command to resume it"
            )
        return earlier

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path.is_dir():
            remove(self.path / LEADER)
            if (self.path / SCRATCH).is_dir():
                with suppress(OSError):
                    (self.path / SCRATCH).rmdir()  # fails if a worker left files
        self._lock.release()

    def set_aside(self, homes: Iterable[Path]) -> None:
        """Move models and results to RUN/superseded before they are computed again, so that nothing is lost."""
        past = self.path / "superseded"
        numbers = [int(there.name) for there in past.glob("*") if there.name.isdigit()]
        here = past / str(max(numbers, default=0) + 1)
        with writing(past):
            for folder in (past, here, here / "cells", here / "models"):
                make_folder(folder)
            for home in homes:
                os.replace(home, here / home.relative_to(self.path))

    @property
    def results(self) -> Path:
        """The path of `results.jsonl`, with one result row in each line."""
        return self.path / "results.jsonl"

    def save_manifest(self) -> None:
        """Write the manifest."""
        write_record(self.path / "manifest.json", self.manifest.model_dump(mode="json"))

    def take(self, threads: int, settings: Mapping[str, Any]) -> None:
        """Write a continued run's threads, settings and plan into the manifest; an earlier version of privkit may have
        planned fewer cells."""
        changes = {"threads": threads, "settings": dict(settings), "cells": self._planned}
        if {name: getattr(self.manifest, name) for name in changes} != changes:
            self.manifest = self.manifest.model_copy(update=changes)
            self.save_manifest()

    def finished(self, cells: Iterable[str]) -> tuple[dict[str, Row], list[str]]:
        """Read the rows of the finished cells (defense, attack, seed): cell id -> row; and a sentence for each repaired
        file.

        The cells' `result.json` files are authoritative; `results.jsonl` is a copy, rewritten if it differs, from which
        a damaged file is restored. A cell runs again if it has no result, ended in an error, or has another damaged
        file.
        """
        rows = {}
        present, mended = self._lines()
        damaged = bool(mended)
        copies = {row.cell: row for row in map(parse_row, present)}
        for cell_id in cells:
            home = self.cell(cell_id)
            try:
                row = read_row(home)
            except DamagedFile as error:
                row = copies.get(cell_id)
                mended.append(f"{error}; {'the cell runs again' if row is None else 'restored from results.jsonl'}")
                if row is not None:
                    write_record(home / "result.json", row.model_dump(mode="json"))
            if row is None:
                continue
            if row.status == "error":
                remove(home / "result.json")
                continue
            wrong = altered(home, row.files)
            mended += [f"{home / name} {what}; the cell runs again" for name, what in wrong]
            if not wrong:
                rows[cell_id] = row
        wanted = {line(row): None for row in rows.values()}
        if damaged or sorted(present) != sorted(wanted):
            kept = {text: None for text in present if text in wanted}
            self._write_lines(kept | wanted)
        return rows, mended

    def store(self, files: Mapping[str, bytes], gone: Iterable[str] = ()) -> None:
        """Store a worker's `files` (path in the folder -> content), and remove the checkpoints `gone`. Files that mark
        work as finished are written last. Files of a finished model or result are not replaced, except a model's
        provenance, which also lists the files that the model's code read."""
        marks = {"models": TRAINED, "cells": "result.json"}
        for name in sorted(files, key=lambda name: (name.endswith(f"/{TRAINED}"), not name.endswith(f"/{MADE_OF}"))):
            path, mark = inside(self.path, *name.split("/")), marks.get(name.partition("/")[0])
            if mark is None or (mark, path.name) == (TRAINED, MADE_OF) or not (path.parent / mark).exists():
                write_bytes(path, files[name], flush=mark == TRAINED)  # `finish` flushes cells
        for name in gone:
            remove(inside(self.path, *name.split("/")))

    def recover(self, task: str = "*") -> None:
        """Store the files of a lost worker, and remove its folder; "*" means all tasks, for use when no worker runs."""
        for scratch in self.path.glob(f"{SCRATCH}/{task}"):
            there = RunFolder(scratch)
            if there.path == scratch:  # not a link
                self.store(there.contents(there.names()))
                shutil.rmtree(scratch, ignore_errors=True)

    def finish(self, row: Row) -> Row:
        """Store a result row (first its own file, then its line in `results.jsonl`), and return it. A killed process
        loses no stored row; a power failure may lose the last tenth of a second, which is computed again."""
        row = row.model_copy(update={"files": digests(self.cell(row.cell), CELL_FILES)})
        write_record(self.cell(row.cell) / "result.json", row.model_dump(mode="json"), flush=False)
        due = perf_counter() - self._flushed > _FLUSH
        append_line(self.results, line(row), flush=due)
        self._flushed = perf_counter() if due else self._flushed
        return row

    def arrange(self, rows: Iterable[Row]) -> None:
        """Sort the lines of `results.jsonl` into the order of `rows`, in which a single worker would write them."""
        wanted = [line(row) for row in rows]
        if [data.decode() for data in lines_of(self.results)] != wanted or self._flushed:
            self._write_lines(wanted)  # also flushes to disk

    def _write_lines(self, lines: Iterable[str]) -> None:
        write_bytes(self.results, "".join(f"{text}\n" for text in lines).encode())

    def _lines(self) -> tuple[list[str], list[str]]:
        whole, mended = [], []
        for number, data in enumerate(lines_of(self.results), start=1):
            try:
                parse_row(data)
                whole.append(data.decode())
            except Broken:
                mended.append(
                    f"{self.results} line {number} is truncated or damaged; rewritten from its cell's own result.json, "
                    "or its cell runs again"
                )
        return whole, mended


def _acquire(lock: FileLock, path: Path, cure: str = "") -> str:
    """Lock a run folder; return why it cannot be locked, or "". Raises `RunFolderError` if another process uses it."""
    if unlocked := _no_locks(open_file(path / ".lock", os.O_RDWR | os.O_CREAT)):
        return unlocked
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        try:
            other = read_record(path / LEADER) or {}
        except DamagedFile:
            other = {}
        who = f"process {other['pid']} on {other['host']}, since {other['since']}" if other else "of no name yet"
        raise RunFolderError(f"{path} is in use by another process ({who}); wait for it to end{cure}") from None
    return ""


def _no_locks(descriptor: int) -> str:
    try:
        if fcntl is None:
            return ""
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    except OSError as error:  # network file systems may lack locks
        return f"the run folder cannot be locked ({error.strerror}); start no second process on it"
    finally:
        os.close(descriptor)
    return ""
