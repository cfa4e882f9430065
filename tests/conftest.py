"""Shared by all tests: one thread, no network, and a finished small run to look at."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from privkit.audit.run import AuditRun, run_audit

torch.set_num_threads(1)

# The same examples in every run, so that a change is judged and not the dice; HYPOTHESIS_PROFILE=default draws new.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SMALL: dict[str, Any] = {"dataset": "tiny_digits", "budget": "smoke", "threads": 1}
"""Settings of a run that takes a few seconds."""

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A finished audit of batch shuffling; read it, do not change its folder."""
    return run_audit(defense="batch_shuffle", out=tmp_path_factory.mktemp("audit") / "run", **SMALL)


@pytest.fixture
def privkit_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in an empty folder."""

    def run(*arguments: str, cwd: Path = tmp_path, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "privkit", *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            **options,  # type: ignore[call-overload]
        )

    return run


@pytest.fixture
def shared() -> Path:
    """The folder of reference material, where it lies beside the project."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, the reference material beside the project")
    return SHARED
