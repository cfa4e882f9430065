"""Run the cells (single trainings with an attack) of a long measurement in processes, and record each as it ends."""

import fcntl
import json
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any


def run_cells(
    line: Callable[..., dict[str, Any]], cells: Iterable[tuple[Any, ...]], record: Path, workers: int
) -> None:
    """Append the result `line(*cell)` of every cell to `record`. If one fails, its error is raised after the others."""
    failure: Exception | None = None
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as processes:
        for done in as_completed([processes.submit(line, *cell) for cell in cells]):
            try:
                text = json.dumps(done.result(), ensure_ascii=False)
            except Exception as error:  # raised by the cell, or its process was killed
                failure = failure or error
                continue
            with record.open("a", encoding="utf-8") as lines:
                fcntl.flock(lines, fcntl.LOCK_EX)  # two commands may measure at once
                lines.write(f"{text}\n")
            print(text, flush=True)
    if failure is not None:
        raise failure
