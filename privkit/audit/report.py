"""The report of a run folder: reads what the cells stored and hands it to `privkit.reports`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from privkit.caches import plain_matplotlib
from privkit.errors import UnfinishedRun
from privkit.paths import inside
from privkit.reports.gate import Gate
from privkit.reports.schema import Manifest, Row
from privkit.reports.verdict import Verdict
from privkit.run.arrays import read_arrays
from privkit.run.records import PICTURES, SCORES, read_manifest, read_rows
from privkit.run.verdict import stored_gates, verdict_of, write_verdict
from privkit.sealed import checked, digest
from privkit.storage import make_folder, write_bytes, writing

Write = Callable[[Path, bytes], None]


def build(run: Path, rows: list[Row] | None = None, gates: Sequence[Gate] | None = None) -> Path:
    """Write RUN/report and RUN/verdict.json and return the report's page.

    Args:
        run: a run folder.
        rows: its rows in the order to show; None for those of `results.jsonl`.
        gates: the user's; None for those of the last command on this run.

    Raises:
        RunFolderError: if it is no run folder.
        UnfinishedRun: if no cell is finished.
        DamagedFile: if one of its files is damaged.
    """
    run = Path(os.path.realpath(run))
    rows = read_rows(run) if rows is None else rows
    manifest = read_manifest(run)
    if manifest is None or not rows:
        raise UnfinishedRun(f"{run} holds no finished cell; repeat the run's command to go on with it")
    verdict = verdict_of(manifest, rows, stored_gates(run, manifest) if gates is None else gates)
    files: dict[str, str] = {}

    def write(path: Path, data: bytes) -> None:
        write_bytes(path, data)
        files[path.relative_to(run).as_posix()] = digest(data)

    with plain_matplotlib():
        page = _rendered(run, rows, manifest, verdict, write)
    write_verdict(run, verdict.model_copy(update={"files": files}))
    return page


def _rendered(run: Path, rows: list[Row], manifest: Manifest, verdict: Verdict, write: Write) -> Path:
    """Read what the cells stored, and write the report."""
    from privkit.audit.scoring import over_seeds
    from privkit.audit.threats import threats_of
    from privkit.reports import figures, page

    with writing(run / "report"):
        make_folder(run / "report")
    homes = {row.cell: inside(run, "cells", row.cell) for row in rows}
    pictures = {row.cell: arrays for row in rows if (arrays := _pictures(homes[row.cell], row))}
    for cell, arrays in pictures.items():
        strip = figures.save(figures.reconstructions({"reconstruction": arrays}), "png")
        write(homes[cell] / "reconstructions.png", strip)
    texts = {row.cell: arrays for row in rows if (arrays := _texts(homes[row.cell], row))}
    told = {row.cell: arrays for row in rows if (arrays := _told(homes[row.cell], row))}
    summaries, threats = over_seeds(rows), threats_of(rows)
    return page.render(rows, summaries, threats, manifest, pictures, texts, told, verdict, run / "report", write)


def _pictures(cell: Path, row: Row):  # type: ignore[no-untyped-def]
    """The stored pictures of a cell, None where it has none."""
    from privkit.reports.figures import Pictures

    if row.records != "images":
        return None
    arrays = _arrays(cell / PICTURES, row, {"truth": ("u", 4), "guess": ("u", 4)})
    return None if arrays is None else Pictures(truth=arrays["truth"], guess=arrays["guess"])


def _texts(cell: Path, row: Row) -> list[tuple[str, str]]:
    """The first records of a cell that are no images, in words, and the guesses at them."""
    if row.records == "images":
        return []
    arrays = _arrays(cell / PICTURES, row, {"truth": ("U", 1), "guess": ("U", 1)}) or {"truth": (), "guess": ()}
    return [(str(truth), str(guess)) for truth, guess in zip(arrays["truth"], arrays["guess"], strict=True)]


def _told(cell: Path, row: Row):  # type: ignore[no-untyped-def]
    """The stored scores of a cell as its figure shows them, None where it has none."""
    from privkit.attacks.scores.leak import pooled_auc, roc_points
    from privkit.reports.score_figures import Told

    arrays = _arrays(cell / SCORES, row, {"values": ("f", 1), "positive": ("b", 1)})
    if arrays is None:
        return None
    values, positive = arrays["values"], arrays["positive"]
    false, true, _ = roc_points(values, positive)
    auc = pooled_auc(values, positive).auc.value
    limits = row.limits if row.empirical_bound is not None else None
    return Told(positive=values[positive], negative=values[~positive], false=false, true=true, auc=auc, limits=limits)


def _arrays(path: Path, row: Row, wanted: dict[str, tuple[str, int]]) -> dict[str, Any] | None:
    """Arrays of a file that the row lists, None where it lists none."""
    if path.name not in row.files:
        return None
    return read_arrays(path, checked(path, row.files[path.name]), wanted)
