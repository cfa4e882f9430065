"""Several workers of one audit: the same rows whatever is killed, refusals in a sentence, and limits on a cell."""

import multiprocessing.spawn
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.audit import run as audit_run
from privkit.audit import worker
from privkit.audit.contained import OverLimit, limited
from privkit.audit.lead import WorkersEnded
from privkit.audit.run import check_workers, run_audit
from privkit.cli.sweeps import grid_runs
from privkit.errors import RunFolderError, UsageError
from privkit.reports.schema import Provenance
from privkit.run.ledger import RunLedger
from privkit.run.plan import cell_counts
from privkit.run.provenance import circumstances, manifest
from privkit.run.verify import examine
from privkit.settings.resolve import resolve
from tests.audit.audits import Notes, Odd, registered
from tests.small import SMALL, timeless

CHEAP: dict[str, Any] = {**SMALL, "defense": "none", "attack": ["mean_image", "mid_grey"], "seed": [0, 1]}
KILLS = 6
CHEAP["budget"] = "smoke:private=40,auxiliary=80,test=40,victims=20,epochs=1"


CRASH = """
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from privkit.attacks.inversion.floors import MidGrey


@dataclass(frozen=True, kw_only=True)
class Crash(MidGrey):
    name: ClassVar[str] = "crash"

    def run(self, observation, generator, session=None):
        allowed = Path(__file__).with_name("crashes.txt")
        left = int(allowed.read_text())
        if left:
            allowed.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(observation, generator)
"""
"""An attack whose process ends as if a library had crashed, as often as a file says."""


@pytest.mark.slow
def test_two_processes_give_the_rows_of_one(tmp_path: Path) -> None:
    settings = {**CHEAP, "training": "batch_size=20"}
    alone = run_audit(out=tmp_path / "alone", **settings)
    run = run_audit(out=tmp_path / "run", workers=2, **{**settings, "threads": 2})  # one thread each
    assert timeless(run.folder / "results.jsonl") == timeless(alone.folder / "results.jsonl")
    assert run.verdict == alone.verdict
    assert run.report.exists()
    assert examine(run.folder).exit_code == 0
    assert {path.name for path in run.folder.iterdir()} == {path.name for path in alone.folder.iterdir()}


