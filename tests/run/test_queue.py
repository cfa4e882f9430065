"""The run folder as a queue: many workers, random kills, and the rows of one worker alone."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from privkit.errors import RunFolderError
from privkit.files.storage import append_line, make_folder, write_bytes, write_record
from privkit.reports.schema import Row
from privkit.run import folder as folders
from privkit.run import workers
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell, plan
from privkit.run.provenance import manifest
from privkit.run.queue import Queue, work
from privkit.run.records import TRAINED, read_rows
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve

ATTACKS = ["mean_image", "mid_grey"]
WORKERS, KILLS = 8, 12


def config(seeds: int) -> AuditConfig:
    """Four cells a seed."""
    return resolve({"attack": ATTACKS, "seed": list(range(seeds))})


def row(cell: Cell) -> Row:
    """What a cell that trains nothing gives."""
    places = {"dataset": "d", "model": "m", "protocol": "sl", "partition": "iid"}
    attacked = {"auxiliary": "disjoint", "attacked": "private", "batch_size": 5}
    of = {"cell": cell.id, "defense": cell.defense.label, "attack": cell.attack.label, "seed": cell.seed}
    return Row(status="done", **of, **places, **attacked)  # type: ignore[arg-type]


def compute(folder: RunFolder, cell: Cell) -> Row:
    """Train if nobody did, as a cell does, and leave a trace of it."""
    home, log = folder.model(cell.model_id), f"{os.getpid()}"
    if not (home / TRAINED).exists():
        append_line(home / "log.txt", f"begun {log}")
        time.sleep(random.uniform(0, 0.01))
        write_record(home / TRAINED, {"model": cell.model_id})
        append_line(home / "log.txt", f"trained {log}")
    make_folder(folder.cell(cell.id))
    write_bytes(folder.cell(cell.id) / "scores.npz", cell.id.encode())
    time.sleep(random.uniform(0, 0.01))
    return row(cell)


def join(run: Path, settings: AuditConfig, compute: Callable[[RunFolder, Cell], Row] = compute) -> list[Row]:
    """One worker, from beginning to end."""
    with RunFolder(run, manifest(settings, threads=1), role="work") as folder:
        queue = Queue(folder, plan(settings), ())
        with folder.exclusive():
            queue.start(folder.finished([cell.id for cell in queue.cells], errors=True)[0])
        work(queue, lambda cell: compute(folder, cell), lambda row: None)
        queue.close()
        return queue.rows


def forked(run: Path, settings: AuditConfig) -> int:
    """A worker in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            random.seed(os.getpid())
            join(run, settings)
            code = 0
        finally:
            os._exit(code)
    return child


@pytest.mark.slow
def test_eight_workers_that_are_killed_at_random_do_each_cell_once(tmp_path: Path) -> None:
    settings, moments = config(50), random.Random(0)
    join(tmp_path / "one", settings)
    with RunFolder(tmp_path / "run", manifest(settings, threads=1)):
        running = {forked(tmp_path / "run", settings) for _ in range(WORKERS)}
        for _ in range(KILLS):
            time.sleep(moments.uniform(0.02, 0.2))
            victim = running.pop()
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            running.add(forked(tmp_path / "run", settings))
        codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in running}
    assert codes == {0}
    lines = [(tmp_path / name / "results.jsonl").read_bytes() for name in ("one", "run")]
    assert lines[0] == lines[1]
    assert len(lines[1].splitlines()) == 200
    assert (tmp_path / "one" / "verdict.json").read_bytes() == (tmp_path / "run" / "verdict.json").read_bytes()
    for home in (tmp_path / "run" / "models").iterdir():
        said = Counter(line.split()[0] for line in (home / "log.txt").read_text().splitlines())
        assert said["trained"] <= 1  # none where the kill came between the record and its trace
        assert said["begun"] <= 1 + KILLS
    assert not (tmp_path / "run" / ".workers").exists()


def test_a_cell_whose_worker_was_killed_before_its_line_is_not_done_again(tmp_path: Path) -> None:
    settings = config(1)
    cell, done = plan(settings)[0], list[str]()
    with RunFolder(tmp_path / "run", manifest(settings, threads=1)) as folder:
        queue = Queue(folder, plan(settings), ())
        stored = row(compute_and_name(folder, cell, done))
        folder.finish(stored)
        (folder.path / "results.jsonl").unlink()
        work(queue, lambda cell: row(compute_and_name(folder, cell, done)), lambda row: None)
    assert done.count(cell.id) == 1
    assert [row.cell for row in read_rows(tmp_path / "run")] == [cell.id for cell in plan(settings)]


