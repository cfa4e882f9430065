"""How many threads a new run takes, and what its manifest holds of the command line."""

import os
import sys
from pathlib import Path

import pytest

from privkit.errors import UsageError
from privkit.files.storage import write_record
from privkit.run.provenance import default_threads, manifest
from privkit.run.records import read_manifest
from privkit.settings.resolve import resolve
from tests.small import SMALL


@pytest.mark.parametrize(
    ("said", "threads"), [("1", 1), ("3", 3), ("900", 8), ("", 2), ("0", 2), ("-1", 2), ("2,4", 2)]
)
def test_openmps_own_setting_is_heeded(said: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no number of threads leaves the choice to privkit: all that are usable, two here."""
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    assert default_threads() == threads


def test_a_path_that_is_no_utf_8_leaves_a_manifest_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file could not be read again after all cells."""
    monkeypatch.setattr(sys, "argv", ["privkit", "audit", "--junit", "/tmp/J\udcfcr.xml"])
    made = manifest(resolve(SMALL), threads=1)
    write_record(tmp_path / "manifest.json", made.model_dump(mode="json"))
    assert read_manifest(tmp_path) == made
    assert made.argv[-1] == r"/tmp/J\udcfcr.xml"
    with pytest.raises(UsageError, match="data_root holds bytes that are not UTF-8"):
        resolve({**SMALL, "data_root": Path("/tmp/J\udcfcr")})
