"""The folder of a run, which is written: safe against kills, full disks and other runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from privkit.errors import DamagedFile, RunFolderError
from privkit.files.observed import leave_out
from privkit.files.paths import file_name, inside, open_file, root
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
from privkit.reports.origins import differences
from privkit.reports.schema import Check, Manifest, Provenance, Row
from privkit.run.differences import config_differences
from privkit.run.plan import Cell, short_hash
from privkit.run.records import (
    GUESSES,
    MADE_OF,
    PICTURES,
    SCORES,
    TRIALS,
    holds,
    line,
    lines_of,
    parse_row,
    read_manifest,
    read_row,
)
from privkit.run.sources import as_it_is_now
from privkit.run.workers import HEARTBEAT, STALE, Role, Worker, Workers

if TYPE_CHECKING:
    from privkit.run.ingredients import Ingredients

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


PATIENCE = 300.0
"""Seconds to wait for another worker that writes what all share, which takes it milliseconds."""
CELL_FILES = ("spec.json", PICTURES, SCORES, GUESSES, TRIALS)
"""Files that a cell's record lists, if they exist."""


def check_usable(path: Path) -> Manifest | None:
    """Refuse a place where no run can be, before anything is made there.

    Returns:
        The manifest of the run that it holds; None if it is empty or not there.

    Raises:
        RunFolderError: if it is a file, or holds other files.
    """
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


