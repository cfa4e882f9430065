"""Real signals: what is kept is said, the command that goes on is named, and the exit code is the signal's."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from privkit.audit.contained import contained
from privkit.errors import Misbehaved
from privkit.run.stopping import Stopped, finished_cells, heeded

RUN = ["--dataset", "tiny_digits", "--threads", "1", "--out", "my run"]
BUDGET = ["--budget", "smoke:epochs=20"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "privkit", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    )


def default_signals() -> None:
    """In the new process: whoever runs the tests in the background, or under nohup, ignores some of these."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end, "nothing happened"
        time.sleep(0.02)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("number", "code", "called"),
    [(signal.SIGINT, 130, "Ctrl-C (SIGINT)"), (signal.SIGTERM, 143, "SIGTERM"), (signal.SIGHUP, 129, "SIGHUP")],
)
def test_a_signal_is_one_sentence_and_its_exit_code(
    number: signal.Signals, code: int, called: str, tmp_path: Path
) -> None:
    process = start(["epsilon", "-", "--delta", "1e-5", "--out", "out.csv"], tmp_path)  # waits for standard input
    assert process.stdin is not None
    process.stdin.write("mechanism,sigma,sensitivity\n")
    process.stdin.flush()
    wait_for((tmp_path / "out.csv").exists)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    (line,) = errors.splitlines()
    assert line.startswith(f"privkit: stopped by {called}; out.csv keeps the rows before this one; go on with: ")


@pytest.mark.slow
def test_a_stopped_run_says_what_it_keeps_and_the_command_that_goes_on(tmp_path: Path) -> None:
    process = start(["audit", "--defense", "none", "--attack", "mean_image", *RUN, *BUDGET], tmp_path)
    wait_for(lambda: list(tmp_path.glob("my run/models/*/training.ckpt")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    said, _, command = errors.splitlines()[-1].partition("go on with: ")
    assert "my run keeps 0 of 1 cells and the last epochs" in said
    assert "Traceback" not in errors
    words = shlex.split(command)
    assert words == ["python", "-m", "privkit", "audit", "--defense", "none", "--attack", "mean_image", *RUN, *BUDGET]
    done = subprocess.run(
        [sys.executable, *words[1:]], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("my run/cells/none-*/log.txt")
    assert "training resumed after epoch" in log.read_text()
    assert len({json.loads(line)["cell"] for line in (tmp_path / "my run" / "results.jsonl").open()}) == 1


def test_what_is_kept_is_told_as_it_is(tmp_path: Path) -> None:
    for cell in ("a", "b"):
        (tmp_path / "cells" / cell).mkdir(parents=True)
        (tmp_path / "cells" / cell / "result.json").write_text("{}")
    assert finished_cells(tmp_path, 3).endswith("2 of 3 cells and the last epochs of the one that was running")
    assert finished_cells(tmp_path, 2).endswith("2 of 2 cells")
    assert "2 of 2 cells (up to 5 if attacks fail) and the last epochs" in finished_cells(tmp_path, 2, 3)
    assert "files that were finished before stay as they are" in Stopped(signal.SIGTERM).sentence


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    code = (
        "import os, signal; from privkit.run.stopping import heeded\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with heeded(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout == "alive\n"


def test_privkit_alone_prints_its_help(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "privkit"], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 10
    assert "Exit codes: 0 clean" in done.stdout


def test_an_interrupt_that_a_part_raises_is_none_of_the_users() -> None:
    """Under a command, Ctrl-C raises `Stopped`; elsewhere it may be the user's."""
    with heeded(), pytest.raises(Misbehaved, match="a part raised KeyboardInterrupt"), contained():
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), contained():
        raise KeyboardInterrupt
