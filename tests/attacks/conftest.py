"""Shared by the tests of attacks: clients that can be led."""

import pytest

from privkit.attacks.hijack import fsha as module
from tests.attacks.hijackable import Hijack


@pytest.fixture(scope="session")
def hijack() -> Hijack:
    return Hijack()


@pytest.fixture
def ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds per epoch, for what shows after a few."""
    monkeypatch.setattr(module, "ROUNDS_AN_EPOCH", 10)
