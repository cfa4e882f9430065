"""Shared by the tests of the accountants."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where nothing is yet."""
    return tmp_path / "run" / "ledger.jsonl"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many charges without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
