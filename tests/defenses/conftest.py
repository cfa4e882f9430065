"""Shared by the tests of defenses."""

import pytest

from privkit.defenses import charge


@pytest.fixture
def closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """No numerical composition: closed forms prove the same laws, and are fast."""
    monkeypatch.setattr(charge, "WORTH_COMPOSING", 0.0)
