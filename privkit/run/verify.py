"""`privkit verify RUN`: every file of a run folder held against its checksum, its own identity and the other files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from privkit.errors import PrivkitError, RunFolderError
from privkit.reports.schema import Manifest, Row
from privkit.run.records import MADE_OF, TRAINED, lines_of, parse_row, read_manifest, read_row
from privkit.run.verdict import FILE, read_verdict, verdict_of
from privkit.sealed import Broken, altered
from privkit.storage import TEMPORARY, read_record, read_state

_REPEAT = "repeat the run's command"
_REPORT = "write it again with privkit report"


@dataclass
class Examination:
    """What was found in a run folder.

    Attributes:
        run: the folder.
        checked: files that were checked, by their path in the run.
        faults: (path in the run, what is wrong with it and what to do).
        left: temporary files that killed writes left.
        verdict: of the run, in a sentence; empty where it cannot be read.
    """

    run: Path
    checked: list[str] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0
    verdict: str = ""

    @property
    def exit_code(self) -> int:
        """0 where all is whole, 3 where something is not."""
        return 3 if self.faults else 0

    @property
    def sentence(self) -> str:
        """The outcome in one sentence."""
        counts = {kind: sum(name.startswith(f"{kind}/") for name in self.checked) for kind in ("cells", "models")}
        told = f"{len(self.checked)} files checked, {counts['cells']} of cells and {counts['models']} of models"
        told += f"; {self.left} temporary files of killed writes, which the next start removes" if self.left else ""
        if self.faults:
            wrong = len({path for path, _ in self.faults})
            return f"not whole: {wrong} {'file is' if wrong == 1 else 'files are'} not what was written ({told})"
        return f"whole: {told}; {self.verdict}"

    def fault(self, path: Path, what: str, cure: str) -> None:
        """Note that a file is not what was written."""
        self.faults.append((self._name(path), f"{what}; {cure}"))

    def reads(self, path: Path, problem: Exception | None, cure: str) -> None:
        """Note that a file was checked, and what the check said."""
        self.checked.append(self._name(path))
        if problem is not None:
            self.fault(path, str(problem).replace(f"{path} ", "").partition(";")[0], cure)

    def _name(self, path: Path) -> str:
        """Its path in the run."""
        return path.relative_to(self.run).as_posix()


def examine(run: Path) -> Examination:
    """Check a run folder whole; nothing in it is changed.

    Args:
        run: the folder, on which no other command works at the moment: what is being written looks missing.

    Raises:
        RunFolderError: if it is no run folder.
    """
    found = Examination(run=Path(os.path.realpath(run)))
    home, manifest = found.run, None
    try:
        manifest = read_manifest(home)
        found.reads(home / "manifest.json", None, "")
        if manifest is None:
            raise RunFolderError(f"{run} is no run folder: it has no manifest.json")
    except RunFolderError as error:
        if not (home / "manifest.json").exists():
            raise
        found.reads(home / "manifest.json", error, "restore it from a copy, or name another folder with --out")
    rows = dict(_cells(found, manifest))
    _models(found, manifest)
    for control in _files(home / "controls"):
        _record(found, control, f"delete it and {_REPEAT}", control=control.stem)
    _lines(found, manifest, rows)
    if manifest is not None:
        _gone(found, manifest, rows)
        _verdict(found, manifest, rows)
    _links(found)
    found.left = sum(bool(TEMPORARY.fullmatch(name)) for _, _, names in os.walk(home) for name in names)
    return found


def _files(folder: Path) -> list[Path]:
    """What lies in a folder, temporary files left out; nothing where there is no folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not TEMPORARY.fullmatch(path.name))


def _record(found: Examination, path: Path, cure: str, **identity: str) -> dict[str, object] | None:
    """A record, None where it is missing or damaged."""
    problem: PrivkitError | None = None
    fields = None
    try:
        if (fields := read_record(path, **identity)) is None:
            return None
    except PrivkitError as error:
        problem = error
    found.reads(path, problem, cure)
    return fields


def _listed(found: Examination, home: Path, files: dict[str, str], cure: str) -> None:
    """The files that a record lists."""
    wrong = dict(altered(home, files))
    for name in files:
        found.reads(home / name, ValueError(wrong[name]) if name in wrong else None, cure)


def _state(found: Examination, path: Path) -> None:
    """A checkpoint, where there is one."""
    try:
        if read_state(path) is None:
            return
        problem = None
    except PrivkitError as error:
        problem = ValueError(str(error).replace(f"the checkpoint {path} ", ""))
    found.reads(path, problem, f"delete it and {_REPEAT}: only this stage starts over")


