"""The pytest plug-in: `privkit.testing`'s assertions as fixtures. Audits write to the test's temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privkit import testing


@pytest.fixture
def assert_claim_stands() -> Callable[..., Any]:
    """The function `privkit.testing.assert_claim_stands`."""
    return testing.assert_claim_stands


@pytest.fixture
def assert_audit(tmp_path: Path) -> Callable[..., Any]:
    """`privkit.testing.assert_audit`, with its run folder in the test's temporary folder unless `out` is given."""
    return partial(testing.assert_audit, out=tmp_path / "run")
