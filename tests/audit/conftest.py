"""Shared by the tests of audits."""

import shutil
from pathlib import Path

import pytest

from privkit.audit.run import AuditRun


@pytest.fixture
def copied(small_run: AuditRun, tmp_path: Path, no_report: None) -> Path:
    """A copy of the finished run, to damage; what goes on there leaves the report as it is."""
    return Path(shutil.copytree(small_run.folder, tmp_path / "run"))
