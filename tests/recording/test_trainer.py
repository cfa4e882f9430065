"""A Trainer of Hugging Face is recorded by two hooks, and its texts are read from the recording."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from privkit.recording.read import read_recording

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "trainer" / "split_gpt2.py"


@pytest.mark.slow
@pytest.mark.needs("language")
@pytest.mark.usefixtures("no_report", "no_controls")
def test_a_trainer_is_recorded_and_its_texts_are_read(tmp_path: Path) -> None:
    given = [sys.executable, str(SCRIPT), str(tmp_path / "recording")]
    subprocess.run(given, cwd=tmp_path, check=True, timeout=300, capture_output=True)
    recording = read_recording(tmp_path / "recording")
    described = recording.description
    assert described.lower is not None  # a program whose code lies in a package with a folder "models"
    assert described.replay is not None
    assert described.replay.distance < 0.01
    assert (described.watched, described.notes) == (10, [])
    settings: dict[str, Any] = {
        "attack": ["vocabulary", "token_search"],
        "budget": "smoke",
        "out": tmp_path / "run",
        "threads": 1,
    }
    for row in run_audit(recorded=tmp_path / "recording", **settings).rows:
        assert row.recovered["unaligned"]["token_accuracy"].value > 0.9, row.attack
