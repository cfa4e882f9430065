"""The run folder as a queue: its overhead a cell, and what a second worker gains.

    python benchmarks/run.py workers
    python benchmarks/run.py workers --part scaling

Cells are stand-ins: trivial ones that store a row, or ones that multiply matrices for some seconds on one thread.
Workers are forks of one process, so the libraries load once; `privkit work` takes some seconds for that.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal

import torch

from privkit.files.storage import make_folder, write_record
from privkit.reports.schema import Row
from privkit.run.folder import RunFolder
from privkit.run.plan import Cell, plan
from privkit.run.provenance import manifest
from privkit.run.queue import Queue, work
from privkit.run.records import TRAINED
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags: which part, trivial cells, long cells, and seconds of a long one."""

    part: Literal["all", "overhead", "scaling"] = "all"
    trivial: int = 200
    long: int = 8
    seconds: float = 5.0


def settings(cells: int) -> AuditConfig:
    """A run of so many cells, two a seed with models of their own."""
    return resolve({"attack": "mean_image", "seed": list(range(cells // 2))})


def row(folder: RunFolder, cell: Cell) -> Row:
    """What a stand-in gives: a trained model and a row."""
    make_folder(folder.cell(cell.id))
    write_record(folder.model(cell.model_id) / TRAINED, {"model": cell.model_id})
    places = {"dataset": "d", "model": "m", "protocol": "sl", "partition": "iid"}
    attacked = {"auxiliary": "disjoint", "attacked": "private", "batch_size": 5}
    of = {"cell": cell.id, "defense": cell.defense.label, "attack": cell.attack.label, "seed": cell.seed}
    return Row(status="done", **of, **places, **attacked)  # type: ignore[arg-type]


def multiply(steps: int) -> None:
    """Work for one thread, as many steps in each cell, however busy the machine is."""
    x = torch.rand(256, 256)
    for _ in range(steps):
        x = (x @ x).softmax(1)


def spent(config: AuditConfig, workers: int, load: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock, and CPU seconds of all workers together without the load."""
    with tempfile.TemporaryDirectory() as home:
        run, start, children = Path(home) / "run", perf_counter(), []
        with RunFolder(run, manifest(config, threads=1)) as folder:
            for _ in range(workers):
                reader, writer = os.pipe()
                if os.fork() == 0:
                    own = process_time()
                    loaded = 0.0

                    def compute(cell: Cell, folder: RunFolder) -> Row:
                        nonlocal loaded
                        began = process_time()
                        load()
                        loaded += process_time() - began
                        return row(folder, cell)

                    with RunFolder(run, manifest(config, threads=1), role="work") as joined:
                        queue = Queue(joined, plan(config), ())
                        work(queue, lambda cell, at=joined: compute(cell, at), lambda row: None)  # type: ignore[misc]
                    os.write(writer, f"{process_time() - own - loaded}".encode())
                    os._exit(0)
                os.close(writer)
                children.append(reader)
            cpu = sum(float(os.read(reader, 100)) for reader in children)
            for _ in range(workers):
                os.wait()
            assert len(folder.finished([cell.id for cell in plan(config)])[0]) == len(plan(config))
        return perf_counter() - start, cpu


def main(options: Options) -> None:
    """Print seconds a cell."""
    torch.set_num_threads(1)
    if options.part in ("all", "overhead"):
        for workers in (1, 2):
            wall, cpu = spent(settings(options.trivial), workers, lambda: None)
            count = options.trivial
            print(f"{workers} workers, {count} trivial cells: {wall / count:.4f} s, {cpu / count:.4f} CPU s a cell")
    if options.part in ("all", "scaling"):
        start = process_time()
        multiply(200)
        steps = round(200 * options.seconds / (process_time() - start))
        walls = [spent(settings(options.long), workers, lambda: multiply(steps))[0] for workers in (1, 2)]
        of = f"{options.long} cells of {options.seconds:g} s"
        print(f"{of}: {walls[0]:.1f} s by 1 worker, {walls[1]:.1f} s by 2, factor {walls[0] / walls[1]:.2f}")