@pytest.mark.slow
@pytest.mark.needs("dask")
@pytest.mark.usefixtures("no_report")
def test_a_cluster_of_dask_gives_the_rows_of_one_process(tmp_path: Path) -> None:
    settings = {**CHEAP, "training": "batch_size=20"}
    alone = run_audit(out=tmp_path / "alone", **settings)
    run = run_audit(out=tmp_path / "run", workers=2, engine="dask", **{**settings, "threads": 2})
    assert timeless(run.folder / "results.jsonl") == timeless(alone.folder / "results.jsonl")


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_jobs_of_submitit_give_the_rows_of_one_process(tmp_path: Path) -> None:
    settings = {**CHEAP, "training": "batch_size=20", "seed": 0}
    alone = run_audit(out=tmp_path / "alone", **settings)
    run = run_audit(out=tmp_path / "run", workers=1, engine="submitit:cluster=local,time=5", **settings)
    assert timeless(run.folder / "results.jsonl") == timeless(alone.folder / "results.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(("crashes", "statuses"), [(1, ["done", "done"]), (9, ["done", "error"])])
@pytest.mark.usefixtures("no_report")
def test_a_worker_that_crashes_is_replaced_and_its_cell_is_no_end_of_the_run(
    crashes: int, statuses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "crashing.py").write_text(CRASH)
    (tmp_path / "crashes.txt").write_text(str(crashes))
    given = {**CHEAP, "seed": 0, "attack": ["mean_image", "crashing:Crash"], "training": "batch_size=20", "threads": 2}
    notes = Notes()
    run = run_audit(out=tmp_path / "run", workers=2, progress=notes, **given)
    assert [row.status for row in run.rows] == statuses
    assert any("was ended by signal 9); another one goes on with it" in text for text in notes.notes)
    assert run.exit_code == (0 if crashes == 1 else 3)
    sys.modules.pop("crashing", None)


@pytest.mark.slow
def test_a_leader_that_is_killed_goes_on_from_the_ledger_by_the_same_command(tmp_path: Path) -> None:
    """kill -9 of the command and of its workers, at random moments."""
    settings, dice = {**CHEAP, "training": "batch_size=20"}, random.Random(0)
    straight = run_audit(out=tmp_path / "straight", **settings)
    words = ["--defense", "none", "--attack", "mean_image", "--attack", "mid_grey", "--seed", "0", "--seed", "1"]
    words += ["--dataset", "tiny_digits", "--threads", "2", "--workers", "2", "--budget", CHEAP["budget"]]
    words += ["--training", "batch_size=20", "--out", str(tmp_path / "run")]
    kills = 0
    while True:
        command = subprocess.Popen(
            [sys.executable, "-m", "privkit", "audit", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if kills == KILLS:
            break
        with suppress(subprocess.TimeoutExpired):
            command.wait(dice.uniform(4, 14))
        command.kill()
        command.communicate()
        kills += 1
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors.decode()
    assert timeless(tmp_path / "run" / "results.jsonl") == timeless(straight.folder / "results.jsonl")
    assert examine(tmp_path / "run").exit_code == 0
    assert not (tmp_path / "run" / ".scratch").exists()


@pytest.mark.usefixtures("no_report")
def test_a_worker_with_other_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in threads of this process, one of them with another torch."""
    asked = list[str]()

    def other(device: str, threads: int) -> Provenance:
        here = circumstances(device, threads)
        asked.append(device)
        return here if len(asked) == 1 else here.model_copy(update={"packages": here.packages | {"torch": "1.0"}})

    monkeypatch.setattr("privkit.audit.worker.circumstances", other)
    with pytest.raises(RunFolderError, match=r"a worker of .* differs .*torch \(.* there, 1\.0 here\)"):
        run_audit(out=tmp_path / "run", training="batch_size=20", engine="tests.run.test_engines:threads", **CHEAP)


def test_two_commands_on_one_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.run.ledger.PATIENCE", 0.0)
    config = resolve(CHEAP)
    with (
        RunLedger(tmp_path / "run", manifest(config, threads=1)),
        pytest.raises(RunFolderError, match=rf"in use by another process \(process {os.getpid()} on .*, since 20"),
    ):
        run_audit(config, out=tmp_path / "run")


class Endless(Odd):
    name = "endless"

    def run(self, *given: object) -> Reconstruction:
        time.sleep(60)
        raise AssertionError("nobody stopped it")


class Greedy(Odd):
    name = "greedy"

    def run(self, *given: object) -> Reconstruction:
        return torch.empty(2**31)  # type: ignore[return-value]  # 8 GiB, of which none is touched


@pytest.mark.parametrize(
    ("attack", "limit", "reason"),
    [
        (Endless, {"cell_seconds": 1}, r"^took longer than cell_seconds=1; give it more.*the same command goes on"),
        (Greedy, {"cell_memory": "6GiB"}, r"^needed more memory than cell_memory=6GiB; give it more"),
    ],
)
@pytest.mark.usefixtures("no_report", "no_controls")
def test_a_cell_above_a_limit_is_an_error_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: type, limit: dict[str, Any], reason: str
) -> None:
    registered(monkeypatch, attack)
    settings = {**CHEAP, "seed": [0], "attack": [attack.name, "mean_image"], "training": "batch_size=20"}  # type: ignore[attr-defined]
    run = run_audit(resolve({**settings, **limit}), out=tmp_path / "run")
    assert [row.status for row in run.rows] == ["error", "done"]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(run.rows[0].reason)
    assert run.exit_code == 3


@pytest.mark.parametrize("limit", [(0.01, None), (None, 2**40)])
def test_a_limit_that_is_met_inside_no_grad_leaves_gradients_on(limit: tuple[float | None, int | None]) -> None:
    """One limit of time in 300 was met while an optimizer's step put them on again; all later cells failed."""

    def met() -> None:
        torch.set_grad_enabled(False)
        torch.empty(2**46 if limit[1] else 1)
        while True:
            pass

    with pytest.raises(OverLimit), limited(*limit):
        met()
    assert torch.is_grad_enabled()


def test_limits_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, given in (("cell_seconds", 0), ("cell_seconds", "1"), ("cell_memory", 0), ("cell_memory", "4 kB")):
        with pytest.raises(UsageError, match=key):
            resolve({key: given})
    with pytest.raises(UsageError, match=r"less than the \d+ MiB that the libraries"), limited(None, 2**20):
        pass


def test_numbers_of_workers_and_devices_that_there_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for workers in (0, -1, 5000, True):
        with pytest.raises(UsageError, match=r"from 1 to 1024, got"):
            check_workers(resolve(CHEAP), workers)
    with pytest.raises(UsageError, match=r"auto, cpu, cuda, or cuda:0"):
        worker.pick_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="sees no CUDA device"):
        run_audit(out=tmp_path / "run", workers=2, **{**CHEAP, "device": "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert worker.devices("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    with pytest.raises(UsageError, match="use cuda:0 to cuda:1"):
        worker.pick_device("cuda:2")


@pytest.mark.parametrize(
    ("usable", "changes", "engine", "shared"),
    [
        (2, {}, None, (2, 1)),
        (16, {}, None, (4, 4)),
        (1, {}, None, (1, 1)),
        (16, {"seed": [0], "defense": "none", "attack": "mean_image"}, None, (1, 16)),  # one cell
        (16, {"threads": 8}, None, (1, 8)),
        (16, {}, "dask", (1, 16)),
        (16, {"attack": "tests.audit.test_escalation:Slow"}, None, (1, 16)),
    ],
)
def test_without_a_number_each_processor_gets_a_worker(
    monkeypatch: pytest.MonkeyPatch, usable: int, changes: dict[str, Any], engine: str | None, shared: tuple[int, int]
) -> None:
    monkeypatch.setattr(audit_run, "default_threads", lambda: usable)
    given = {key: value for key, value in CHEAP.items() if key != "threads"}
    config = resolve({**given, **changes})
    assert audit_run.shared_out(config, torch.device("cpu"), None, engine) == shared
    assert audit_run.shared_out(config, torch.device("cuda"), None, engine)[0] == 1
    assert audit_run.shared_out(config, torch.device("cpu"), 2, None) == (2, max(1, (config.threads or usable) // 2))


@pytest.mark.usefixtures("no_report")
def test_a_run_that_goes_on_keeps_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads of a folder's manifest, and two processors: one worker, not two of two threads."""
    monkeypatch.setattr(audit_run, "default_threads", lambda: 2)
    given = {key: value for key, value in CHEAP.items() if key != "threads"} | {"training": "batch_size=20"}
    for workers, threads in ((1, 2), (None, 2)):
        with audit_run._led(resolve(given), tmp_path, None, False, workers, None) as (leader, processes):
            assert (leader.worker.threads, processes) == (threads, 1)
    with audit_run._led(resolve(given), tmp_path / "new", None, False, None, None) as (leader, processes):
        assert (leader.worker.threads, processes) == (1, 2)


@pytest.mark.usefixtures("no_report")
def test_processes_that_cannot_start_leave_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource_tracker.ensure_running()  # by Python itself
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/bin/false")
    with pytest.raises(WorkersEnded, match=r"no worker lived until its first answer .*: 4 of 4 cells are left"):
        run_audit(out=tmp_path / "run", training="batch_size=20", workers=1 + 1, **{**CHEAP, "threads": 2})


def test_a_grid_is_a_run_for_each_pair_of_data_and_model(tmp_path: Path) -> None:
    axes = {"dataset": ["tiny_digits", "digits"], "model": ["vit_micro", "cnn"]}
    runs = grid_runs({**CHEAP, **axes}, tmp_path, yes=False)
    assert [(config.dataset.name, config.model.name) for config in runs.values()] == [
        (dataset, model) for dataset in axes["dataset"] for model in axes["model"]
    ]
    assert all(folder.parent == tmp_path for folder in runs)
    assert len(runs) == 4
    assert {cell_counts(config)[0] for config in runs.values()} == {4}


def test_a_grid_of_a_million_cells_says_its_number_and_asks(tmp_path: Path) -> None:
    large = {**CHEAP, "seed": list(range(250_000)), "dataset": ["tiny_digits"], "model": ["vit_micro"]}
    with pytest.raises(UsageError, match=r"the grid has 1,000,000 cells in 2 runs; .*--yes") as asked:
        grid_runs({**large, "dataset": ["tiny_digits", "digits"]}, tmp_path, yes=False)
    assert "give --yes" in str(asked.value)
    assert len(grid_runs({**large, "seed": list(range(600))}, tmp_path, yes=True)) == 1
    with pytest.raises(UsageError, match="dataset is an empty list"):
        grid_runs({**CHEAP, "dataset": []}, tmp_path, yes=False)
