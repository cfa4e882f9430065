"""How many threads a new run takes."""

import os

import pytest

from privkit.run.provenance import default_threads


@pytest.mark.parametrize(
    ("said", "threads"), [("1", 1), ("3", 3), ("900", 8), ("", 2), ("0", 2), ("-1", 2), ("2,4", 2)]
)
def test_openmps_own_setting_is_heeded(said: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no number of threads leaves the choice to privkit: all that are usable, two here."""
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    assert default_threads() == threads
