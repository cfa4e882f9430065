"""A real Slurm of one node, and MPI: they compute the rows of one process, and a lost job ends nothing else."""

import getpass
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from privkit.run.engines import engine
from privkit.run.verify import examine
from tests.run.test_engines import end, slow, wanted
from tests.small import timeless

CHEAP: dict[str, Any] = {
    "dataset": "tiny_digits",
    "defense": "none",
    "attack": ["mean_image", "mid_grey"],
    "seed": [0, 1],
    "training": "batch_size=20",
    "budget": "smoke:private=40,auxiliary=80,test=40,victims=20,epochs=1",
    "threads": 1,
}
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={node} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of one node with two processors and no accounting."""
    home, node = tmp_path / "slurm", platform.node().split(".")[0]
    for folder in (home, home / "state", home / "spool"):
        folder.mkdir()
    with ExitStack() as sockets:
        free = [sockets.enter_context(socket.socket()) for _ in range(2)]
        for one in free:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in free]
    text = CONFIGURATION.format(node=node, ports=ports, user=getpass.getuser(), home=home)
    (home / "slurm.conf").write_text(text)
    (home / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    monkeypatch.setenv("SLURM_CONF", str(home / "slurm.conf"))
    daemons = []
    try:
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", node]):
            with (home / f"{command[0]}.txt").open("w") as log:
                daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
        for _ in range(60):
            states = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True)
            if states.stdout.strip() == "idle":
                break
            time.sleep(0.5)
        else:
            pytest.fail(f"Slurm did not start: {(home / 'slurmd.txt').read_text()[-1000:]} {states.stderr}")
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of one process."""
    run = run_audit(out=tmp_path_factory.mktemp("alone") / "run", **CHEAP)
    return timeless(run.folder / "results.jsonl")


@pytest.mark.slow
@pytest.mark.needs("slurmd")
@pytest.mark.usefixtures("slurm", "no_report")
def test_arrays_of_slurm_give_the_rows_of_one_process(alone: list[dict[str, Any]], tmp_path: Path) -> None:
    run = run_audit(out=tmp_path / "run", engine="submitit:time=5", **CHEAP)
    assert timeless(run.folder / "results.jsonl") == alone
    logs = sorted((tmp_path / "run.jobs").glob("*_log.out"))
    assert sum(path.read_text().count("Job completed successfully") for path in logs) == len(alone)
    assert any("_1_0_log" in path.name for path in logs), "no array had two jobs"
    assert examine(run.folder).exit_code == 0


@pytest.mark.slow
@pytest.mark.needs("slurmd")
@pytest.mark.usefixtures("slurm")
def test_a_job_of_slurm_that_is_killed_is_told_without_accounting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with engine("submitit:time=5", wanted(tmp_path / "run")) as executor:
        good, bad = executor.submit(slow, 0.0), executor.submit(end, signal.SIGKILL)
        assert good.result(120) != os.getpid()
        with pytest.raises(Exception, match=r"has not produced any output \(state: FAILED\)"):
            bad.result(120)
    assert "sacct" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.needs("mpi", "mpiexec")
def test_processes_of_mpi_give_the_rows_of_one_process(alone: list[dict[str, Any]], tmp_path: Path) -> None:
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    several = {"OMPI_MCA_rmaps_base_oversubscribe": "1"}  # three processes on two processors
    modules = ["-m", "mpi4py.futures", "-m", "privkit"]
    command = ["mpiexec", "-n", "3", sys.executable, *modules, "audit", "--engine", "mpi"]
    for name, value in CHEAP.items():
        for one in value if isinstance(value, list) else [value]:
            command += [f"--{name}", str(one)]
    command += ["--out", str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | allowed | several)
    assert ended.returncode == 0, ended.stderr
    assert timeless(tmp_path / "run" / "results.jsonl") == alone
