"""Measure the papers' experiments at reduced size: `python benchmarks/run.py experiments --data-root DATA`.

Each experiment `privkit/papers/PAPER/experiments/*_small.toml` is run cell by cell (defense, attack, seed). An
undefended baseline runs only if a published ordering of methods needs it. A finished cell is one line of
`privkit/papers/measured.jsonl`; the same command continues with the missing cells, all seeds of a method before the
next method. With `--size medium`, the files are `*_medium.toml` and `medium.jsonl`, for a GPU.

If the first three seeds do not decide which of two methods is better, `--further N` runs new seeds of both methods,
provided that at most N seeds are needed (`further_seeds`); orderings that need the fewest seeds come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import torch
from cells import run_cells, today

from privkit.papers import PAPERS, paper
from privkit.papers.further_seeds import PILOT, judged_differences
from privkit.papers.orderings import ROWS_OF, RunSize, audit_rows, measured, ordering_verdicts
from privkit.papers.reproduce import Work, measure_cell, methods_of, work

FOLDER = Path(__file__).resolve().parents[1] / "privkit" / "papers"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `experiments`.

    Attributes:
        data_root: folder of the official datasets.
        experiment: names of experiments such as cutmixsl/table_2_small, run in this order; all by default.
        out: folder of unfinished runs.
        most: largest number of cells to run; all by default.
        further: run new seeds for the undecided orderings that need at most this number of seeds.
        claim: with `further`, only orderings whose claim begins with one of these texts; all by default.
        size: "small" takes minutes per cell on one CPU core; "medium" uses the paper's network on a GPU.
        workers: number of processes, each of which runs one cell at a time.
        record_to: the file of results; by default the file of the chosen size.
    """

    data_root: str
    experiment: tuple[str, ...] | None = None
    out: str = "privkit-runs/experiments"
    most: int | None = None
    further: int | None = None
    claim: tuple[str, ...] = ("",)
    size: RunSize = "small"
    workers: int = 1
    record_to: str | None = None

    @property
    def record(self) -> Path:
        """The file of results."""
        return Path(self.record_to) if self.record_to else FOLDER / ROWS_OF[self.size]


def main(options: Options) -> None:
    """Run the missing cells, and append a line for each."""
    record = options.record
    record.touch()
    cells = _planned(options) if options.further is None else _further(options)
    chosen = islice(_missing(cells, record), options.most)
    run_cells(_line, ((one, Path(options.out)) for one in chosen), record, options.workers)


def _missing(cells: Iterable[Work], record: Path) -> Iterator[Work]:
    rows = audit_rows(record)
    for one in cells:
        if not any(_same(one.row, row) and all(name in row for name in one.quantities) for row in rows):
            rows.append({**one.row, **dict.fromkeys(one.quantities)})  # experiments share cells
            yield one


def _line(one: Work, out: Path) -> dict[str, Any]:
    """Run one cell, and return its line."""
    started = process_time()
    return {
        **measure_cell(one, out),
        "experiment": one.experiment,
        "seconds": round(process_time() - started, 1),
        **today(),
        **({"machine": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def _experiments() -> dict[str, Path]:
    return {f"{name}/{path.stem}": path for name in PAPERS for path in paper(name).experiments}


def _planned(options: Options) -> Iterator[Work]:
    """The cells of the chosen experiments."""
    experiments = _experiments()
    for name in options.experiment or [name for name in experiments if name.endswith(f"_{options.size}")]:
        yield from work(name, experiments[name], {"data_root": options.data_root})


def _further(options: Options) -> Iterator[Work]:
    """The cells of new seeds for undecided orderings, seed by seed; orderings that need the fewest seeds come first."""
    rows, most = audit_rows(options.record), options.further or 0
    judged = [
        (name, one) for name in PAPERS for one in ordering_verdicts(name, measured(name, rows), judged_differences)
    ]
    open_ones = [
        (name, one)
        for name, one in judged
        if one.needed and one.needed <= most and one.verdict != "at the floor" and not one.anew
        if one.ordering.claim.startswith(options.claim)
    ]
    for name, one in sorted(open_ones, key=lambda each: each[1].needed or 0):
        wanted = {(method, one.ordering.quantity) for method in (one.ordering.better, one.ordering.worse)}
        seeds = [len(PILOT) + number for number in range(one.needed or 0)]
        cells = [
            cell
            for experiment, path in _experiments().items()
            if experiment.endswith(f"_{options.size}")
            and (options.experiment is None or experiment in options.experiment)
            for cell in work(experiment, path, {"data_root": options.data_root, "seed": seeds}, name)
            if methods_of(name, cell) & wanted
        ]
        print(f"{name}: {one.ordering.claim}, {one.needed} new seeds", flush=True)
        alone = [replace(cell, quantities=(one.ordering.quantity,)) for cell in cells]  # for this ordering only
        yield from sorted(alone, key=lambda cell: cell.row["seed"])


def _same(planned: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a line of results belongs to the planned cell."""
    return all(row.get(key, value) == value for key, value in planned.items())
