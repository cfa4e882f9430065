"""Measure the papers' experiments at reduced size: `python benchmarks/run.py experiments --data-root DATA`.

Each experiment `privkit/papers/PAPER/experiments/*_small.toml` is run cell by cell, without the undefended baselines
that no published ordering needs. A finished cell is one line of `privkit/papers/measured.jsonl`; the same command goes
on with those that are missing, all seeds of a method before the next one. With `--further N` it runs new seeds of
both methods of every ordering that the first three leave open and that needs at most N (`further_seeds`), those that
need the fewest first.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from typing import Any

from run import machine

from privkit.papers import PAPERS, paper
from privkit.papers.further_seeds import PILOT, counted
from privkit.papers.orderings import judge, measured, read_rows
from privkit.papers.reproduce import Work, measure, methods_of, work

MEASURED = Path(__file__).resolve().parents[1] / "privkit" / "papers" / "measured.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags.

    Attributes:
        data_root: folder of the official datasets.
        experiment: names such as cutmixsl/table_2_small, in this order; all by default.
        out: where unfinished run folders are kept.
        most: cells to run; all by default.
        further: run new seeds, of orderings that need at most so many.
        claim: of these orderings, those whose claim begins like one of these; all by default.
        record_to: the file of results.
    """

    data_root: str
    experiment: tuple[str, ...] | None = None
    out: str = "privkit-runs/experiments"
    most: int | None = None
    further: int | None = None
    claim: tuple[str, ...] = ("",)
    record_to: str = str(MEASURED)


def main(options: Options) -> None:
    """Run what is missing and append it."""
    record, left = Path(options.record_to), options.most
    for one in _planned(options) if options.further is None else _further(options):
        if any(_same(one.row, row) and all(name in row for name in one.quantities) for row in read_rows(record)):
            continue
        if left == 0:
            return
        started = process_time()
        line = {
            **measure(one, Path(options.out)),
            "experiment": one.experiment,
            "seconds": round(process_time() - started, 1),
            "machine": machine(1)["processor"],
            "date": datetime.now(UTC).date().isoformat(),
        }
        with record.open("a", encoding="utf-8") as lines:
            fcntl.flock(lines, fcntl.LOCK_EX)  # two processes may measure at once
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(json.dumps(line, ensure_ascii=False), flush=True)
        left = None if left is None else left - 1


def _experiments() -> dict[str, Path]:
    return {f"{name}/{path.stem}": path for name in PAPERS for path in paper(name).experiments}


def _planned(options: Options) -> Iterator[Work]:
    """The cells of the chosen experiments."""
    experiments = _experiments()
    for name in options.experiment or [name for name in experiments if name.endswith("_small")]:
        yield from work(name, experiments[name], {"data_root": options.data_root})


def _further(options: Options) -> Iterator[Work]:
    """The cells of new seeds, seed by seed, of the orderings that need the fewest first."""
    rows, most = read_rows(Path(options.record_to)), options.further or 0
    judged = [(name, one) for name in PAPERS for one in judge(name, measured(name, rows), counted)]
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
            if experiment.endswith("_small") and (options.experiment is None or experiment in options.experiment)
            for cell in work(experiment, path, {"data_root": options.data_root, "seed": seeds}, name)
            if methods_of(name, cell) & wanted
        ]
        print(f"{name}: {one.ordering.claim}, {one.needed} new seeds", flush=True)
        alone = [replace(cell, quantities=(one.ordering.quantity,)) for cell in cells]  # others are not its to judge
        yield from sorted(alone, key=lambda cell: cell.row["seed"])


def _same(planned: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a line is of this cell."""
    return all(row.get(key, value) == value for key, value in planned.items())
