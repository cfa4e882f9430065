"""Building a report from a folder that is not what it should be."""

import shutil
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privkit.audit.report import build
from privkit.audit.run import AuditRun
from privkit.cli.app import app
from privkit.errors import DamagedFile, RunFolderError
from privkit.run.ledger import RunLedger
from privkit.run.records import read_manifest


def test_a_folder_that_is_no_run_stays_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        build(tmp_path / "nope")
    assert list(tmp_path.iterdir()) == []


def test_report_and_evidence_of_a_run_under_way_are_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They replaced the verdict that the audit had written at its end."""
    pytest.importorskip("fcntl", reason="needs the file locks of POSIX")
    monkeypatch.setattr("privkit.run.ledger.PATIENCE", 0.0)
    manifest = read_manifest(copied)
    assert manifest is not None
    with RunLedger(copied, manifest):
        for command in ("report", "evidence"):
            said = CliRunner().invoke(app, [command, str(copied)])
            assert isinstance(said.exception, RunFolderError)
            assert "is in use by another process" in str(said.exception)
    assert CliRunner().invoke(app, ["evidence", str(copied)]).exit_code == 0


def test_a_report_to_publish_shows_no_private_record(copied: Path) -> None:
    build(copied)
    page, strips = copied / "report" / "index.html", copied / "report" / "figures" / "reconstructions.svg"
    assert "data:image/png" in page.read_text("utf-8")
    assert strips.is_file()
    said = CliRunner().invoke(app, ["report", str(copied), "--no-pictures", "--quiet"])
    assert said.exit_code in (0, 1)
    assert "data:image/png" not in page.read_text("utf-8")
    assert not strips.exists()
    assert "private records and guesses are left out" in page.read_text("utf-8")
    assert CliRunner().invoke(app, ["verify", str(copied)]).exit_code == 0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_pictures_that_were_damaged_are_named(small_run: AuditRun, tmp_path: Path, share: float) -> None:
    """Wherever the bytes of the deflated stream are flipped."""
    folder = Path(shutil.copytree(small_run.folder, tmp_path / "run"))
    path = folder / "cells" / small_run.rows[0].cell / "per_example.npz"
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("truth.npy")
    names = int.from_bytes(data[member.header_offset + 26 :][:2], "little")
    extra = int.from_bytes(data[member.header_offset + 28 :][:2], "little")
    place = member.header_offset + 30 + names + extra + round(share * member.compress_size)
    data[place : place + 4] = bytes(byte ^ 0xFF for byte in data[place : place + 4])
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=r"per_example\.npz is damaged; delete"):
        build(folder)
