"""A run on disk: manifest, cells, results; safe against kills, full disks and other runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from privkit.errors import DamagedFile, RunFolderError
from privkit.paths import MOST_TEXT, inside, open_file, read_bytes
from privkit.reports.origins import differences
from privkit.reports.schema import SCHEMA_VERSION, Check, Manifest, Provenance, Row
from privkit.run.plan import Cell, short_hash
from privkit.sealed import Broken, altered, digests, opened, sealed
from privkit.storage import append_line, make_folder, read_record, sweep, write_bytes, write_record, writing

if TYPE_CHECKING:
    from privkit.run.ingredients import Ingredients

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


MADE_OF = "made_of.json"
"""In the folder of a model or a cell: its provenance, written before its first number."""

SCORES = "scores.npz"
"""In a cell's folder: values float64 [N] and positive bool [N], of attacks that tell two kinds of examples apart."""
PICTURES = "per_example.npz"
"""In a cell's folder: every image's metrics, and the first images with their guesses."""
CELL_FILES = ("spec.json", PICTURES, SCORES)
"""Files that a cell's record lists, if they exist."""
TRAINED = "trained.json"
"""In a model's folder: its record, which lists its weights."""

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
            sweep(self.path)
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
        some = any(next(self.path.glob(found), None) for found in ("controls/*", "cells/*/result.json"))
        return some or any(map(holds, self.path.glob("models/*")))

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

    def read_gates(self, path: Path, seed: int, made_of: Provenance) -> tuple[Check, ...] | None:
        """Gates stored by `write_gates`, None where there are none, or they are made of something else.

        Control experiments are done once a run, on the images of the seed that comes to them first.
        """
        found = read_record(path, control=path.stem)
        if found is None:
            return None
        past = Provenance.model_validate(found["made_of"])
        if found["seed"] != seed:
            past = past.model_copy(update={"data": made_of.data})
        return None if differences(past, made_of) else tuple(Check.model_validate(gate) for gate in found["gates"])

    def write_gates(self, path: Path, seed: int, made_of: Provenance, gates: tuple[Check, ...]) -> None:
        """Store gates with what they are made of."""
        found = {"made_of": made_of.model_dump(), "gates": [gate.model_dump(mode="json") for gate in gates]}
        write_record(path, {"control": path.stem, "seed": seed, **found})

    def made_of(self, home: Path) -> Provenance | None:
        """What a model or a cell that began is made of, None where nothing says so.

        Args:
            home: its folder.
        """
        try:
            found = read_record(home / MADE_OF, of=home.name)
        except DamagedFile:
            return None
        return None if found is None else Provenance.model_validate(found["made_of"])

    def begin(self, cell: Cell, made_of: Ingredients) -> None:
        """Store what a cell and its model are made of, before they are made.

        Raises:
            RunFolderError: if the images changed since this command looked at them.
        """
        for home, provenance in ((self.model(cell.model_id), made_of.model), (self.cell(cell.id), made_of.cell)):
            known = self.made_of(home)
            if known is not None and not (changes := differences(known, provenance, seed=cell.seed)):
                continue
            if known is not None and holds(home):
                raise RunFolderError(f"{', '.join(changes)} changed while this command ran; run it again")
            write_record(home / MADE_OF, {"of": home.name, "made_of": provenance.model_dump()})

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

    def take(self, threads: int) -> None:
        """Note in the manifest with how many threads the run goes on."""
        if self.manifest.threads != threads:
            self.manifest = self.manifest.model_copy(update={"threads": threads})
            self.save_manifest()

    def finished(self, cells: Iterable[str]) -> tuple[dict[str, Row], list[str]]:
        """Rows of the finished cells, and a sentence for everything that had to be mended.

        The cells' own `result.json` are the truth; `results.jsonl` is their append-only copy, which is written anew
        where it differs. A damaged `result.json` is restored from a whole line of the copy. A cell runs again where
        there is none, where another file of the cell is damaged, or where it ended in an error.
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
            if row is not None and row.status != "error":
                wrong = altered(home, row.files)
                mended += [f"{home / name} {what}; the cell runs again" for name, what in wrong]
                if not wrong:
                    rows[cell_id] = row
        wanted = [line(row) for row in rows.values()]
        if damaged or sorted(present) != sorted(wanted):
            kept = [text for text in dict.fromkeys(present) if text in wanted]
            missing = [text for text in wanted if text not in kept]
            write_bytes(self.results, "".join(text + "\n" for text in (*kept, *missing)).encode())
        return rows, mended

    def finish(self, row: Row) -> Row:
        """Store a finished cell: first its own file, then the line in `results.jsonl`; the row as it was stored."""
        row = row.model_copy(update={"files": digests(self.cell(row.cell), CELL_FILES)})
        write_record(self.cell(row.cell) / "result.json", row.model_dump(mode="json"))
        append_line(self.results, line(row))
        return row

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


def line(row: Row) -> str:
    """A row as it stands in `results.jsonl`."""
    return sealed(row.model_dump(mode="json"))


def parse_row(data: bytes | str, **identity: str) -> Row:
    """A row from its record.

    Raises:
        Broken: if it is damaged, belongs to another cell, or is of another schema version.
    """
    return _parse(Row, data, **identity)


def read_row(cell: Path) -> Row | None:
    """The row of a cell's folder, None where it is not finished.

    Raises:
        DamagedFile: if it is damaged, or another cell's.
    """
    path = cell / "result.json"
    try:
        return parse_row(read_bytes(path, MOST_TEXT), cell=cell.name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(f"cannot read {path} ({error.strerror})") from None
    except Broken as error:
        raise DamagedFile(f"{path} {error}") from None


def holds(home: Path) -> bool:
    """Whether the folder of a model or a cell holds something that a run would go on with."""
    return any((home / name).exists() for name in (TRAINED, "training.ckpt", "attack.ckpt"))


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
        return _parse(Manifest, data)
    except OtherVersion as error:
        raise RunFolderError(
            f"{file} {error}; read that run with the privkit that wrote it, or name another folder with --out to run "
            "anew"
        ) from None
    except Broken as error:
        raise RunFolderError(
            f"{file} is no manifest of privkit's, or it {error}; restore it, or name another folder with --out"
        ) from None


def read_rows(path: Path) -> list[Row]:
    """All rows of a run folder in the order of its plan, for reading it without resuming it.

    Raises:
        RunFolderError: if it is no run folder.
        DamagedFile: if a line is damaged, or is of no cell of this run, or contradicts another line.
    """
    manifest = read_manifest(path)
    if manifest is None:
        raise RunFolderError(f"{path} is no run folder: it has no manifest.json")
    rows: dict[str, Row] = {}
    places = {planned.cell: number for number, planned in enumerate(manifest.cells)}
    results = Path(os.path.realpath(path)) / "results.jsonl"
    for number, data in enumerate(lines_of(results), start=1):
        where = f"{results} line {number}"
        try:
            row = parse_row(data)
        except OtherVersion as error:
            raise DamagedFile(f"{where} {error}; repeat the run's command to do that cell again") from None
        except Broken:
            raise DamagedFile(f"{where} is truncated or damaged; repeat the run's command to mend it") from None
        if row.cell not in places:
            raise DamagedFile(f"{where} is of {row.cell}, which is no cell of this run; repeat the run's command")
        if rows.setdefault(row.cell, row) != row:
            raise DamagedFile(f"{where} contradicts an earlier line of {row.cell}; repeat the run's command")
    return sorted(rows.values(), key=lambda row: places[row.cell])


def lines_of(results: Path) -> list[bytes]:
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


class OtherVersion(Broken):
    """A whole record of another schema version."""


def _parse(kind: type[Model], data: bytes | str, **identity: str) -> Model:
    """A record parsed as a `kind`."""
    try:
        fields = opened(data, **identity)
        return kind.model_validate_json(json.dumps(fields))
    except (Broken, ValidationError) as error:
        other = _other_version(data)
        if other is not None:
            raise OtherVersion(f"has schema version {other}, and this privkit reads version {SCHEMA_VERSION}") from None
        if isinstance(error, Broken):
            raise
        raise Broken("is damaged: its fields are not those of a " + kind.__name__.lower()) from None


def _other_version(data: bytes | str) -> object | None:
    """The schema version that a whole JSON object claims, None if it claims none or this one.

    Versions before 5 had no checksum.
    """
    try:
        fields = json.loads(data)
        if "sha256" in fields:
            opened(data)
        claimed = fields.get("schema_version")
    except (ValueError, AttributeError, TypeError, RecursionError):
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
