"""The leader of a run and its workers: stand-ins for cells, in threads, that end in every way there is."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.audit.cell import planned_row
from privkit.audit.lead import LIVES, Dispatch, Leader, WorkersEnded
from privkit.audit.worker import CellWorker, Job, Task, TaskResult
from privkit.errors import UsageError
from privkit.files.sealed import sealed
from privkit.reports.schema import Row
from privkit.run.ledger import RunLedger
from privkit.run.progress import Progress
from privkit.run.provenance import manifest
from privkit.run.records import TRAINED, line, read_rows
from privkit.settings.resolve import resolve
from tests.audit.audits import Notes


def settings(seeds: int) -> dict[str, Any]:
    """Four cells per seed."""
    return {"attack": ["mean_image", "mid_grey"], "seed": list(range(seeds)), "threads": 1}


def standing_in(worker: CellWorker, task: Task) -> TaskResult:
    cell = next(cell for cell in worker.cells if cell.id == task.cell)
    trained = f"models/{cell.model_id}/{TRAINED}"
    files = {} if trained in task.names else {trained: sealed({"model": cell.model_id}).encode()}
    files[f"cells/{cell.id}/scores.npz"] = cell.id.encode()
    row = Row(**planned_row(worker.parts[cell.id], cell), status="done")
    return TaskResult(row=line(row), files=files, notes=("a note",))


def led(
    run: Path,
    seeds: int,
    compute: Callable[[CellWorker, Job, Task], TaskResult],
    workers: int = 4,
    notes: Notes | None = None,
) -> Notes:
    """A run whose cells threads compute."""
    notes, config = notes or Notes(), resolve(settings(seeds))
    with RunLedger(run, manifest(config, threads=1)) as ledger:
        worker = CellWorker(config=config, device=torch.device("cpu"), threads=1, progress=notes)
        leader = Leader(worker=worker, ledger=ledger)
        leader.open()
        with ThreadPoolExecutor(workers) as executor:
            Dispatch(leader, executor, workers, lambda job, task: compute(worker, job, task)).work()
        leader.close()
    return notes


def good(worker: CellWorker, job: Job, task: Task) -> TaskResult:
    return standing_in(worker, task)


@pytest.mark.slow
def test_64_workers_that_join_and_a_model_that_is_trained_once(tmp_path: Path) -> None:
    lock, running, trained, together = threading.Lock(), set[str](), Counter[str](), threading.Event()

    def slowly(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        with lock:
            running.add(task.cell)
            if len(running) == 64:
                together.set()
        if "-s0-" not in task.cell:  # later seeds' cells wait for the first one's, and then for each other
            assert together.wait(60)
        answer = standing_in(worker, task)
        with lock:
            running.discard(task.cell)
            trained.update(name for name in answer.files if name.endswith(TRAINED))
        return answer

    notes = led(tmp_path / "run", 50, slowly, workers=64)
    led(tmp_path / "one", 50, good, workers=1)
    assert together.is_set()
    assert set(trained.values()) == {1}
    assert len(trained) == 100
    assert notes.notes.count("a note") == 1
    for name in ("results.jsonl", "verdict.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert len(read_rows(tmp_path / "run")) == 200


def test_a_lost_worker_is_replaced_and_what_it_saved_is_kept(tmp_path: Path) -> None:
    lost, went_on = Counter[str](), list[tuple[str, ...]]()

    def dies_once(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        lost[task.cell] += 1
        if lost[task.cell] == 1 and task.cell == worker.cells[0].id:
            saved = Path(job.run, ".scratch", f"{job.token}-{task.number}", "models", worker.cells[0].model_id)
            saved.mkdir(parents=True)
            (saved / "training.ckpt").write_text("five epochs")
            raise BrokenExecutor("process 7 was ended by signal 9")
        if task.cell == worker.cells[0].id:
            went_on.append(task.names)
        return standing_in(worker, task)

    notes = led(tmp_path / "run", 1, dies_once)
    assert any("lost its worker (BrokenExecutor: process 7 was ended by signal 9)" in text for text in notes.notes)
    assert [name.rpartition("/")[2] for name in went_on[0]] == ["training.ckpt"]
    assert [row.status for row in read_rows(tmp_path / "run")] == ["done"] * 4
    assert not (tmp_path / "run" / ".scratch").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_that_cells_share_is_trained_by_a_task_of_its_own(fails: bool, tmp_path: Path) -> None:
    """So a second worker attacks it as soon as it is trained; a failure is left to the cell's own computation."""
    begun = list[tuple[str, bool, bool]]()

    def watched(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        model = next(cell.model_id for cell in worker.cells if cell.id == task.cell)
        begun.append((model, task.trains, any(name.endswith(TRAINED) for name in task.names)))
        answer = standing_in(worker, task)
        return TaskResult() if task.trains and fails else answer

    led(tmp_path / "run", 1, watched, workers=2)
    assert [row.status for row in read_rows(tmp_path / "run")] == ["done"] * 4
    for model in {model for model, _, _ in begun}:
        assert [trains for name, trains, _ in begun if name == model] == [True, False, False]
        assert [there for name, _, there in begun if name == model] == [False, not fails, True]
    begun.clear()
    led(tmp_path / "one", 1, watched, workers=1)
    assert [trains for _, trains, _ in begun] == [False] * 4


def test_the_cells_in_work_are_named_as_long_as_they_are_few(tmp_path: Path) -> None:
    shown = list[str]()

    class Shown(Notes):
        def stage(self, name: str, unit: str = "epochs") -> None:
            shown.append(f"{name} ({unit})")

        def step(self, done: int, total: int, value: float | None = None) -> None:
            shown.append(f"{done} of {total}")

    led(tmp_path / "run", 1, good, workers=1, notes=Shown())
    assert shown[:4] == ["none / mean_image, seed 0 (cells)", "0 of 4", "none / mid_grey, seed 0 (cells)", "1 of 4"]


def test_a_cell_that_loses_all_its_workers_is_an_error(tmp_path: Path) -> None:
    starts = Counter[str]()

    def one_dies(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        starts[task.cell] += 1
        if task.cell == worker.cells[1].id:
            raise BrokenExecutor("process 7 was ended by signal 11")
        return standing_in(worker, task)

    led(tmp_path / "run", 1, one_dies)
    rows = read_rows(tmp_path / "run")
    assert [row.status for row in rows] == ["done", "error", "done", "done"]
    assert rows[1].reason.startswith(f"it lost {LIVES} workers (BrokenExecutor: process 7 was ended by signal 11)")
    assert starts[rows[1].cell] == LIVES


def test_no_worker_that_lives_is_no_cells_fault(tmp_path: Path) -> None:
    def dies(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        raise BrokenExecutor("process 7 ended with code 1")

    with pytest.raises(WorkersEnded, match=r"\(BrokenExecutor: process 7 ended with code 1\): 8 of 8 cells") as told:
        led(tmp_path / "run", 2, dies)
    assert told.value.exit_code == 3
    assert read_rows(tmp_path / "run") == []


def test_an_error_of_the_run_ends_it_and_keeps_what_is_finished(tmp_path: Path) -> None:
    def refuses(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        if task.cell == worker.cells[2].id:
            return TaskResult(error=UsageError("no data"))
        return standing_in(worker, task)

    with pytest.raises(UsageError, match="no data"):
        led(tmp_path / "run", 1, refuses, workers=1)
    assert len(read_rows(tmp_path / "run")) == 2


def test_a_worker_that_does_not_see_the_folder_is_sent_the_files(tmp_path: Path) -> None:
    sent = []

    def elsewhere(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        if task.files is None and task.names:
            return TaskResult(unseen=True)
        sent.append(task.files)
        return standing_in(worker, task)

    led(tmp_path / "run", 1, elsewhere, workers=1)
    assert [row.status for row in read_rows(tmp_path / "run")] == ["done"] * 4
    assert sent[0] is None
    assert [name.rpartition("/")[2] for name in sent[1] or ()] == [TRAINED]


@pytest.mark.parametrize("row", ["", "{}", '{"cell": "another"}'])
def test_a_row_that_is_not_sealed_counts_as_a_lost_worker(row: str, tmp_path: Path) -> None:
    wrong = Counter[str]()

    def once(worker: CellWorker, job: Job, task: Task) -> TaskResult:
        wrong[task.cell] += 1
        return TaskResult(row=row) if wrong[task.cell] == 1 else standing_in(worker, task)

    led(tmp_path / "run", 1, once)
    assert [row.status for row in read_rows(tmp_path / "run")] == ["done"] * 4


def test_an_executor_that_takes_no_task_is_a_lost_worker(tmp_path: Path) -> None:
    class Full(Executor):
        def submit(self, *given: object, **named: object) -> Any:
            raise RuntimeError("cannot schedule new futures after shutdown")

    config = resolve(settings(1))
    with RunLedger(tmp_path / "run", manifest(config, threads=1)) as ledger:
        worker = CellWorker(config=config, device=torch.device("cpu"), threads=1, progress=Progress())
        leader = Leader(worker=worker, ledger=ledger)
        leader.open()
        with pytest.raises(WorkersEnded, match="cannot schedule new futures"):
            Dispatch(leader, Full(), 2).work()
