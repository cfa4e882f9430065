"""kill -9 at a random moment, again and again: the numbers are those of a run that nobody disturbed."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from operator import itemgetter
from pathlib import Path

import pytest

from privkit.audit.run import AuditRun
from tests.small import timeless

KILLS = 10
COMMAND = ["audit", "--defense", "batch_shuffle", "--attack", "black_box", "--dataset", "tiny_digits", "--threads", "1"]
BUDGET = ["--budget", "smoke:private=400,auxiliary=250,epochs=6,attack_epochs=6"]


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "privkit", *COMMAND, *BUDGET, "--out", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def wait(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()


@pytest.mark.slow
def test_ten_kills_change_no_number_and_no_cell_runs_twice(tmp_path: Path) -> None:
    began = time.perf_counter()
    wait(start(tmp_path / "straight"))
    usual = time.perf_counter() - began

    folder, moments = tmp_path / "killed", random.Random(0)
    killed = 0
    while killed < KILLS:
        process = start(folder)
        deadline = time.perf_counter() + moments.uniform(0.15, 0.75) * usual
        while process.poll() is None and time.perf_counter() < deadline:
            time.sleep(0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
            process.communicate()
        else:  # it got through between two kills: the next ones hit a new folder, the results so far must be right
            assert process.returncode == 0
            check(folder, tmp_path / "straight")
            folder = tmp_path / f"killed-{killed}"
    wait(start(folder))
    check(folder, tmp_path / "straight")


def check(folder: Path, straight: Path) -> None:
    """Same rows, every cell finished once, no epoch lost that a checkpoint held."""
    rows, expected = (sorted(timeless(run / "results.jsonl"), key=itemgetter("cell")) for run in (folder, straight))
    assert rows == expected
    assert len(rows) == len({row["cell"] for row in rows}) == 2
    logs = [log.read_text() for log in folder.glob("cells/*/log.txt")]
    assert len(logs) == 2
    for text in logs:
        assert len(re.findall(r"Z? ?\bdone$", text, flags=re.MULTILINE)) == 1
        assert text.count("trained 6 epochs") <= 1
        resumed = [int(epoch) for epoch in re.findall(r"training resumed after epoch (\d+)", text)]
        assert resumed == sorted(resumed)


def test_the_finished_run_left_no_checkpoint(small_run: AuditRun) -> None:
    assert not list(small_run.folder.rglob("*.ckpt"))
