"""The pytest plug-in: assertions of `privkit.testing` as fixtures. Audits write to the test's temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from privkit import testing


@pytest.fixture
def assert_claim_stands() -> Callable[..., Any]:
    """`privkit.testing.assert_claim_stands`."""
    return testing.assert_claim_stands


@pytest.fixture
def assert_audit(tmp_path: Path) -> Callable[..., Any]:
    """`privkit.testing.assert_audit`, with a run folder in the test's temporary folder unless `out` names one."""
    return partial(testing.assert_audit, out=tmp_path / "run")
