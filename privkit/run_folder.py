"""A run on disk: manifest, cells, results; safe against kills, full disks and other runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from privkit.errors import DamagedFile, RunFolderError
from privkit.grid import short_hash
from privkit.paths import MOST_TEXT, inside, open_file, read_bytes
from privkit.reports.schema import SCHEMA_VERSION, Gate, Manifest, Row
from privkit.storage import append_line, make_folder, write_bytes, write_text, writing

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


SCORES = "scores.npz"
"""In a cell's folder: values float64 [N] and positive bool [N], of attacks that tell two kinds of examples apart."""

Model = TypeVar("Model", bound=BaseModel)


class RunFolder:
    """The folder of one run; use it in a `with` block, which locks it.

    Args:
        path: created if absent; must be empty or hold this configuration's run.
        manifest: of the run that is about to start.

    Attributes:
        unlocked: why the folder could not be locked, in a sentence; empty where it is.

    Raises:
        RunFolderError: if the path is a file, or the folder belongs to another configuration, holds other files or is
            in use.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = Path(os.path.realpath(path))
        self.manifest = manifest
        self._lock: Any = None
        self.unlocked = ""
        there = next(place for place in (self.path, *self.path.parents) if os.path.lexists(place))
        if not os.path.isdir(there):
            raise RunFolderError(f"{there} is a file, and a run needs a folder; name a new or empty one with --out")
        if there == self.path:
            self._own()  # refused folders stay as they were, without even a lock

    def __enter__(self) -> RunFolder:
        """Lock the folder against a second process, then take it over or go on with its run."""
        with writing(self.path / ".lock"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.fdopen(open_file(self.path / ".lock", os.O_RDWR | os.O_CREAT), "rb+")
        try:
            self.unlocked = _lock(self._lock)
            found = self._own()  # again: another process may have begun a run since
            if found is not None:
                self.manifest = found
            else:
                self.save_manifest()
            for part in ("cells", "models", "controls"):
                with writing(self.path / part):
                    make_folder(self.path / part)
        except BlockingIOError:
            self._lock.close()
            raise RunFolderError(f"{self.path} is in use by another process; wait for it to end") from None
        except BaseException:
            self._lock.close()
            raise
        return self

    def _own(self) -> Manifest | None:
        """The manifest of this configuration's earlier run here, None where nothing is begun; all else is refused."""
        found = read_manifest(self.path)
        if found is None:
            strangers = sorted(name for name in os.listdir(self.path) if not name.startswith("."))
            if strangers:
                raise RunFolderError(
                    f"{self.path} holds other files ({strangers[0]}); name an empty or new folder with --out"
                )
        elif found.fingerprint != self.manifest.fingerprint:
            if not self._begun():
                return None  # refused over its data, batch size or model: the mended command goes on
            differs = _difference(found.config, self.manifest.config)
            raise RunFolderError(
                f"{self.path} belongs to another configuration (it differs in {differs}); "
                "name another folder with --out, or repeat that run's command to resume it"
            )
        return found

    def _begun(self) -> bool:
        """Whether anything was computed: a model, a control experiment or a finished cell."""
        return any(next(self.path.glob(found), None) for found in ("models/*/*", "controls/*", "cells/*/result.json"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlock."""
        self._lock.close()

    def cell(self, cell_id: str) -> Path:
        """Folder of a cell."""
        return inside(self.path, "cells", cell_id)

    def model(self, model_id: str) -> Path:
        """Folder of a defended model."""
        return inside(self.path, "models", model_id)

    def control(self, attack: dict[str, Any]) -> Path:
        """File of an attack's control experiments."""
        return inside(self.path, "controls", f"{attack['name']}-{short_hash(attack)}.json")

    def read_gates(self, path: Path) -> tuple[Gate, ...] | None:
        """Gates stored by `write_gates`, None where there are none."""
        return _read(path, _Gates).gates if path.exists() else None

    def write_gates(self, path: Path, gates: tuple[Gate, ...]) -> None:
        """Store gates."""
        write_text(path, _Gates(gates=gates).model_dump_json(indent=2) + "\n")

    @property
    def results(self) -> Path:
        """One row a finished cell."""
        return self.path / "results.jsonl"

    def save_manifest(self) -> None:
        """Write the manifest."""
        write_text(self.path / "manifest.json", self.manifest.model_dump_json(indent=2) + "\n")

    def note_dataset(self, seed: int, hashes: dict[str, dict[str, int | str]]) -> None:
        """Put the splits' hashes into the manifest, or refuse data that changed since the run began.

        Raises:
            RunFolderError: if a resumed run reads other images than before.
        """
        known = self.manifest.datasets.get(str(seed))
        if known == hashes:
            return
        if known is not None:
            raise RunFolderError(
                f"the images of seed {seed} are not those that {self.path} began with; "
                "restore the data, or name another folder with --out"
            )
        datasets = {**self.manifest.datasets, str(seed): hashes}
        self.manifest = self.manifest.model_copy(update={"datasets": datasets})
        self.save_manifest()

    def finished(self, cells: Iterable[str]) -> tuple[dict[str, Row], list[str]]:
        """Rows of the finished cells, and a sentence for everything that had to be mended.

        The cells' own `result.json` are the truth; `results.jsonl` is their append-only copy. A line that a kill cut
        off is written anew. Cells that ended in an error run again.
        """
        rows = {}
        for cell_id in cells:
            path = self.cell(cell_id) / "result.json"
            if path.exists():
                row = _read(path, Row)
                if row.status != "error":
                    rows[cell_id] = row
        wanted = [row.model_dump_json() for row in rows.values()]
        present, mended = self._lines()
        if mended or sorted(present) != sorted(wanted):
            kept = [line for line in present if line in wanted]
            missing = [line for line in wanted if line not in kept]
            write_bytes(self.results, "".join(line + "\n" for line in (*kept, *missing)).encode())
        return rows, mended

    def finish(self, row: Row) -> None:
        """Store a finished cell: first its own file, then the line in `results.jsonl`."""
        write_text(self.cell(row.cell) / "result.json", row.model_dump_json(indent=2) + "\n")
        append_line(self.results, row.model_dump_json())

    def _lines(self) -> tuple[list[str], list[str]]:
        """Whole lines of `results.jsonl`, and what is wrong with the others."""
        whole, mended = [], []
        for number, line in enumerate(_lines_of(self.results), start=1):
            try:
                Row.model_validate_json(line)
                whole.append(line.decode())
            except ValidationError:
                mended.append(
                    f"{self.results} line {number} is truncated or damaged; rewritten from its cell's own result.json, "
                    "or its cell runs again"
                )
        return whole, mended


class _Gates(BaseModel):
    """A list of gates as a file."""

    gates: tuple[Gate, ...]


def read_manifest(path: Path) -> Manifest | None:
    """Manifest of a run folder, None where there is none.

    Raises:
        RunFolderError: if it is not privkit's, of another schema version or damaged. The advice is never to delete
            anything: the folder may be somebody's.
    """
    file = Path(os.path.realpath(path)) / "manifest.json"
    try:
        data = read_bytes(file, MOST_TEXT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunFolderError(f"cannot read {file} ({error.strerror}); name another folder with --out") from None
    try:
        return Manifest.model_validate_json(data)
    except ValidationError:
        other = _other_version(data)
        if other is not None:
            raise RunFolderError(
                f"{file} has schema version {other}, and this privkit reads version {SCHEMA_VERSION}; read that run "
                "with the privkit that wrote it, or name another folder with --out to run anew"
            ) from None
        raise RunFolderError(
            f"{file} is no manifest of privkit's, or it is damaged; name another folder with --out"
        ) from None


def read_rows(path: Path) -> list[Row]:
    """All rows of a run folder, for reading it without resuming it.

    Raises:
        RunFolderError: if it is no run folder.
    """
    if read_manifest(path) is None:
        raise RunFolderError(f"{path} is no run folder: it has no manifest.json")
    results = Path(os.path.realpath(path)) / "results.jsonl"
    rows = []
    for number, line in enumerate(_lines_of(results), start=1):
        try:
            rows.append(Row.model_validate_json(line))
        except ValidationError:
            other = _other_version(line)
            if other is not None:
                raise DamagedFile(
                    f"{results} line {number} has schema version {other}, and this privkit reads version "
                    f"{SCHEMA_VERSION}; repeat the run's command to do that cell again"
                ) from None
            raise DamagedFile(
                f"{results} line {number} is truncated or damaged; repeat the run's command to mend it"
            ) from None
    return rows


def _lines_of(results: Path) -> list[bytes]:
    """Lines of `results.jsonl`, none where there is no such file."""
    try:
        return read_bytes(results, MOST_TEXT).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(
            f"cannot read {results} ({error.strerror}); move it away and repeat the run's command to write it anew"
        ) from None


def _lock(file: Any) -> str:
    """Lock a file, or say in a sentence why this system cannot.

    Raises:
        BlockingIOError: if another process holds it.
    """
    if fcntl is None:
        return "this system has no file locks; start no second process on this run folder"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:  # network file systems may have none
        return f"the run folder cannot be locked ({error.strerror}); start no second process on it"
    return ""


def _read(path: Path, kind: type[Model]) -> Model:
    """Read one of the run's own JSON files below its folder."""
    try:
        data = read_bytes(path, MOST_TEXT)
        return kind.model_validate_json(data)
    except OSError as error:
        raise DamagedFile(f"cannot read {path} ({error.strerror}); delete it to do that part again") from None
    except ValidationError:
        other = _other_version(data)
        what = "is damaged" if other is None else f"has schema version {other}, not {SCHEMA_VERSION}"
        raise DamagedFile(f"{path} {what}; delete it and run the same command again to do that part anew") from None


def _other_version(data: bytes) -> object | None:
    """The schema version that a JSON object claims, None if it claims none or this one."""
    try:
        claimed = json.loads(data).get("schema_version")
    except (ValueError, AttributeError, RecursionError):
        return None
    return claimed if claimed != SCHEMA_VERSION else None


def _difference(old: Any, new: Any, prefix: str = "") -> str:
    """The first field in which two configurations differ, and both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _difference(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
    if isinstance(old, list) and isinstance(new, list):
        there, here = [part for part in old if part not in new], [part for part in new if part not in old]
        if len(there) == len(here) == 1 and _short(there) == _short(here):
            return _difference(there[0], here[0], prefix)
        said = [f"{_short(parts)} only {where}" for where, parts in (("there", there), ("here", here)) if parts]
        if said:
            return f"{prefix}: {', '.join(said)}"
    return f"{prefix}: {_short(old)} there, {_short(new)} here"


def _short(value: Any) -> str:
    """As JSON; of a list of specifications, their names."""
    if isinstance(value, list) and all(isinstance(part, dict) and "name" in part for part in value):
        value = [part["name"] for part in value]
    return json.dumps(value)
