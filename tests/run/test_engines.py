"""Engines: a lost worker takes its own task alone, the end of the command ends them, and what is none is refused."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from privkit.errors import UsageError
from privkit.run import engines
from privkit.run.engines import Wanted, engine

WORKERS = 2


def wanted(run: Path) -> Wanted:
    return Wanted(devices=["cpu"] * WORKERS, threads=1, run=run)


def end(number: int) -> None:
    """A task whose process ends."""
    os.kill(os.getpid(), number)


def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def device_after(file: Path) -> str:
    """The device of the process, given once `file` exists: no task ends before all are submitted."""
    deadline = time.perf_counter() + 60
    while not file.exists() and time.perf_counter() < deadline:
        time.sleep(0.01)
    return engines.device


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def threads() -> Executor:
    return ThreadPoolExecutor(WORKERS)


def nothing() -> str:
    return "nothing"


def broken() -> Executor:
    raise OSError("no route to the cluster")


def test_a_process_that_ends_takes_one_task_with_it_and_says_how(tmp_path: Path) -> None:
    with engine(None, wanted(tmp_path)) as executor:
        first, second = executor.submit(slow, 1.0), executor.submit(end, signal.SIGKILL)
        with pytest.raises(BrokenExecutor, match=r"process \d+ was ended by signal 9"):
            second.result(60)
        neighbour, both = first.result(60), [executor.submit(slow, 0.5) for _ in range(WORKERS)]
        pids = {future.result(60) for future in both}
        assert neighbour in pids
        assert len(pids) == WORKERS
    assert not any(map(alive, pids))


def test_a_block_that_fails_ends_its_processes(tmp_path: Path) -> None:
    def fails() -> None:
        with engine(None, wanted(tmp_path)) as executor:
            pids.append(executor.submit(slow, 0.0).result(60))
            executor.submit(slow, 600.0)
            raise KeyError

    pids: list[int] = []
    began = time.perf_counter()
    with pytest.raises(KeyError):
        fails()
    assert time.perf_counter() - began < 60
    assert not alive(pids[0])


def test_processes_end_with_a_command_that_is_killed_and_import_no_script(tmp_path: Path) -> None:
    """The script has no `if __name__ == "__main__"`: a process that imported it would start processes for ever."""
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\n"
        "from privkit.run.engines import Processes\n"
        "from tests.run.test_engines import slow\n"
        "executor = Processes(['cpu'])\n"
        "print(executor.submit(slow, 0.0).result(), flush=True)\n"
        "executor.submit(slow, 600.0).result()\n"
    )
    path = os.pathsep.join(sys.path)
    command = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert command.stdout is not None
    worker = int(command.stdout.readline())
    assert alive(worker)
    command.kill()
    command.wait()
    deadline = time.perf_counter() + 20
    while alive(worker):
        assert time.perf_counter() < deadline
        time.sleep(0.02)


def test_each_process_has_its_device(tmp_path: Path) -> None:
    run = Wanted(devices=["cuda:0", "cuda:1"], threads=1, run=tmp_path)
    with engine(None, run) as executor:
        both: list[Future[str]] = [executor.submit(device_after, tmp_path / "go") for _ in run.devices]
        (tmp_path / "go").touch()
        assert {future.result(60) for future in both} == {"cuda:0", "cuda:1"}


def test_an_engine_of_ones_own(tmp_path: Path) -> None:
    with engine(f"{__name__}:threads", wanted(tmp_path)) as executor:
        assert executor.submit(slow, 0.0).result() == os.getpid()


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("dusk", r"unknown engine 'dusk'; did you mean 'dask'\? \(allowed: dask, module:factory, mpi, submitit\)"),
        (f"{__name__}:nothing", "gave str, which is not a futures Executor"),
        (f"{__name__}:broken", r"did not start \(OSError: no route to the cluster\)"),
        ("submitit:cluster=local,partiton=gpu", "refuses its parameters .*partiton"),
    ],
)
def test_what_is_no_engine_is_refused_in_a_sentence(named: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence), engine(named, wanted(tmp_path / "run")):
        pass


@pytest.mark.parametrize(("package", "named"), [("distributed", "dask"), ("submitit", "submitit"), ("mpi4py", "mpi")])
def test_a_missing_package_is_named(package: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"needs the package {package}: pip install"), engine(named, wanted(tmp_path)):
        pass


def test_jobs_of_submitit_return_their_result_and_their_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)  # 15 s on a slow network drive
    with engine("submitit:cluster=local,time=5", wanted(tmp_path / "run")) as executor:
        good, bad = executor.submit(slow, 0.0), executor.submit(end, signal.SIGKILL)
        assert good.result(120) != os.getpid()
        with pytest.raises(Exception, match=r"Job .*not produced any output|has not produced|exit code"):
            bad.result(120)
    assert (tmp_path / "run.jobs").is_dir()


@pytest.mark.needs("dask")
def test_a_cluster_of_dask_loses_one_task_with_a_worker(tmp_path: Path) -> None:
    with engine("dask", wanted(tmp_path)) as executor:
        given = [executor.submit(slow, 0.5) for _ in range(4)]
        assert os.getpid() not in {future.result(60) for future in given}
        with pytest.raises(Exception, match=r"KilledWorker|Attempted to run task"):
            executor.submit(end, signal.SIGKILL).result(120)
        assert executor.submit(slow, 0.0).result(60) != os.getpid()
