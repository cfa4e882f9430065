"""The evidence file of a run, written from the run folder's result rows and verdict alone."""

from __future__ import annotations

from pathlib import Path

from privkit.errors import DamagedFile
from privkit.files.paths import read_bytes, root
from privkit.files.sealed import digest
from privkit.files.storage import write_bytes, write_record
from privkit.parts.threats import threats_of
from privkit.reports.evidence import evidence
from privkit.reports.evidence_schema import Evidence, page
from privkit.reports.strongest import counted
from privkit.run.records import EVIDENCE, EVIDENCE_PAGE, VERDICT, finished_rows, last_verdict
from privkit.run.verify import examine


def write_evidence(run: Path) -> Evidence:
    """Summarize a finished audit for security reviews: write RUN/evidence.json and RUN/evidence.html.

    The same run folder always gives the same bytes. A damaged or missing file raises `DamagedFile`, a run without
    results `UnfinishedRun`.
    """
    home = root(run)
    faults = [fault for fault in examine(run).faults if fault[0] not in (EVIDENCE, EVIDENCE_PAGE)]
    if faults:
        raise DamagedFile(
            f"{run} is not whole, so there is no evidence: {': '.join(faults[0])}"
            f"{f'; privkit verify {run} names all {len(faults)} faults' if len(faults) > 1 else ''}"
        )
    manifest, rows = finished_rows(run)
    rows = [counted(row) for row in rows]
    names = ["manifest.json", "results.jsonl", VERDICT, *(f"cells/{row.cell}/result.json" for row in rows)]
    records = {name: digest(read_bytes(home / name)) for name in names}
    made = evidence(rows, threats_of(rows), manifest, last_verdict(run), records)
    fields = made.model_dump_json()
    text = page(Evidence.model_validate_json(fields)).encode()
    write_bytes(home / EVIDENCE_PAGE, text)
    write_record(home / EVIDENCE, {**made.model_dump(mode="json"), "files": {EVIDENCE_PAGE: digest(text)}})
    return made
