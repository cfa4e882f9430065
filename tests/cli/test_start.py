"""The process around the command line: faults, streams that cannot show or take everything, memory that runs out."""

import gc
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.start import INTERNAL_FAULT, uncollected
from privkit.errors import OutOfMemory
from privkit.run.records import read_rows
from privkit.settings.resolve import resolve
from tests.audit.audits import Odd, registered
from tests.forked import Done
from tests.small import SMALL

STUB = """
import privkit.cli.app, privkit.cli.start
def app(standalone_mode):
    {body}
privkit.cli.app.app = app
privkit.cli.start.main()
"""


def started(body: str, redirect: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `body` in the place of a command, under a shell that redirects its streams."""
    return subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirect}', sys.executable, STUB.format(body=body)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_a_fault_of_ours_has_its_own_code_and_says_how_to_report_it() -> None:
    done = started("raise KeyError('cells')")
    assert done.returncode == INTERNAL_FAULT == 70
    assert "Traceback" in done.stderr
    assert "internal fault of privkit (KeyError)" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("own", "policy"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_waiting_threads_give_their_core_away_unless_the_user_decides(own: dict[str, str], policy: str) -> None:
    """OpenMP reads the policy when torch is loaded."""
    done = started("import os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)", **own)
    assert done.stdout == f"{policy} False\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_characters_that_a_terminal_lacks_are_replaced(encoding: str) -> None:
    done = started("print('SSIM \u2191 \u03b5'); privkit.cli.start.tell('\u2264')", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stdout, done.stderr) == (0, "SSIM ? ?\n", "privkit: ?\n")


def test_a_closed_output_stops_nothing_and_lends_its_number_to_no_file() -> None:
    body = "print(1); privkit.cli.start.tell(str(open('/dev/null').fileno() > 2)); return 1"
    for redirect in (">&-", "<&- >&-"):
        done = started(body, redirect)
        assert (done.returncode, done.stderr) == (1, "privkit: True\n")
    assert started(body, ">&- 2>&-").returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_output_is_one_sentence_and_loses_no_verdict() -> None:
    done = started("print('x' * 100_000); return 0", ">/dev/full")
    assert done.returncode == 3
    assert done.stderr == (
        "privkit: cannot write to standard output (No space left on device); files that were written are complete\n"
    )
    assert started("print('x' * 100_000); return 1", ">/dev/full").returncode == 1
    assert started("privkit.cli.start.tell('x' * 100_000)", "2>/dev/full").returncode == 0


def test_a_report_where_arrows_cannot_be_shown(
    small_run: AuditRun, privkit_cli: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privkit.audit.report.build", lambda at, **_: at / "report" / "index.html")  # it is there
    done = privkit_cli("report", str(small_run.folder), encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert "accuracy ?" in done.stdout


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError",
        "RuntimeError('can\\'t allocate memory: you tried to allocate 8 bytes.')",
        "OSError(12, 'mmap')",
        "type('PanicException', (BaseException,), {})('PyObject pointer is null')",
    ],
)
def test_memory_that_runs_out_anywhere_is_one_sentence_and_exit_3(error: str) -> None:
    done = started(f"raise {error}")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "memory ran out" in done.stderr


@pytest.mark.parametrize("mebibytes", [50, 1_500])
def test_a_limit_below_what_imports_need_says_so(mebibytes: int) -> None:
    """50 MiB do not load NumPy; 1.5 GiB do not load torch where it comes with CUDA, and are enough where not."""
    limit = mebibytes * 2**20
    done = subprocess.run(
        [sys.executable, "-m", "privkit", "list", "protocols"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    if mebibytes > 50 and done.returncode == 0:
        return
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "too few for the libraries to load" in done.stderr


class Greedy(Odd):
    """An attack that asks for a pebibyte."""

    name = "greedy"

    def run(self, *given: object) -> Reconstruction:
        return Reconstruction(images=torch.empty(2**50))


@pytest.mark.slow
def test_an_allocation_that_fails_ends_the_run_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(monkeypatch, Greedy)
    config = resolve({"attack": ["mean_image", "greedy"], **SMALL})
    with pytest.raises(OutOfMemory, match=r"in none / greedy, seed 0 \(you tried to allocate \d+ bytes\)") as caught:
        run_audit(config, out=tmp_path / "run")
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert [row.attack for row in read_rows(tmp_path / "run")] == ["mean_image"]


LIMITED = """
import re, resource, sys, torch, privkit.cli.start
backward = torch.Tensor.backward
def limited(*given, **named):
    now = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (now, -1))
    return backward(*given, **named)
torch.Tensor.backward = limited
privkit.cli.start.main()
"""
"""A command under a limit from its first gradient on: a library in Rust may end a process that lacks memory."""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads its own size from /proc")
def test_a_run_under_a_limit_on_memory_keeps_its_finished_cells(small_run: AuditRun, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_run.folder, tmp_path / "run"))
    none, batch = small_run.rows
    shutil.rmtree(folder / "cells" / batch.cell)
    settings = ["--attack", "black_box", "--dataset", "tiny_digits", "--budget", "smoke", "--threads", "1"]
    command = ["audit", "--defense", "batch_shuffle", *settings]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *command, "--out", str(folder)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 3, done.stderr
    assert "memory ran out" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert none in read_rows(folder)


def test_garbage_is_not_collected_inside_a_context() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
