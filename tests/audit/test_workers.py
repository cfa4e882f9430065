"""Several workers of one audit: the same rows, refusals in a sentence, and limits on a cell."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.audit import launch, worker
from privkit.audit.run import plan_audit, run_audit
from privkit.cli import grid
from privkit.errors import PrivkitError, RunFolderError, UsageError
from privkit.run.cell_limits import limited
from privkit.run.folder import RunFolder
from privkit.run.records import read_manifest, read_rows
from privkit.settings.resolve import resolve
from tests.audit.audits import Odd, registered
from tests.small import SMALL, timeless

CHEAP: dict[str, Any] = {**SMALL, "defense": "none", "attack": ["mean_image", "mid_grey"], "seed": [0, 1]}
CHEAP["budget"] = "smoke:private=40,auxiliary=80,test=40,victims=20,epochs=1"


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A run of four cells of which none is done."""
    return plan_audit(out=tmp_path / "run", training="batch_size=20", **CHEAP)


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_planned_run_that_others_compute_has_the_rows_of_an_audit(
    planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Path] = []
    monkeypatch.setattr(worker, "build", lambda run, rows, gates: reported.append(run))
    assert read_rows(planned) == []
    assert worker.join(planned) == 4
    assert reported == [planned]
    assert worker.join(planned) == 4  # late: nothing is left
    alone = run_audit(out=tmp_path / "alone", training="batch_size=20", **CHEAP)
    assert timeless(planned / "results.jsonl") == timeless(alone.folder / "results.jsonl")


@pytest.mark.slow
def test_two_processes_give_the_rows_of_one(tmp_path: Path) -> None:
    settings = {**CHEAP, "training": "batch_size=20"}
    alone = run_audit(out=tmp_path / "alone", **settings)
    run = run_audit(out=tmp_path / "run", workers=2, **{**settings, "threads": 2})  # one thread each
    assert timeless(run.folder / "results.jsonl") == timeless(alone.folder / "results.jsonl")
    assert run.verdict == alone.verdict
    assert run.report.exists()


def test_what_no_worker_can_do_is_refused_in_a_sentence(planned: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is no run folder.*plan a run with: privkit audit"):
        worker.join(tmp_path / "nothing")
    with pytest.raises(RunFolderError, match=r"is a folder of runs; name the runs: privkit work .*/\*"):
        worker.join(tmp_path)
    manifest = read_manifest(planned)
    assert manifest is not None

    def changed(**fields: Any) -> None:
        with RunFolder(planned, manifest) as folder:
            folder.manifest = manifest.model_copy(update=fields)
            folder.save_manifest()

    changed(privkit="0.0.9")
    with pytest.raises(RunFolderError, match=r"planned by privkit 0\.0\.9, and this is .*; install that version"):
        worker.join(planned)
    changed(settings={})
    with pytest.raises(RunFolderError, match="does not record its settings"):
        worker.join(planned)
    changed(settings={**manifest.settings, "delta": 1e-3})
    with pytest.raises(RunFolderError, match="planned otherwise than this process would plan it"):
        worker.join(planned)


def test_a_worker_with_other_versions_is_refused(planned: Path) -> None:
    manifest = read_manifest(planned)
    assert manifest is not None
    with RunFolder(planned, manifest) as folder:
        with folder.exclusive():
            folder.workers.tell({"torch": "1.0", "device": "cpu"})
        with pytest.raises(
            RunFolderError, match=r"another kind of worker \(process .*torch \(1\.0 there, .* install the"
        ):
            worker.join(planned)
        with pytest.raises(RunFolderError, match="in use by another process"):
            run_audit(out=planned, training="batch_size=20", **CHEAP)
    with (
        RunFolder(planned, manifest, role="work"),
        pytest.raises(RunFolderError, match=r"--again needs .* for itself"),
    ):
        run_audit(out=planned, training="batch_size=20", again=True, **CHEAP)


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


def test_limits_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, given in (("cell_seconds", 0), ("cell_seconds", "1"), ("cell_memory", 0), ("cell_memory", "4 kB")):
        with pytest.raises(UsageError, match=key):
            resolve({key: given})
    with pytest.raises(UsageError, match=r"less than the \d+ MiB that the libraries"), limited(None, 2**20):
        pass


def test_numbers_of_workers_and_devices_that_there_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for workers in (0, -1, 5000, True):
        with pytest.raises(UsageError, match=r"from 1 to 1024, got"):
            launch.check(resolve(CHEAP), workers)
    with pytest.raises(UsageError, match=r"auto, cpu, cuda, or cuda:0"):
        worker.pick_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="sees no CUDA device"):
        run_audit(out=tmp_path / "run", workers=2, **{**CHEAP, "device": "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert launch.devices("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    with pytest.raises(UsageError, match="use cuda:0 to cuda:1"):
        worker.pick_device("cuda:2")


def test_workers_that_all_end_early_leave_a_sentence(planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They refuse what the manifest says, and the audit repeats it once."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(PrivkitError, match=r"worker 1 ended with code 1.*: 4 of 4 cells are left; the same command"):
        run_audit(out=planned, training="batch_size=20", workers=1 + 1, **{**CHEAP, "threads": 2})


def test_a_grid_is_a_run_for_each_pair_of_data_and_model(tmp_path: Path) -> None:
    axes = {"dataset": ["tiny_digits", "digits"], "model": ["vit_micro", "cnn"]}
    runs = grid.runs({**CHEAP, **axes}, tmp_path, yes=False)
    assert [(config.dataset.name, config.model.name) for config in runs.values()] == [
        (dataset, model) for dataset in axes["dataset"] for model in axes["model"]
    ]
    assert all(folder.parent == tmp_path for folder in runs)
    assert len(runs) == 4
    assert {grid.cells_of(config) for config in runs.values()} == {4}


def test_a_grid_of_a_million_cells_says_its_number_and_asks(tmp_path: Path) -> None:
    large = {**CHEAP, "seed": list(range(250_000)), "dataset": ["tiny_digits"], "model": ["vit_micro"]}
    with pytest.raises(UsageError, match=r"the grid has 1,000,000 cells in 2 runs; .*--yes") as asked:
        grid.runs({**large, "dataset": ["tiny_digits", "digits"]}, tmp_path, yes=False)
    assert "give --yes" in str(asked.value)
    assert len(grid.runs({**large, "seed": list(range(600))}, tmp_path, yes=True)) == 1
    with pytest.raises(UsageError, match="dataset is an empty list"):
        grid.runs({**CHEAP, "dataset": []}, tmp_path, yes=False)
