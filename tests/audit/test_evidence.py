"""`privkit evidence`: of whole folders alone, the same bytes each time, and checked from then on."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privkit.audit.report import build, write_evidence
from privkit.audit.run import AuditRun
from privkit.cli.app import app
from privkit.errors import DamagedFile, RunFolderError, UnfinishedRun
from privkit.files.sealed import digest, opened, sealed
from privkit.reports.evidence_schema import Evidence, page
from privkit.reports.gate import Gate
from privkit.run.verify import examine

FILES = ("evidence.json", "evidence.html")


def test_a_whole_run_gives_the_same_bytes_twice_and_both_files_are_checked(copied: Path, small_run: AuditRun) -> None:
    found = write_evidence(copied)
    first = [(copied / name).read_bytes() for name in FILES]
    write_evidence(copied)
    assert [(copied / name).read_bytes() for name in FILES] == first
    examination = examine(copied)
    assert examination.faults == []
    assert set(FILES) <= set(examination.checked)
    record = opened(first[0], run=found.run)
    assert record.pop("files") == {"evidence.html": digest(first[1])}
    assert page(Evidence.model_validate_json(json.dumps(record))).encode() == first[1]
    results = (copied / "cells" / small_run.rows[0].cell / "result.json").read_bytes()
    assert found.records[f"cells/{small_run.rows[0].cell}/result.json"] == digest(results)
    assert found.audited.state == small_run.verdict.sentence


def test_the_command_exits_as_the_run_did(copied: Path) -> None:
    said = CliRunner().invoke(app, ["evidence", str(copied)])
    assert said.exit_code == 0
    assert "evidence.html" in said.output
    build(copied, gates=[Gate.parse("ssim<=0")])
    failed = CliRunner().invoke(app, ["evidence", str(copied)])
    assert failed.exit_code == 1
    assert "gates" in failed.output
    assert json.loads((copied / FILES[0]).read_text())["audited"]["failures"]


def test_a_number_that_was_changed_and_sealed_again_is_refused(copied: Path, small_run: AuditRun) -> None:
    name = f"cells/{small_run.rows[1].cell}/result.json"
    fields = json.loads((copied / name).read_text())
    fields.pop("sha256")
    fields["recovered"]["unaligned"]["identified"]["value"] = 0.125
    (copied / name).write_text(sealed(fields))
    with pytest.raises(DamagedFile, match=r"is not whole, so there is no evidence: results\.jsonl"):
        write_evidence(copied)
    said = CliRunner().invoke(app, ["evidence", str(copied)])
    assert isinstance(said.exception, DamagedFile)
    assert said.exception.exit_code == 3
    assert not any((copied / name).exists() for name in FILES)


@pytest.mark.parametrize("name", FILES)
def test_changed_evidence_is_named_and_written_anew(copied: Path, name: str) -> None:
    write_evidence(copied)
    whole = (copied / name).read_bytes()
    (copied / name).write_bytes(whole.replace(b"not tried", b"all tried"))
    assert {path for path, _ in examine(copied).faults} == {name}
    write_evidence(copied)
    assert (copied / name).read_bytes() == whole
    assert examine(copied).faults == []


def test_a_page_without_its_record_is_named(copied: Path) -> None:
    """Whoever drops the record could else write anything on the page, in a folder that is called whole."""
    write_evidence(copied)
    (copied / "evidence.json").unlink()
    (copied / "evidence.html").write_text("proven: nothing is ever identified")
    assert examine(copied).faults == [
        ("evidence.html", "stands without evidence.json, which has its checksum; write it again with privkit evidence")
    ]
    write_evidence(copied)
    assert examine(copied).faults == []


def test_evidence_of_an_earlier_state_is_named(copied: Path) -> None:
    write_evidence(copied)
    build(copied, gates=[Gate.parse("ssim<=0")])
    assert examine(copied).faults == [
        ("evidence.json", "is about an earlier state of the run; write it again with privkit evidence")
    ]
    write_evidence(copied)
    assert examine(copied).faults == []


def test_a_folder_without_a_run_or_without_a_row_is_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        write_evidence(tmp_path / "none")
    for name in ("cells", "superseded"):
        shutil.rmtree(copied / name, ignore_errors=True)
    (copied / "results.jsonl").unlink()
    with pytest.raises((UnfinishedRun, DamagedFile)) as refused:
        write_evidence(copied)
    assert refused.value.exit_code == 3
