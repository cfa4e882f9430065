"""The records of a run on disk: manifest, result rows, verdict, and file names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from privkit.errors import DamagedFile, DamagedManifest, OtherVersionRun, RunFolderError, UnfinishedRun
from privkit.files.paths import MOST_TEXT, read_bytes, root
from privkit.files.sealed import Broken, opened, sealed
from privkit.files.storage import present_bytes, read_record, write_record
from privkit.reports.gate import Gate, GateError
from privkit.reports.schema import SCHEMA_VERSION, Manifest, Row
from privkit.reports.verdict import Verdict, judge
from privkit.settings.budgets import LEARNS_FROM

MADE_OF = "made_of.json"  # in the folder of a model or a cell: its provenance, written before the computation
SCORES = "scores.npz"
"""File in a cell's folder: values float64 [N] and positive bool [N], of attacks that score two kinds of examples."""
PICTURES = "per_example.npz"  # in a cell's folder: every image's metrics, and the first images with their guesses
STRIP = "reconstructions.png"  # in a cell's folder: a picture of the first images above their guesses, for the report
GUESSES = "guesses.npz"
"""File in a cell's folder: `guess`, all guesses of an attack on a recording without the true records, as uint8 [N, H,
W, C] for images, and as ids or fields for other records."""
TRIALS = "trials.jsonl"  # in a cell's folder: the trials of its attack's tuning, one per line
CELL_FILES = ("spec.json", PICTURES, SCORES, GUESSES, TRIALS)  # files that a cell's record lists, if they exist
TRAINED = "trained.json"  # in a model's folder: its record, which lists its weights
LOG = "log.txt"  # log in a cell's folder: a time and a text in each line, and traces of errors
BEGUN = "start"  # text of the first line that a computation writes into the log
VERDICT = "verdict.json"
EVIDENCE, EVIDENCE_PAGE = "evidence.json", "evidence.html"
"""Files that `privkit evidence` writes into a run's folder; the first lists the checksum of the second."""
_Model = TypeVar("_Model", bound=BaseModel)


def line(row: Row) -> str:
    """The line of a result row in `results.jsonl`, with a checksum."""
    return sealed(row.model_dump(mode="json"))


def parse_row(data: bytes | str, **identity: str) -> Row:
    """Parse a result row; raises `Broken` if it is damaged, or if its schema version or `identity` (fields) differs."""
    return _parse(Row, data, **identity)


def read_row(cell: Path) -> Row | None:
    """Read the result row in the folder `cell`; None if there is none yet; raises `DamagedFile` if it is damaged."""
    path = cell / "result.json"
    try:
        return None if (data := present_bytes(path, MOST_TEXT)) is None else parse_row(data, cell=cell.name)
    except Broken as error:
        raise DamagedFile(f"{path} {error}") from None


