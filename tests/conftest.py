"""Shared by all tests: one thread, no network, and a finished small run to look at."""

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import settings

from privkit.attacks.inversion import black_box
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.start import main
from tests.small import SMALL

torch.set_num_threads(1)

# The same examples in every run, so that a change is judged and not the dice; HYPOTHESIS_PROFILE=default draws new.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A finished audit of batch shuffling; read it, do not change its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(black_box, "CONTROL_STEPS", 50)  # half as long, and enough to win
        return run_audit(defense="batch_shuffle", out=tmp_path_factory.mktemp("audit") / "run", **SMALL)


@pytest.fixture
def copied(small_run: AuditRun, tmp_path: Path) -> Path:
    """A copy of the finished run, to damage."""
    return Path(shutil.copytree(small_run.folder, tmp_path / "run"))


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits without the figures and the page of their report, which take seconds: for tests that read rows."""
    monkeypatch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")


@pytest.fixture
def privkit_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in an empty folder.

    It runs in a fork of this process: streams, working folder and exit code are its own, and the libraries are there
    already, whose import takes longer than most commands. What a new process does differently, such as its reading of
    the environment, is tested by real ones (tests/cli/test_start.py, tests/run/test_stopping.py).
    """

    def run(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(input.encode())
            streams = (given, out, err)
            for stream in streams:
                stream.seek(0)
            child = os.fork()
            if child == 0:
                _become_privkit(arguments, tmp_path, [stream.fileno() for stream in streams])
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())

    return run


def _become_privkit(arguments: tuple[str, ...], folder: Path, descriptors: list[int]) -> NoReturn:
    """In a fork: be `privkit arguments` in a folder; a command that hangs ends after five minutes."""
    code = 1
    try:
        signal.alarm(300)
        os.chdir(folder)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(number, mode, closefd=False)) for number, mode in enumerate("rww")
        )
        sys.argv = ["privkit", *arguments]
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@pytest.fixture
def shared() -> Path:
    """The folder of reference material, where it lies beside the project."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, the reference material beside the project")
    return SHARED
