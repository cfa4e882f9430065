"""`privkit verify RUN`: compares every file of a run folder with its checksum, its identity and the other files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from privkit.errors import DamagedFile, OtherVersionRun, PrivkitError, RunFolderError
from privkit.files.paths import root
from privkit.files.sealed import Broken, altered
from privkit.files.storage import TEMPORARY, read_record, read_state
from privkit.reports.schema import Manifest, Row
from privkit.run import records
from privkit.run.ledger import LEADER, SCRATCH

_REPEAT = "repeat the run's command"
_REPORT = "write it again with privkit report"
_EVIDENCE = "write it again with privkit evidence"
_STATE = f"delete it and {_REPEAT}: only this stage starts over"
_NAMED = 3  # number of foreign files that the sentence names
_UNLISTED = {".lock", LEADER}  # files of the run folder that change while a command uses it
Found = TypeVar("Found")


@dataclass
class _Examination:
    """The result of checking a run folder: checked files, faults, leftover temporary files, and the verdict."""

    run: Path  # the folder
    checked: list[str] = field(default_factory=list)  # files that were checked, by their path in the run
    # (path in the run, fault and remedy in words)
    faults: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0  # temporary files of killed writes
    strangers: list[str] = field(default_factory=list)  # files that privkit did not write, by their path in the run
    verdict: str = ""  # the run's verdict in a sentence; empty if it cannot be read

    @property
    def exit_code(self) -> int:
        """0 if all files are intact, 3 otherwise."""
        return 3 if self.faults else 0

    @property
    def sentence(self) -> str:
        counts = {kind: sum(name.startswith(f"{kind}/") for name in self.checked) for kind in ("cells", "models")}
        told = f"{len(self.checked)} files checked, {counts['cells']} of cells and {counts['models']} of models"
        told += f"; {self.left} temporary files of killed writes, which the next start removes" if self.left else ""
        if self.faults:
            wrong = len({path for path, _ in self.faults})
            return f"not whole: {wrong} {'file is' if wrong == 1 else 'files are'} not what was written ({told})"
        if count := len(self.strangers):
            named = ", ".join([*self.strangers[:_NAMED], *["…"] * (count > _NAMED)])
            told += f"; {count} {'file' if count == 1 else 'files'} of others not checked ({named})"
        return f"whole: {told}; {self.verdict}"

    def fault(self, path: Path, what: str, cure: str) -> None:
        self.faults.append((self._name(path), f"{what}; {cure}"))

    def reads(self, path: Path, problem: Exception | None, cure: str) -> None:
        self.checked.append(self._name(path))
        if problem is not None:
            said = str(problem).removeprefix("the checkpoint ").replace(f"{path} ", "")
            self.fault(path, said.partition(";")[0], cure)

    def found(self, path: Path, cure: str, read: Callable[[], Found | None]) -> Found | None:
        """Read a file with `read`, and count it as checked; None if the file is missing or damaged."""
        try:
            found = read()
        except PrivkitError as error:
            self.reads(path, error, cure)
            return None
        if found is not None:
            self.reads(path, None, cure)
        return found

    def record(self, path: Path, cure: str, **identity: str) -> dict[str, object] | None:
        return self.found(path, cure, partial(read_record, path, **identity))

    def listed(self, home: Path, files: object, cure: str) -> None:
        files = files if isinstance(files, dict) else {}
        wrong = dict(altered(home, files))
        for name in files:
            self.reads(home / name, ValueError(wrong[name]) if name in wrong else None, cure)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.run).as_posix()


def examine(run: Path) -> _Examination:
    """Check a whole run folder without changing it. A file that another command is writing looks missing."""
    examination = _Examination(run=root(run))
    home, manifest = examination.run, None
    try:
        manifest = records.read_manifest(home)
        examination.reads(home / "manifest.json", None, "")
        if manifest is None:
            raise RunFolderError(f"{run} is not a run folder: it has no manifest.json")
    except RunFolderError as error:
        if isinstance(error, OtherVersionRun) or not os.path.lexists(home / "manifest.json"):
            raise
        examination.reads(home / "manifest.json", error, "restore it from a copy, or name another folder with --out")
    rows = dict(_cells(examination, manifest))
    _models(examination)
    for control in sorted((home / "controls").glob("*.json")):
        examination.record(control, f"delete it and {_REPEAT}", control=control.stem)
    _lines(examination, manifest, rows)
    if manifest is not None:
        _gone(examination, manifest, rows)
        _verdict(examination, manifest, rows)
        _evidence(examination, manifest)
    _others(examination)
    return examination


def _homes(run: Path, kind: str) -> list[Path]:
    current = sorted(path for path in run.glob(f"{kind}/*") if path.is_dir())
    return [*current, *sorted(run.glob(f"superseded/*/{kind}/*"))]


def _others(examination: _Examination) -> None:
    """Note links as faults, count temporary files of killed writes, and list files that privkit did not write."""
    known, faulty = {*examination.checked, *_UNLISTED}, {name for name, _ in examination.faults}
    for path in sorted(examination.run.rglob("*")):
        name = path.relative_to(examination.run).as_posix()
        if path.is_symlink():
            if name not in faulty:
                examination.fault(path, "is a symbolic link, which a run folder never holds", "remove it")
        elif path.is_file() and TEMPORARY.fullmatch(path.name):
            examination.left += 1
        elif path.is_file() and name not in known and path.name != records.LOG and not name.startswith(f"{SCRATCH}/"):
            examination.strangers.append(name)


def _cells(examination: _Examination, manifest: Manifest | None) -> Iterator[tuple[str, Row]]:
    planned = None if manifest is None else {cell.cell for cell in manifest.cells}
    for home in _homes(examination.run, "cells"):
        cure, result = f"{_REPEAT}: the cell is restored or done again", home / "result.json"
        examination.record(home / records.MADE_OF, f"delete {home} and {_REPEAT}", of=home.name)
        examination.found(home / "attack.ckpt", _STATE, partial(read_state, home / "attack.ckpt"))
        row = examination.found(result, cure, partial(records.read_row, home))
        if row is None:
            if not os.path.lexists(result):
                examination.record(home / "spec.json", cure, cell=home.name)
            continue
        examination.listed(home, row.files, cure)
        if home.parent != examination.run / "cells":
            continue
        if planned is not None and home.name not in planned:
            examination.fault(result, "belongs to no cell of this run", "move its folder away")
        yield home.name, row


def _models(examination: _Examination) -> None:
    for home in _homes(examination.run, "models"):
        cure = f"delete {home} and {_REPEAT} to train anew"
        examination.record(home / records.MADE_OF, cure, of=home.name)
        examination.found(home / "training.ckpt", _STATE, partial(read_state, home / "training.ckpt"))
        trained = examination.record(home / records.TRAINED, cure, model=home.name) or {}
        examination.listed(home, trained.get("files"), cure)


def _gone(examination: _Examination, manifest: Manifest, rows: dict[str, Row]) -> None:
    needed: dict[Path, None] = {}
    for cell in manifest.cells:
        if cell.cell in rows and rows[cell.cell].status == "done":
            home, model = examination.run / "cells" / cell.cell, examination.run / "models" / cell.model
            needed |= dict.fromkeys((home / records.MADE_OF, home / records.LOG))
            needed |= dict.fromkeys((model / records.MADE_OF, model / records.TRAINED))
    for path in needed:
        if not os.path.lexists(path):
            examination.fault(path, "is missing", "restore it from a copy; the rows stand without it")


def _lines(examination: _Examination, manifest: Manifest | None, rows: dict[str, Row]) -> None:
    path = examination.run / "results.jsonl"
    seen: dict[str, int] = {}
    cure = f"{_REPEAT}: it is written anew from the cells"
    try:
        lines = records.lines_of(path)
    except PrivkitError as error:
        examination.reads(path, error, cure)
        return
    for number, data in enumerate(lines, start=1):
        try:
            row = records.parse_row(data)
        except Broken as error:
            examination.fault(path, f"line {number} {error}", cure)
            continue
        if row.cell in seen:
            examination.fault(path, f"line {number} doubles line {seen[row.cell]}; it counts once", cure)
        elif row.cell in rows and row != rows[row.cell]:
            examination.fault(path, f"line {number} contradicts cells/{row.cell}/result.json", cure)
        elif manifest is not None and row.cell not in {cell.cell for cell in manifest.cells}:
            examination.fault(path, f"line {number} is of {row.cell}, which is not a cell of this run", cure)
        seen.setdefault(row.cell, number)
    if path.exists():
        examination.reads(path, None, cure)
    for cell in rows.keys() - seen.keys():
        examination.fault(path, f"the line of {cell} is missing", cure)


def _verdict(examination: _Examination, manifest: Manifest, rows: dict[str, Row]) -> None:
    home, path = examination.run, examination.run / records.VERDICT
    stored = examination.found(path, f"delete it and {_REPEAT}", partial(records.read_verdict, home, manifest))
    if stored is None:
        if not os.path.lexists(path):
            examination.fault(path, "is missing", f"{_REPEAT} to judge the run anew")
        return
    examination.verdict = stored.sentence
    ordered = [rows[cell.cell] for cell in manifest.cells if cell.cell in rows]
    try:
        gates, last = records.read_gates(stored.gates), records.last_gates(manifest)
    except DamagedFile as error:
        examination.fault(path, f"holds a gate that cannot be read: {str(error).partition(';')[0]}", _REPEAT)
        return
    if lacks := [str(gate) for gate in last if gate not in gates]:
        examination.fault(path, f"lacks the gate {lacks[0]} of the run's last command", _REPEAT)
    now = records.verdict_of(manifest, ordered, gates)
    if not examination.faults and now.decided != stored.decided:
        examination.fault(path, f"does not follow from the cells, whose verdict is {now.sentence!r}", _REPORT)
    examination.listed(examination.run, stored.files, _REPORT)


def _evidence(examination: _Examination, manifest: Manifest) -> None:
    path = examination.run / records.EVIDENCE
    found = examination.record(path, _EVIDENCE, run=manifest.fingerprint)
    if found is None:
        if os.path.lexists(page := examination.run / records.EVIDENCE_PAGE) and not os.path.lexists(path):
            examination.fault(page, f"stands without {records.EVIDENCE}, which has its checksum", _EVIDENCE)
        return
    listed = found.get("records")
    examination.listed(examination.run, found.get("files"), _EVIDENCE)
    if not examination.faults and altered(examination.run, listed if isinstance(listed, dict) else {}):
        examination.fault(path, "is about an earlier state of the run", _EVIDENCE)
