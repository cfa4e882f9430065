"""The verdict of a run folder: `verdict.json`, written with every finished cell and read by whoever reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from privkit.errors import DamagedFile, RunFolderError
from privkit.files.paths import root
from privkit.files.storage import read_record, write_record
from privkit.reports.gate import Gate
from privkit.reports.older import upgraded
from privkit.reports.schema import Manifest, Row
from privkit.reports.verdict import Verdict, judge
from privkit.run.records import read_manifest

FILE = "verdict.json"
LEARNS_FROM = 4
"""Epochs from which on a run has failed if no model learned; shorter ones, such as smoke, are for trying things."""


def verdict_of(manifest: Manifest, rows: Sequence[Row], gates: Sequence[Gate]) -> Verdict:
    """The verdict on the rows that a run has so far."""
    also = manifest.config.get("also", [])
    parts = [manifest.config, *(also if isinstance(also, list) else [])]
    protocols = [part.get("protocol") for part in parts if isinstance(part, dict)]
    silent = {p["name"] for p in protocols if isinstance(p, dict) and p.get("upper") == "own"}
    budget = manifest.config.get("budget")
    trains = not isinstance(budget, dict) or budget.get("epochs", LEARNS_FROM) >= LEARNS_FROM
    return judge(manifest.cells, rows, gates, run=manifest.fingerprint, silent=silent, trains=trains)


def write_verdict(run: Path, verdict: Verdict) -> Verdict:
    """Store a verdict."""
    write_record(run / FILE, verdict.model_dump(mode="json"))
    return verdict


def read_verdict(run: Path, manifest: Manifest) -> Verdict | None:
    """The stored verdict, None where a run has not begun.

    Raises:
        DamagedFile: if it is damaged, or another run's.
    """
    record = read_record(run / FILE, run=manifest.fingerprint)
    try:
        return None if record is None else Verdict.model_validate(upgraded(record))
    except ValidationError:
        raise DamagedFile(f"{run / FILE} is no verdict of this privkit's; delete it and repeat the command") from None


def last_verdict(run: Path) -> Verdict:
    """The stored verdict of a run whose report was written.

    Raises:
        RunFolderError: if there is none.
        DamagedFile: if it is damaged.
    """
    run = root(run)
    manifest = read_manifest(run)
    verdict = None if manifest is None else read_verdict(run, manifest)
    if verdict is None:
        raise RunFolderError(f"{run} holds no {FILE}; write it with privkit report {run}")
    return verdict


def stored_gates(run: Path, manifest: Manifest) -> tuple[Gate, ...]:
    """The user's gates of the last command on a run.

    Raises:
        DamagedFile: if the verdict that holds them is damaged.
    """
    verdict = read_verdict(run, manifest)
    return () if verdict is None else tuple(map(Gate.parse, verdict.gates))