class RunFolder:
    """The folder of one run; use it in a `with` block, which makes this process one of its workers.

    Args:
        path: created if absent; must be empty or hold this configuration's run.
        manifest: of the run that is about to start.
        role: "audit" for the command that plans and reports, which is alone in this; "work" for its helpers.

    Attributes:
        unlocked: why the folder could not be locked, in a sentence; empty where it is.
        workers: who works on the run.
        alone: whether nobody else worked on it when this process began.

    Raises:
        RunFolderError: if the path is a file, or the folder belongs to another configuration, holds other files or is
            in use.
    """

    def __init__(self, path: Path, manifest: Manifest, role: Role = "audit") -> None:
        self.path = root(path)
        self.manifest = manifest
        self.workers = Workers(self.path, role)
        self._lock = FileLock(self.path / ".lock", poll_interval=0.01)
        self.unlocked, self.alone = "", True
        check_usable(self.path)
        if os.path.lexists(self.path):
            self._own(begun=False)  # refused folders stay as they were, without even a lock

    def __enter__(self) -> RunFolder:
        """Join the run, or begin it."""
        make_root(self.path)
        leave_out(self.path)
        with writing(self.path / ".lock"):
            self.unlocked = _no_locks(open_file(self.path / ".lock", os.O_RDWR | os.O_CREAT))
        with self.exclusive():
            if not self.unlocked:
                self.workers.enter()
            try:
                self._join()
            except BaseException:
                self.leave()
                raise
        return self

    def _join(self) -> None:
        """Go on with the run that is here, or begin one."""
        others = self.others()
        for other in others:
            if self.workers.own.role == other.role == "audit":
                raise RunFolderError(
                    f"{self.path} is in use by another process ({other.described}); wait for it to end, or help it "
                    f"with: privkit work {self.path}"
                )
        self.alone = not others
        earlier = self._own(begun=not self.alone)  # again: another process may have begun a run since
        if self.alone:
            sweep(self.path)
            self.workers.clear()
        if earlier is not None:
            self.manifest = earlier
        else:
            self.save_manifest()
        for part in ("cells", "models", "controls"):
            with writing(self.path / part):
                make_folder(self.path / part)

    def others(self) -> list[Worker]:
        """The other workers of the run; call it under the lock. A damaged record is given time to be mended.

        Raises:
            RunFolderError: if a record stays damaged.
        """
        for _ in range(30):
            if (others := self.workers.others()) is not None:
                return others
            time.sleep(HEARTBEAT / 10)
        raise RunFolderError(
            f"a record in {self.workers.folder} is damaged, and its worker does not write it anew; if that worker was "
            f"lost, it counts as gone {STALE:.0f} seconds after its last heartbeat: run the command again then"
        )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep the other workers of the run from writing what all of them share.

        Raises:
            RunFolderError: if another process holds the run for too long.
        """
        if self.unlocked:
            yield
            return
        try:
            os.stat(self.path)  # the lock would make a folder that was removed anew
            self._lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise RunFolderError(f"{self.path} is in use by another process; wait for it to end") from None
        except OSError as error:
            with writing(self.path / ".lock"):
                raise error
        try:
            yield
        finally:
            self._lock.release()

    def _own(self, *, begun: bool) -> Manifest | None:
        """The manifest of this configuration's earlier run here, None where nothing is begun; all else is refused.

        Args:
            begun: whether somebody works on it, so that it counts as begun in any case.
        """
        earlier = check_usable(self.path)
        if earlier is None:
            return None
        if earlier.fingerprint != self.manifest.fingerprint:
            if not begun and not self._begun():
                return None  # refused over its data, batch size or model: the mended command goes on
            differs = next(config_differences(earlier.config, self.manifest.config), "its order")
            raise RunFolderError(
                f"{self.path} belongs to another configuration (it differs in {differs}); "
                "name another folder with --out, or repeat that run's command to resume it"
            )
        return earlier

    def _begun(self) -> bool:
        """Whether anything was computed: a model, a control experiment or a finished cell."""
        some = any(next(self.path.glob(pattern), None) for pattern in ("controls/*", "cells/*/result.json"))
        return some or any(map(holds, self.path.glob("models/*")))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the run."""
        self.leave()

    def leave(self) -> None:
        """Be no worker of the run any more; what this process claims is free."""
        self.workers.leave()
        if self.workers.folder.is_dir():
            with suppress(Timeout, OSError), self._lock.acquire(blocking=False):
                self.workers.clear()
                self.workers.folder.rmdir()  # if this was the last one

    def cell(self, cell_id: str) -> Path:
        """Folder of a cell."""
        return inside(self.path, "cells", cell_id)

    def model(self, model_id: str) -> Path:
        """Folder of a defended model."""
        return inside(self.path, "models", model_id)

    def control(self, attack: dict[str, Any]) -> Path:
        """File of an attack's control experiments."""
        return inside(self.path, "controls", f"{file_name(attack['name'])}-{short_hash(attack)}.json")

    def read_checks(self, path: Path, seed: int, made_of: Provenance) -> tuple[tuple[Check, ...], float] | None:
        """Checks stored by `write_checks` and their seconds, None if there are none or they are made of something else.

        Control experiments are done once a run, on the images of the seed that comes to them first.
        """
        record = read_record(path, control=path.stem)
        if record is None:
            return None
        past = Provenance.model_validate(record["made_of"])
        if record["seed"] != seed:
            past = past.model_copy(update={"data": made_of.data})
        if differences(past, as_it_is_now(past, made_of)):
            return None
        return tuple(Check.model_validate(check) for check in record["checks"]), record["seconds"]

    def write_checks(
        self, path: Path, seed: int, made_of: Provenance, checks: tuple[Check, ...], seconds: float
    ) -> None:
        """Store checks with what they are made of and what they took."""
        fields = {"made_of": made_of.model_dump(), "checks": [check.model_dump(mode="json") for check in checks]}
        write_record(path, {"control": path.stem, "seed": seed, "seconds": seconds, **fields})

    def made_of(self, home: Path) -> Provenance | None:
        """What a model or a cell that began is made of, None where nothing says so.

        Args:
            home: its folder.
        """
        try:
            record = read_record(home / MADE_OF, of=home.name)
        except DamagedFile:
            return None
        return None if record is None else Provenance.model_validate(record["made_of"])

    def begin(self, cell: Cell, made_of: Ingredients) -> None:
        """Store what a cell and its model are made of, before they are made; and again, when more of it was seen.

        Raises:
            RunFolderError: if the images or a file changed since this command looked at them.
        """
        for home, provenance in ((self.model(cell.model_id), made_of.model), (self.cell(cell.id), made_of.cell)):
            known, changes = self.made_of(home), list[str]()
            if known is not None:
                provenance = as_it_is_now(known, provenance)
                seen = known.model_copy(update={"files": provenance.files | known.files})
                changes = differences(seen, provenance, seed=cell.seed)
                if not changes and seen.files == known.files:
                    continue
            if changes and holds(home):
                raise RunFolderError(f"{', '.join(changes)} changed while this command ran; run it again")
            write_record(home / MADE_OF, {"of": home.name, "made_of": provenance.model_dump()})

    def note(self, cell: Cell, made_of: Ingredients) -> Provenance:
        """Store what the code of a cell and its model was seen to read so far, and return what the row is made of.

        Raises:
            UsageError: if a file was edited since the code read it.
            RunFolderError: if it is not what an earlier process of this run read.
        """
        if not made_of.cell.code:
            return made_of.cell
        seen = made_of.seen()
        self.begin(cell, seen)
        model = self.made_of(self.model(cell.model_id))  # another process may have trained it
        files = {} if model is None else model.files
        return seen.cell.model_copy(update={"files": files | seen.cell.files})

    def set_aside(self, homes: Iterable[Path]) -> None:
        """Move models and cells that are to be made anew to RUN/superseded: nothing finished is lost."""
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
        """One row a finished cell."""
        return self.path / "results.jsonl"

    def save_manifest(self) -> None:
        """Write the manifest."""
        write_record(self.path / "manifest.json", self.manifest.model_dump(mode="json"))

    def take(self, threads: int, settings: Mapping[str, Any]) -> None:
        """Note in the manifest with how many threads and with which settings the run goes on."""
        changes = {"threads": threads, "settings": dict(settings)}
        if {name: getattr(self.manifest, name) for name in changes} != changes:
            self.manifest = self.manifest.model_copy(update=changes)
            self.save_manifest()

    def finished(self, cells: Iterable[str], *, errors: bool = False) -> tuple[dict[str, Row], list[str]]:
        """Rows of the finished cells, and a sentence for everything that had to be mended.

        The cells' own `result.json` are the truth; `results.jsonl` is their append-only copy, which is written anew
        where it differs. A damaged `result.json` is restored from a whole line of the copy. A cell runs again where
        there is none, or where another file of the cell is damaged.

        Args:
            cells: ids of the planned cells.
            errors: whether cells that ended in an error count as finished; else their result is removed, and they run
                again.
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
            if row.status == "error" and not errors:
                remove(home / "result.json")
                continue
            wrong = altered(home, row.files)
            mended += [f"{home / name} {what}; the cell runs again" for name, what in wrong]
            if not wrong:
                rows[cell_id] = row
        wanted = [line(row) for row in rows.values()]
        if damaged or sorted(present) != sorted(wanted):
            kept = [text for text in dict.fromkeys(present) if text in wanted]
            self._write_lines([*kept, *(text for text in wanted if text not in kept)])
        return rows, mended

    def stored(self, cell_id: str) -> Row | None:
        """The row of a cell whose files are whole, None if there is none."""
        home = self.cell(cell_id)
        try:
            row = read_row(home)
        except DamagedFile:
            return None
        return None if row is None or altered(home, row.files) else row

    def finish(self, row: Row) -> Row:
        """Store a finished cell: first its own file, then the line in `results.jsonl`; the row as it was stored."""
        row = row.model_copy(update={"files": digests(self.cell(row.cell), CELL_FILES)})
        write_record(self.cell(row.cell) / "result.json", row.model_dump(mode="json"))
        append_line(self.results, line(row))
        return row

    def arrange(self, rows: Iterable[Row]) -> None:
        """Bring the lines of `results.jsonl` into the order of these rows, as one worker alone writes them."""
        wanted = [line(row) for row in rows]
        if [data.decode() for data in lines_of(self.results)] != wanted:
            self._write_lines(wanted)

    def _write_lines(self, lines: Iterable[str]) -> None:
        """Write `results.jsonl` anew."""
        write_bytes(self.results, "".join(f"{text}\n" for text in lines).encode())

    def _lines(self) -> tuple[list[str], list[str]]:
        """Whole lines of `results.jsonl`, and what is wrong with the others."""
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


def _no_locks(descriptor: int) -> str:
    """Why this system cannot lock a file, in a sentence; empty if it can."""
    try:
        if fcntl is None:
            return ""
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""
    except OSError as error:  # network file systems may have none
        return f"the run folder cannot be locked ({error.strerror}); start no second process on it"
    finally:
        os.close(descriptor)
    return ""