def compute_and_name(folder: RunFolder, cell: Cell, done: list[str]) -> Cell:
    done.append(cell.id)
    compute(folder, cell)
    return cell


def test_a_line_that_a_kill_cut_off_is_mended_by_the_next_worker(tmp_path: Path) -> None:
    settings = config(1)

    def cut(folder: RunFolder, cell: Cell) -> Row:
        if cell == plan(settings)[2]:
            with folder.results.open("ab") as file:
                file.write(b'{"cell": "no')
        return compute(folder, cell)

    assert len(join(tmp_path / "run", settings, cut)) == 4
    assert len(read_rows(tmp_path / "run")) == 4


def test_cells_wait_for_a_model_that_another_worker_trains_and_for_the_controls_of_the_first_seed(
    tmp_path: Path,
) -> None:
    settings = config(2)
    cells = plan(settings)
    with (
        RunFolder(tmp_path / "run", manifest(settings, threads=1)) as one,
        RunFolder(tmp_path / "run", manifest(settings, threads=1), role="work") as two,
    ):
        queues = [Queue(folder, cells, ()) for folder in (one, two)]
        first, second = queues[0].take(), queues[1].take()
        assert (first, second) == (cells[0], cells[3])  # another model, and no attack that one begins as well
        assert first is not None
        assert second is not None
        with one.exclusive():
            assert [other.cell for other in one.others()] == [second.id]
        queues[0].finish(row(first))
        queues[1].finish(row(second))
        third = queues[0].take()
        assert third == cells[1]
        with two.exclusive():
            assert two.others()[0].model == cells[1].model_id
        assert queues[1].take() == cells[2]


def test_a_worker_of_another_host_is_gone_when_its_heart_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(1)
    with monkeypatch.context() as there:
        there.setattr(workers, "HOST", "far-away-1")
        lost = RunFolder(tmp_path / "run", manifest(settings, threads=1), role="work")
    with RunFolder(tmp_path / "run", manifest(settings, threads=1)) as folder:
        with folder.exclusive():
            lost.workers.enter()
            lost.workers.claim(plan(settings)[0].id)
            assert [(other.host, other.cell) for other in folder.others()] == [("far-away-1", plan(settings)[0].id)]
            (record,) = (tmp_path / "run" / ".workers").glob("far-away-1-*.json")
            long_ago = time.time() - workers.STALE - 5
            os.utime(record, (long_ago, long_ago))
            assert folder.others() == []
            assert lost.others() == [folder.workers.own]  # it was only slow, and is a worker again
            assert [other.host for other in folder.others()] == ["far-away-1"]
        lost.workers.leave()


def test_a_damaged_record_is_waited_for_and_its_worker_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "HEARTBEAT", 0.2)
    monkeypatch.setattr(folders, "HEARTBEAT", 0.4)
    settings = config(1)
    with (
        RunFolder(tmp_path / "run", manifest(settings, threads=1)) as one,
        RunFolder(tmp_path / "run", manifest(settings, threads=1), role="work") as two,
        two.exclusive(),
    ):
        path = next((tmp_path / "run" / ".workers").glob(f"{one.workers.own.name}.json"))
        path.write_text("{")
        assert [other.name for other in two.others()] == [one.workers.own.name]
        one.workers._over.set()  # its heart stops, but its process lives
        time.sleep(0.3)
        path.write_text("{")
        with pytest.raises(RunFolderError, match=r"is damaged.* 120 seconds after its last heartbeat"):
            two.others()


def test_two_audits_of_one_run_are_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    described = manifest(config(1), threads=1)
    with (
        RunFolder(tmp_path / "run", described),
        pytest.raises(RunFolderError, match=rf"process {os.getpid()} on .*; wait .* or help it with: privkit work"),
        RunFolder(tmp_path / "run", described),
    ):
        pass


def test_lines_stand_in_the_order_of_the_plan_in_the_end(tmp_path: Path) -> None:
    settings = config(1)
    with RunFolder(tmp_path / "run", manifest(settings, threads=1)) as folder:
        queue = Queue(folder, plan(settings), ())
        for cell in reversed(plan(settings)):
            queue.finish(compute(folder, cell))
        queue.close()
    cells = [json.loads(line)["cell"] for line in (tmp_path / "run" / "results.jsonl").open()]
    assert cells == [cell.id for cell in plan(settings)]
