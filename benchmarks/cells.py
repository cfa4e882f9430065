"""Results of a long measurement: lines of finished cells, which may run in processes, and tables made of them."""

import csv
import fcntl
import json
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run import machine

from privkit.reports.seed_intervals import over_values
from privkit.reports.tables import interval
from privkit.shared.measures import UNIT


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The finished cells; none without a file."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, *lines: dict[str, Any], show: bool = False) -> None:
    """Append lines of finished cells, also while another command appends to the same file; `show` prints them, too."""
    texts = [json.dumps(line, ensure_ascii=False) for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.writelines(f"{text}\n" for text in texts)
    if show:
        print(*texts, sep="\n", flush=True)


def write_table(path: Path, heading: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([heading, *rows])


def mean_cell(values: Sequence[float], digits: int = 3, within: tuple[float, float] = UNIT) -> str:
    """The mean over seeds as a cell of a table, with Student's 95 % interval in the range `within`. The value of one
    seed, and a value that is the same for all seeds, stand without an interval."""
    if len(set(values)) == 1:
        return f"{values[0]:.{digits}f}"
    return interval(over_values(values, 0.95, within), digits)


def today(machine_as: str = "machine") -> dict[str, object]:
    """The processor, in the field `machine_as`, and the date of a measurement."""
    return {machine_as: machine(1)["processor"], "date": datetime.now(UTC).date().isoformat()}


def run_cells(
    line: Callable[..., dict[str, Any]], cells: Iterable[tuple[Any, ...]], record: Path, workers: int
) -> None:
    """Append the result `line(*cell)` of every cell to `record`. If one fails, its error is raised after the others."""
    failure: Exception | None = None
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as processes:
        for done in as_completed([processes.submit(line, *cell) for cell in cells]):
            try:
                found = done.result()
            except Exception as error:  # a cell's own, or a worker that was killed
                failure = failure or error
            else:
                append(record, found, show=True)
    if failure is not None:
        raise failure
