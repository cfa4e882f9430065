"""Workers as jobs of a real Slurm, which the test starts for itself: one node, no munge."""

import getpass
import json
import logging
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from privkit.audit.run import plan_audit
from privkit.audit.slurm import _imported, script, submit
from privkit.errors import RunFolderError, UsageError
from tests.forked import forked

QUICK = {"defense": "none", "attack": ["mean_image", "mid_grey"], "dataset": "tiny_digits", "budget": "smoke"}
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
    """A Slurm of one node with two processors; a reason to skip where it cannot be started."""
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
            last = (home / "slurmd.txt").read_text().splitlines()[-1:]
            pytest.skip(f"needs a machine on which Slurm starts: {last or states.stderr}")
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


@pytest.mark.slow
@pytest.mark.needs("slurmd")
@pytest.mark.usefixtures("slurm")
def test_workers_of_an_array_do_a_run_and_write_its_report(tmp_path: Path) -> None:
    run = plan_audit(out=tmp_path / "run", threads=1, **QUICK)  # type: ignore[arg-type]
    printed = tmp_path / "workers.sh"
    printed.write_text(script(run, 2, None, {"time": 30}))
    tried = subprocess.run(["sbatch", "--test-only", str(printed)], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr
    jobs = submit(run, 2, "cpu", {"time": 30, "stderr_to_stdout": True})
    assert len({job.partition("_")[0] for job in jobs}) == 1
    described = subprocess.run(["scontrol", "show", "job", jobs[0]], capture_output=True, text=True).stdout
    assert "Requeue=1" in described
    for _ in range(400):
        if not subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.strip():
            break
        time.sleep(1)
    logs = "".join(path.read_text() for path in (tmp_path / "run.slurm").glob("*_log.out"))
    assert logs.count("Job completed successfully") == 2, logs
    assert len((run / "results.jsonl").read_text().splitlines()) == 2
    assert (run / "report" / "index.html").exists()
    assert json.loads((run / "verdict.json").read_text())["files"]


def test_the_script_of_an_array_stands_on_its_own(tmp_path: Path) -> None:
    run = plan_audit(out=tmp_path / "run", threads=3, **QUICK)  # type: ignore[arg-type]
    text = script(run, 8, "cuda", {"partition": "gpu", "gpus_per_node": 1, "time": 240})
    lines = text.splitlines()
    for wanted in ("array=0-7%8", "requeue", "partition=gpu", "gpus-per-node=1", "time=240", "cpus-per-task=3"):
        assert f"#SBATCH --{wanted}" in lines
    assert f"-m privkit work {run} --device cuda" in text
    assert not (tmp_path / "run.slurm").exists()
    with pytest.raises(UsageError, match=r"unknown parameter of --sbatch 'partiton' \(allowed: .*partition"):
        script(run, 8, None, {"partiton": "gpu"})
    with pytest.raises(UsageError, match="from 1 to 10000, got 0"):
        script(run, 0, None, {})
    with pytest.raises(RunFolderError, match="is no run folder"):
        script(tmp_path / "nothing", 1, None, {})


def test_the_import_leaves_the_logging_of_others_alone(tmp_path: Path) -> None:

    def imports_it_anew() -> None:
        mine = logging.StreamHandler()
        for name in [name for name in sys.modules if name.partition(".")[0] == "submitit"]:
            del sys.modules[name]
        _imported()
        print(mine in [known() for known in logging._handlerList], "SUBMITIT_LOG_LEVEL" in os.environ)  # type: ignore[attr-defined]

    assert forked(imports_it_anew, ("privkit",), tmp_path).stdout.split() == ["True", "False"]
