"""Shared by the tests of the accountants."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where nothing is yet."""
    return tmp_path / "run" / "ledger.jsonl"
