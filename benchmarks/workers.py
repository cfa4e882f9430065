"""Measure a run that worker processes compute: the leader's overhead per result, and the gain of a second process.

    python benchmarks/run.py workers
    python benchmarks/run.py workers --part scaling

The computations are replaced: by trivial ones that return a result at once, or by matrix products of some seconds on
one thread. The overhead is the time in which the command itself plans, assigns work, checks and stores results, and
judges them.
"""

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

import torch

from privkit.audit.cell import planned_row
from privkit.audit.lead import Dispatch, Leader
from privkit.audit.worker import CellWorker, Job, Task, TaskResult
from privkit.reports.schema import Row
from privkit.run.engines import Processes
from privkit.run.ledger import RunLedger
from privkit.run.progress import Progress
from privkit.run.provenance import manifest
from privkit.run.records import line
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve

Compute = Callable[[Job, Task], TaskResult]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags: which part, numbers of trivial cells, long cells, and seconds of a long one."""

    part: Literal["all", "overhead", "scaling"] = "all"
    trivial: tuple[int, ...] = (360, 1_200, 10_000)
    long: int = 8
    seconds: float = 5.0


class Here(Executor):
    """Does each task as it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Do it."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **named))
        return future


def settings(cells: int) -> AuditConfig:
    """A run of so many cells, two a seed with models of their own."""
    return resolve({"attack": "mean_image", "seed": list(range(cells // 2))})


def rows(worker: CellWorker) -> dict[str, str]:
    """The sealed row of each cell, made before the clock runs."""
    return {
        cell.id: line(Row(**planned_row(worker.parts[cell.id], cell), status="done", provenance=worker.here))
        for cell in worker.cells
    }


def trivial(known: dict[str, str], job: Job, task: Task) -> TaskResult:
    """A row that is there."""
    return TaskResult(row=known[task.cell])


def long(known: dict[str, str], steps: int, job: Job, task: Task) -> TaskResult:
    """Work for one thread, as many steps in each cell, however busy the machine is."""
    torch.set_num_threads(1)
    multiply(steps)
    return TaskResult(row=known[task.cell])


def multiply(steps: int) -> None:
    """Multiply matrices."""
    x = torch.rand(256, 256)
    for _ in range(steps):
        x = (x @ x).softmax(1)


def spent(config: AuditConfig, executor: Executor, ahead: int, compute: Callable[[dict[str, str]], Compute]) -> str:
    """Seconds a cell by the clock and of the command's CPU, from the plan to the last line."""
    with tempfile.TemporaryDirectory() as home, RunLedger(Path(home) / "run", manifest(config, threads=1)) as ledger:
        worker = CellWorker(config=config, device=torch.device("cpu"), threads=1, progress=Progress())
        leader, task = Leader(worker=worker, ledger=ledger), compute(rows(worker))
        start, cpu = perf_counter(), process_time()
        leader.open()
        Dispatch(leader, executor, ahead, task).work()
        leader.close()
        wall, cpu = perf_counter() - start, process_time() - cpu
        assert len(leader.rows) == len(worker.cells)
        return f"{1000 * wall / len(worker.cells):.2f} ms, {1000 * cpu / len(worker.cells):.2f} ms of CPU a cell"


def main(options: Options) -> None:
    """Print times a cell."""
    if options.part in ("all", "overhead"):
        for count in options.trivial:
            told = spent(settings(count), Here(), 64, lambda known: partial(trivial, known))
            print(f"{count} trivial cells: {told}, on {os.cpu_count()} cores")
    if options.part in ("all", "scaling"):
        torch.set_num_threads(1)
        start = process_time()
        multiply(200)
        steps, walls = round(200 * options.seconds / (process_time() - start)), []
        for workers in (1, 2):
            executor = Processes(["cpu"] * workers)
            for future in [executor.submit(multiply, 1) for _ in range(workers)]:
                future.result()  # the libraries load once
            start = perf_counter()
            spent(settings(options.long), executor, workers, lambda known: partial(long, known, steps))
            walls.append(perf_counter() - start)
            executor.shutdown()
        of = f"{options.long} cells of {options.seconds:g} s"
        print(f"{of}: {walls[0]:.1f} s by 1 worker, {walls[1]:.1f} s by 2, factor {walls[0] / walls[1]:.2f}")
