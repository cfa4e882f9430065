"""Measure a run that worker processes compute: the leader's overhead per result, and the gain of a second process.

    python benchmarks/run.py workers
    python benchmarks/run.py workers --part scaling

The computations of the run's cells are replaced, either by trivial ones that return a result at once, or by matrix
products of some seconds on one thread. The overhead is the time in which the command itself plans and assigns work, and
checks, stores and judges results.
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
    """Command-line flags: the part, numbers of trivial cells, number of long cells, and seconds of a long cell."""

    part: Literal["all", "overhead", "scaling"] = "all"
    trivial: tuple[int, ...] = (360, 1_200, 10_000)
    long: int = 8
    seconds: float = 5.0


class Here(Executor):
    """Executor that runs each task at once, in the same process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Run the task, and return its finished future."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **named))
        return future


def settings(cells: int) -> AuditConfig:
    """A run of this number of cells: two per seed, each with its own model."""
    return resolve({"attack": "mean_image", "seed": list(range(cells // 2))})


def rows(worker: CellWorker) -> dict[str, str]:
    """Cell's id -> its row of results as a sealed line, made before the time is measured."""
    return {
        cell.id: line(Row(**planned_row(worker.parts[cell.id], cell), status="done", provenance=worker.here))
        for cell in worker.cells
    }


def trivial(known: dict[str, str], job: Job, task: Task) -> TaskResult:
    """Return the prepared row of the task's cell."""
    return TaskResult(row=known[task.cell])


def long(known: dict[str, str], steps: int, job: Job, task: Task) -> TaskResult:
    """Multiply matrices on one thread for a fixed number of steps, and return the prepared row."""
    torch.set_num_threads(1)
    multiply(steps)
    return TaskResult(row=known[task.cell])


def multiply(steps: int) -> None:
    """Run this number of matrix products."""
    x = torch.rand(256, 256)
    for _ in range(steps):
        x = (x @ x).softmax(1)


def spent(config: AuditConfig, executor: Executor, ahead: int, compute: Callable[[dict[str, str]], Compute]) -> str:
    """Wall time and the command's CPU time per cell, as text, from the plan to the last line."""
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
    """Print the overhead per cell, and the gain of a second process."""
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
                future.result()  # load the libraries before the time is measured
            start = perf_counter()
            spent(settings(options.long), executor, workers, lambda known: partial(long, known, steps))
            walls.append(perf_counter() - start)
            executor.shutdown()
        of = f"{options.long} cells of {options.seconds:g} s"
        print(f"{of}: {walls[0]:.1f} s by 1 worker, {walls[1]:.1f} s by 2, factor {walls[0] / walls[1]:.2f}")