def _cells(found: Examination, manifest: Manifest | None) -> Iterator[tuple[str, Row]]:
    """Every cell's files; the rows that are whole."""
    planned = None if manifest is None else {cell.cell for cell in manifest.cells}
    for home in (*_files(found.run / "cells"), *sorted(found.run.glob("superseded/*/cells/*"))):
        cure = f"{_REPEAT}: the cell is restored or done again"
        _record(found, home / MADE_OF, f"delete {home} and {_REPEAT}", of=home.name)
        _state(found, home / "attack.ckpt")
        try:
            row = read_row(home)
        except PrivkitError as error:
            found.reads(home / "result.json", error, cure)
            continue
        if row is None:
            _record(found, home / "spec.json", cure, cell=home.name)
            continue
        found.reads(home / "result.json", None, cure)
        _listed(found, home, row.files, cure)
        if home.parent != found.run / "cells":
            continue
        if planned is not None and home.name not in planned:
            found.fault(home / "result.json", "belongs to no cell of this run", "move its folder away")
        yield home.name, row


def _models(found: Examination, manifest: Manifest | None) -> None:
    """Every model's files."""
    for home in (*_files(found.run / "models"), *sorted(found.run.glob("superseded/*/models/*"))):
        cure = f"delete {home} and {_REPEAT} to train anew"
        _record(found, home / MADE_OF, cure, of=home.name)
        _state(found, home / "training.ckpt")
        trained = _record(found, home / TRAINED, cure, model=home.name)
        if trained is not None:
            files = trained.get("files")
            _listed(found, home, files if isinstance(files, dict) else {}, cure)


def _gone(found: Examination, manifest: Manifest, rows: dict[str, Row]) -> None:
    """Records that a finished cell rests on, and that are no longer there."""
    needed: dict[Path, None] = {}
    for cell in manifest.cells:
        if cell.cell in rows and rows[cell.cell].status == "done":
            home, model = found.run / "cells" / cell.cell, found.run / "models" / cell.model
            needed |= dict.fromkeys((home / MADE_OF, model / MADE_OF, model / TRAINED))
    for path in needed:
        if not os.path.lexists(path):
            found.fault(path, "is missing", "restore it from a copy; the rows stand without it")


def _links(found: Examination) -> None:
    """Symbolic links that no other check met."""
    named = {path for path, _ in found.faults}
    for folder, folders, names in os.walk(found.run):
        for path in (Path(folder, name) for name in (*folders, *names)):
            if path.is_symlink() and path.relative_to(found.run).as_posix() not in named:
                found.fault(path, "is a symbolic link, which a run folder never holds", "remove it")


def _lines(found: Examination, manifest: Manifest | None, rows: dict[str, Row]) -> None:
    """The lines of `results.jsonl`, each against its cell's own record."""
    path = found.run / "results.jsonl"
    seen: dict[str, int] = {}
    cure = f"{_REPEAT}: it is written anew from the cells"
    try:
        lines = lines_of(path)
    except PrivkitError as error:
        found.reads(path, error, cure)
        return
    for number, data in enumerate(lines, start=1):
        try:
            row = parse_row(data)
        except Broken as error:
            found.fault(path, f"line {number} {error}", cure)
            continue
        if row.cell in seen:
            found.fault(path, f"line {number} doubles line {seen[row.cell]}; it counts once", cure)
        elif row.cell in rows and row != rows[row.cell]:
            found.fault(path, f"line {number} contradicts cells/{row.cell}/result.json", cure)
        elif manifest is not None and row.cell not in {cell.cell for cell in manifest.cells}:
            found.fault(path, f"line {number} is of {row.cell}, which is no cell of this run", cure)
        seen.setdefault(row.cell, number)
    if path.exists():
        found.reads(path, None, cure)
    for cell in rows.keys() - seen.keys():
        found.fault(path, f"the line of {cell} is missing", cure)


def _verdict(found: Examination, manifest: Manifest, rows: dict[str, Row]) -> None:
    """The verdict against the rows, and the report against the verdict."""
    path = found.run / FILE
    try:
        stored = read_verdict(found.run, manifest)
    except PrivkitError as error:
        found.reads(path, error, f"delete it and {_REPEAT}")
        return
    if stored is None:
        found.fault(path, "is missing", f"{_REPEAT} to judge the run anew")
        return
    found.reads(path, None, "")
    found.verdict = stored.sentence
    from privkit.reports.gate import Gate

    ordered = [rows[cell.cell] for cell in manifest.cells if cell.cell in rows]
    now = verdict_of(manifest, ordered, [Gate.parse(gate) for gate in stored.gates])
    if not found.faults and now != stored.model_copy(update={"files": {}}):
        found.fault(path, f"does not follow from the cells, whose verdict is {now.sentence!r}", _REPORT)
    _listed(found, found.run, stored.files, _REPORT)
