"""Writes the results of a finished run: its report, its evidence, and its rank among the registered results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privkit.attacks.scores.leak import pooled_auc, roc_points
from privkit.errors import DamagedFile, UsageError
from privkit.files.arrays import read_arrays
from privkit.files.paths import inside, read_bytes, root
from privkit.files.sealed import checked_bytes, digest
from privkit.files.storage import make_folder, write_bytes, write_record, writing
from privkit.parts.threats import threats_of
from privkit.reports import evidence_schema, gallery, page, registry
from privkit.reports.charts import Told
from privkit.reports.evidence import evidence
from privkit.reports.gallery import Pictures
from privkit.reports.gate import Gate
from privkit.reports.schema import Row
from privkit.reports.seed_intervals import over_seeds
from privkit.reports.strongest import counted
from privkit.run import records
from privkit.run.verify import examine
from privkit.settings.table import FLAGS
from privkit.shared.measures import KINDS
from privkit.shared.own_records import hold_attacked

_OF_THE_RUN = {
    **{setting.flag: setting.kind is bool for setting in FLAGS if not setting.of_cell},
    **{"--vary": False, "--junit": False, "--annotations": False, "--json": True, "--quiet": True},
}
"""Flags that the command of one result leaves out, since they concern other results or the whole run -> whether the
flag takes no value."""


def build(
    run: Path, rows: list[Row] | None = None, gates: Sequence[Gate] | None = None, *, pictures: bool = True
) -> Path:
    """Write a run's report (RUN/report) and verdict (RUN/verdict.json); return the path of the report's page.

    `rows` and `gates` (the user's pass/fail conditions) are by default read from `results.jsonl` and the last command.
    Without `pictures`, RUN/report shows no private records, but RUN/cells still holds some.
    """
    run = root(run)
    manifest, stored = records.finished_rows(run)
    rows = stored if rows is None else rows
    verdict = records.verdict_of(manifest, rows, records.stored_gates(run, manifest) if gates is None else gates)
    files: dict[str, str] = {}

    def write(path: Path, data: bytes) -> None:
        write_bytes(path, data)
        files[path.relative_to(run).as_posix()] = digest(data)

    with writing(run / "report"):
        make_folder(run / "report")
    homes = {row.cell: inside(run, "cells", row.cell) for row in rows}
    images, shown = {kind.noun for kind in KINDS.values() if kind.pictures}, rows if pictures else []
    strips = {row.cell: one for row in shown if row.records in images and (one := _pictures(homes[row.cell], row))}
    texts = {row.cell: some for row in shown if row.records not in images and (some := _texts(homes[row.cell], row))}
    if not pictures:
        (run / "report" / "figures" / page.STRIPS).unlink(missing_ok=True)  # strips of an earlier report
    for cell, found in strips.items():
        write(homes[cell] / records.STRIP, gallery.strip([found.truth, found.guess], side=found.truth.shape[1]))
    report = page.Report(
        rows=rows,
        summaries=over_seeds(rows),
        threats=threats_of(rows),
        manifest=manifest,
        verdict=verdict,
        pictures=strips,
        texts=texts,
        left_out=not pictures,
        told={row.cell: scores for row in rows if (scores := _told(homes[row.cell], row))},
        commands={row.cell: command for row in rows if (command := cell_command(manifest.argv, row))},
    )
    written = page.render(report, run / "report", write)
    records.write_verdict(run, verdict.model_copy(update={"files": files}))
    return written


def _pictures(cell: Path, row: Row) -> Pictures | None:
    """The pictures of a result; None if it has none. Runs of earlier versions of privkit hold no constant guesses."""
    floors = {f"floor_{name}": ("u", 4) for name in row.floors}
    arrays = _arrays(cell / records.PICTURES, row, {"truth": ("u", 4), "guess": ("u", 4)}, floors)
    if arrays is None:
        return None
    shown = {name.removeprefix("floor_"): arrays[name] for name in floors if name in arrays}
    return Pictures(truth=arrays["truth"], guess=arrays["guess"], floors=shown)


def _texts(cell: Path, row: Row) -> list[tuple[str, str]]:
    arrays = _arrays(cell / records.PICTURES, row, {"truth": ("U", 1), "guess": ("U", 1)}) or {"truth": (), "guess": ()}
    return [(str(truth), str(guess)) for truth, guess in zip(arrays["truth"], arrays["guess"], strict=True)]


def _told(cell: Path, row: Row) -> Told | None:
    arrays = _arrays(cell / records.SCORES, row, {"values": ("f", 1), "positive": ("b", 1)})
    if arrays is None:
        return None
    values, positive = arrays["values"], arrays["positive"]
    false, true, _ = roc_points(values, positive)
    auc = pooled_auc(values, positive).auc.value
    proven = row.empirical_bound is not None and row.certificate is not None and row.certificate.standing == "proven"
    limits = row.limits if proven else None
    return Told(positive=values[positive], negative=values[~positive], false=false, true=true, auc=auc, limits=limits)


def _arrays(
    path: Path, row: Row, wanted: dict[str, tuple[str, int]], optional: dict[str, tuple[str, int]] | None = None
) -> dict[str, Any] | None:
    if path.name not in row.files:
        return None
    return read_arrays(path, checked_bytes(path, row.files[path.name]), wanted, optional or {})


def cell_command(argv: Sequence[str], row: Row) -> str:
    """The command line that computes one result alone, with its undefended baseline; empty for a run from Python."""
    if len(argv) < 2 or argv[1] not in ("audit", "frontier") or Path(argv[0]).name not in ("privkit", "__main__.py"):
        return ""
    kept, words = [], iter(argv[2:])
    untuned = any(note.startswith(f"{row.attack} was not tuned: ") for note in row.notes)
    refused = {"--parts": not row.parts, "--tune": untuned}  # flags that privkit refuses for this cell alone
    dropped = _OF_THE_RUN | {flag: False for flag, without in refused.items() if without}
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("--grid"):  # a grid's dataset and model may be lists
            kept += ["--dataset", row.dataset, "--model", row.model, word.replace("--grid", "--config", 1)]
        elif name not in dropped:
            kept.append(word)
        elif not dropped[name] and not equals:
            next(words, None)
    recorded = any(word.partition("=")[0] == "--recorded" for word in argv)  # a recording has its own defense
    defense = () if recorded else ("--defense", row.defense)
    return shlex.join(["privkit", "audit", *kept, *defense, "--attack", row.attack, "--seed", str(row.seed)])


def write_evidence(run: Path) -> evidence_schema.Evidence:
    """Summarize a finished audit for security reviews: write RUN/evidence.json and RUN/evidence.html.

    The same run folder always gives the same bytes. Raises `DamagedFile` if a file is damaged or missing, and
    `UnfinishedRun` if the run has no results.
    """
    home = root(run)
    faults = [fault for fault in examine(run).faults if fault[0] not in (records.EVIDENCE, records.EVIDENCE_PAGE)]
    if faults:
        raise DamagedFile(
            f"{run} is not whole, so there is no evidence: {': '.join(faults[0])}"
            f"{f'; privkit verify {run} names all {len(faults)} faults' if len(faults) > 1 else ''}"
        )
    manifest, rows = records.finished_rows(run)
    names = ["manifest.json", "results.jsonl", records.VERDICT, *(f"cells/{row.cell}/result.json" for row in rows)]
    digests = {name: digest(read_bytes(home / name)) for name in names}
    made = evidence(rows, threats_of(rows), manifest, records.last_verdict(run), digests)
    fields = made.model_dump_json()
    text = evidence_schema.page(evidence_schema.Evidence.model_validate_json(fields)).encode()
    write_bytes(home / records.EVIDENCE_PAGE, text)
    write_record(
        home / records.EVIDENCE, {**made.model_dump(mode="json"), "files": {records.EVIDENCE_PAGE: digest(text)}}
    )
    return made


def entries_of(rows: Sequence[Row]) -> list[registry.Entry]:
    """Summarize a run's results in the form of the registry: entries for each seed, defended setting and adversary."""
    seeds = dict.fromkeys(row.seed for row in rows)
    each = [[counted(row) for row in rows if row.seed == seed] for seed in seeds]
    return [found for own in each for found in registry.entries(own, threats_of(own))]


def placed(run: Path) -> tuple[list[registry.RegistryPlace], list[str]]:
    """Rank a run's defenses among privkit's registered results: one rank for each defense setting and adversary. The
    second result has a sentence for each respect in which this run differs from the registered ones. Raises
    `UsageError` if the run cannot be compared with the registry."""
    _, rows = records.finished_rows(run)
    if any(hold_attacked(row.auxiliary, row.attacked) for row in rows):
        raise UsageError(
            f"in {run} the adversary holds the attacked records among its own, but the registry has no such run; "
            f"audit with --auxiliary disjoint"
        )
    own, registered = registry.settings(entries_of(rows)), registry.settings(registry.read_registry())
    if not own:
        if all(row.accuracy is None for row in rows):
            raise UsageError(f"{run} has no accuracy, which a place needs; record one: save(accuracy=...)")
        raise UsageError(f"{run} has no defense whose records were attacked; audit one with --attack auto")
    if not (places := registry.registry_places(own, registered, rows)):
        mine, had = (
            ", ".join(sorted({f"{one.dataset} with {one.victims} attacked records" for one in found}))
            for found in (own, registered)
        )
        raise UsageError(f"nothing comparable to {run} is registered: it attacks {mine}, the registry {had}")
    return places, registry.place_differences(places, registered)
