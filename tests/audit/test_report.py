"""Building a report from a folder that is not what it should be."""

import shutil
import zipfile
from pathlib import Path

import pytest

from privkit.audit.report import build
from privkit.audit.run import AuditRun
from privkit.errors import DamagedFile, RunFolderError


def test_a_folder_that_is_no_run_stays_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    with pytest.raises(RunFolderError, match="is no run folder"):
        build(tmp_path / "nope")
    assert list(tmp_path.iterdir()) == []


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
