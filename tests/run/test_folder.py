"""What a run folder refuses, and that its advice never costs a user anything."""

import json
from pathlib import Path

import pytest

from privkit.audit.run import AuditRun
from privkit.errors import DamagedFile, PrivkitError, RunFolderError
from privkit.files.sealed import opened, sealed
from privkit.reports.columns import flat_record
from privkit.reports.schema import SCHEMA_VERSION, Manifest, Seconds
from privkit.run.ledger import RunLedger
from privkit.run.provenance import manifest
from privkit.run.records import read_manifest, read_rows
from privkit.settings.resolve import resolve


def described(**settings: object) -> Manifest:
    return manifest(resolve(settings), threads=1)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"name": "my-app", "version": 3}', "\xff"])
def test_a_folder_with_somebody_elses_manifest_is_left_alone(tmp_path: Path, text: str) -> None:
    home = tmp_path / "precious"
    home.mkdir()
    (home / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunFolderError, match=r"manifest.json is not a manifest of privkit's.*--out") as caught:
        RunLedger(home, described())
    assert "delete" not in str(caught.value)
    assert caught.value.exit_code == 3  # as privkit verify exits
    assert [path.name for path in home.iterdir()] == ["manifest.json"]


def test_a_manifest_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    for act in (lambda: RunLedger(tmp_path, described()), lambda: read_rows(tmp_path)):
        with pytest.raises(RunFolderError, match=r"cannot read .*manifest.json \(Is a directory\)"):
            act()


def test_a_manifest_of_another_schema_version_is_named_so(copied: Path) -> None:
    fields = json.loads((copied / "manifest.json").read_text())
    del fields["sha256"]  # the first records had none
    (copied / "manifest.json").write_text(json.dumps({**fields, "schema_version": 1}))
    with pytest.raises(RunFolderError, match=f"has schema version 1, and this privkit reads {SCHEMA_VERSION}"):
        read_manifest(copied)


def test_a_row_of_another_schema_version_is_named_so(copied: Path, small_run: AuditRun) -> None:
    results = copied / "results.jsonl"
    lines = results.read_text().splitlines()
    results.write_text(lines[0] + "\n" + sealed({**opened(lines[1]), "schema_version": 99}) + "\n")
    with pytest.raises(DamagedFile, match="line 2 has schema version 99, and"):
        read_rows(copied)


def test_a_row_equals_itself_with_other_seconds(small_run: AuditRun) -> None:
    row = small_run.rows[0]
    timed = row.model_copy(update={"seconds": Seconds(training=1.5, attack=2.0, controls=0.5)})
    assert timed == row
    assert flat_record(timed)["seconds_training"] == 1.5
    assert timed != row.model_copy(update={"seed": 99})


def test_bytes_that_are_no_text_are_a_damaged_line(copied: Path, small_run: AuditRun) -> None:
    results = copied / "results.jsonl"
    data = results.read_bytes()
    results.write_bytes(data[:40] + b"\xff\xfe" + data[42:])
    with pytest.raises(DamagedFile, match="line 1 is truncated or damaged"):
        read_rows(copied)
    with RunLedger(copied, read_manifest(copied) or described()) as folder:
        rows, mended = folder.finished(row.cell for row in small_run.rows)
    assert len(mended) == 1
    assert sorted(results.read_bytes().splitlines()) == sorted(data.splitlines())
    assert list(rows.values()) == list(small_run.rows)


def test_a_reason_with_unusual_line_ends_stays_one_row(copied: Path, small_run: AuditRun) -> None:
    odd = small_run.rows[1].model_copy(update={"reason": "one\u2028two\x85three"})
    with RunLedger(copied, read_manifest(copied) or described()) as folder:
        folder.finished([small_run.rows[0].cell])
        folder.finish(odd)
    assert read_rows(copied)[-1] == odd


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunFolderError, match=r"file is a file, and a run needs a folder; name .*--out") as caught:
            RunLedger(path, described())
        assert caught.value.exit_code == 2


def test_two_runs_that_start_together_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found the folder empty; the second is refused, and the first one's manifest stays."""
    pytest.importorskip("fcntl", reason="needs the file locks of POSIX")
    monkeypatch.setattr("privkit.run.ledger.PATIENCE", 0.0)
    first, second = described(), described(seed=1)
    one, two = RunLedger(tmp_path / "run", first), RunLedger(tmp_path / "run", second)
    with one:
        with pytest.raises(PrivkitError, match="in use by another process"), two:
            pass
        assert read_manifest(tmp_path / "run") == first
        one.model("none-s0").mkdir()
        (one.model("none-s0") / "training.ckpt").touch()
    with pytest.raises(RunFolderError, match="belongs to another configuration"), two:
        pass
    assert read_manifest(tmp_path / "run") == one.manifest


def test_a_run_that_was_refused_before_its_first_cell_does_not_hold_the_folder(tmp_path: Path) -> None:
    """A missing file or too large a batch: the mended command may use the same --out."""
    with RunLedger(tmp_path / "run", described(training="batch_size=400")):
        pass
    with RunLedger(tmp_path / "run", described()) as folder:
        assert (
            read_manifest(tmp_path / "run")
            == folder.manifest
            == described().model_copy(update={"created": folder.manifest.created})
        )