def seconds_of(cell: Path) -> float | None:
    """The seconds of a result's last computation, from its log; None if there is no such log."""
    times: list[float] = []
    try:
        lines = read_bytes(cell / LOG, MOST_TEXT).decode(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        when, _, text = line.partition(" ")
        with suppress(ValueError, OverflowError):
            now = datetime.fromisoformat(when).timestamp()
            times = [now] if text == BEGUN else [*times, now]
    return max(times) - min(times) if len(times) > 1 else None


def holds(home: Path) -> bool:
    """Whether the folder of a model or a result has files from which a run can continue."""
    return any((home / name).exists() for name in (TRAINED, TRIALS, "training.ckpt", "attack.ckpt"))


def read_manifest(path: Path) -> Manifest | None:
    """Read a run folder's manifest; None without one. Errors advise no deletion, since files may be somebody else's."""
    file = root(path) / "manifest.json"
    try:
        data = read_bytes(file, MOST_TEXT)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunFolderError(f"cannot read {file} ({error.strerror}); name another folder with --out") from None
    try:
        return _parse(Manifest, data)
    except _OtherVersion as error:
        raise OtherVersionRun(
            f"{file} {error}; read that run with the privkit that wrote it, or name another folder with --out to run "
            "anew"
        ) from None
    except Broken as error:
        raise DamagedManifest(
            f"{file} is not a manifest of privkit's, or it {error}; restore it, or name another folder with --out"
        ) from None


def read_run(path: Path) -> tuple[Manifest, list[Row]]:
    """Read the manifest and all rows of a run folder, in the plan's order; raises `DamagedFile` for a faulty or
    contradictory line."""
    manifest = read_manifest(path)
    if manifest is None:
        raise RunFolderError(f"{path} is not a run folder: it has no manifest.json")
    rows: dict[str, Row] = {}
    places = {planned.cell: number for number, planned in enumerate(manifest.cells)}
    results = root(path) / "results.jsonl"
    for number, data in enumerate(lines_of(results), start=1):
        where = f"{results} line {number}"
        try:
            row = parse_row(data)
        except _OtherVersion as error:
            raise DamagedFile(f"{where} {error}; repeat the run's command to do that cell again") from None
        except Broken:
            raise DamagedFile(f"{where} is truncated or damaged; repeat the run's command to mend it") from None
        if row.cell not in places:
            raise DamagedFile(f"{where} is of {row.cell}, which is not a cell of this run; repeat the run's command")
        if rows.setdefault(row.cell, row) != row:
            raise DamagedFile(f"{where} contradicts an earlier line of {row.cell}; repeat the run's command")
    return manifest, sorted(rows.values(), key=lambda row: places[row.cell])


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a run folder; see `read_run`."""
    return read_run(path)[1]


def finished_rows(path: Path) -> tuple[Manifest, list[Row]]:
    """Read the manifest and all result rows of a run folder; raises `UnfinishedRun` if there are no rows."""
    manifest, rows = read_run(path)
    if not rows:
        raise UnfinishedRun(f"{path} holds no finished cell; repeat the run's command to go on with it")
    return manifest, rows


def lines_of(results: Path) -> list[bytes]:
    """The lines of `results.jsonl`; empty if the file does not exist."""
    try:
        return read_bytes(results, MOST_TEXT).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(
            f"cannot read {results} ({error.strerror}); move it away and repeat the run's command to write it anew"
        ) from None


class _OtherVersion(Broken):
    """An intact record with another schema version."""


def _parse(kind: type[_Model], data: bytes | str, **identity: str) -> _Model:
    try:
        return kind.model_validate_json(json.dumps(opened(data, **identity)))
    except (Broken, ValidationError) as error:
        other = _other_version(data)
        if other is not None:
            raise _OtherVersion(f"has schema version {other}, and this privkit reads {SCHEMA_VERSION}") from None
        if isinstance(error, Broken):
            raise
        raise Broken("is damaged: its fields are not those of a " + kind.__name__.lower()) from None


def _other_version(data: bytes | str) -> object | None:
    """The schema version that a JSON text names, if it differs from the current version; otherwise None.

    Records of the first versions had no checksum.
    """
    try:
        fields = json.loads(data)
        if "sha256" in fields:
            opened(data)
        claimed = fields.get("schema_version")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return claimed if claimed != SCHEMA_VERSION else None


def verdict_of(manifest: Manifest, rows: Sequence[Row], gates: Sequence[Gate]) -> Verdict:
    """Compute the verdict on the result rows that a run has so far."""
    also = manifest.config.get("also", [])
    parts = [manifest.config, *(also if isinstance(also, list) else [])]
    protocols = [part.get("protocol") for part in parts if isinstance(part, dict)]
    silent = {p["name"] for p in protocols if isinstance(p, dict) and p.get("upper") == "own"}
    budget = manifest.config.get("budget")
    trains = not isinstance(budget, dict) or budget.get("epochs", LEARNS_FROM) >= LEARNS_FROM
    return judge(manifest.cells, rows, gates, run=manifest.fingerprint, silent=silent, trains=trains)


def write_verdict(run: Path, verdict: Verdict) -> None:
    """Store a verdict."""
    write_record(run / VERDICT, verdict.model_dump(mode="json"))


def read_verdict(run: Path, manifest: Manifest) -> Verdict | None:
    """Read the verdict; None if nothing was computed; raises `DamagedFile` if it is damaged or of another run."""
    record = read_record(run / VERDICT, run=manifest.fingerprint)
    try:
        return None if record is None else Verdict.model_validate(record)
    except ValidationError:
        raise DamagedFile(
            f"{run / VERDICT} is not a verdict of this privkit's; delete it and repeat the command"
        ) from None


def last_verdict(run: Path) -> Verdict:
    """Read the verdict of a run whose report was written; raises `RunFolderError` if there is no verdict."""
    run = root(run)
    manifest = read_manifest(run)
    verdict = None if manifest is None else read_verdict(run, manifest)
    if verdict is None:
        raise RunFolderError(f"{run} holds no {VERDICT}; write it with privkit report {run}")
    return verdict


def stored_gates(run: Path, manifest: Manifest) -> tuple[Gate, ...]:
    """The user's gates (pass/fail conditions) of the last command on a run, also if its verdict was removed."""
    verdict = read_verdict(run, manifest)
    return last_gates(manifest) if verdict is None else read_gates(verdict.gates)


def last_gates(manifest: Manifest) -> tuple[Gate, ...]:
    """The gates in a manifest's settings."""
    given = manifest.settings.get("gate") or ()
    return read_gates([given] if isinstance(given, str) else given if isinstance(given, list | tuple) else [])


def read_gates(texts: Iterable[object]) -> tuple[Gate, ...]:
    """Parse stored gates; raises `DamagedFile` for a text that is no gate."""
    try:
        return tuple(Gate.parse(str(text)) for text in texts)
    except GateError as error:
        raise DamagedFile(f"{error}; repeat the run's command with gates that this privkit reads") from None
