"""Measure the papers' experiments at reduced size: `python benchmarks/run.py experiments --data-root DATA`.

Each experiment `privkit/papers/PAPER/experiments/*_small.toml` is run cell by cell, without the undefended baselines
that no published ordering needs. A finished cell is one line of `privkit/papers/measured.jsonl`; the same command goes
on with those that are missing, all seeds of a method before the next one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from run import machine

from privkit.papers import PAPERS, paper
from privkit.papers.orderings import read_rows
from privkit.papers.reproduce import measure, work

MEASURED = Path(__file__).resolve().parents[1] / "privkit" / "papers" / "measured.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags.

    Attributes:
        data_root: folder of the official datasets.
        experiment: names such as cutmixsl/table_2_small, in this order; all by default.
        out: where unfinished run folders are kept.
        most: cells to run; all by default.
        record_to: the file of results.
    """

    data_root: str
    experiment: tuple[str, ...] | None = None
    out: str = "privkit-runs/experiments"
    most: int | None = None
    record_to: str = str(MEASURED)


def main(options: Options) -> None:
    """Run what is missing and append it."""
    record = Path(options.record_to)
    experiments = {f"{name}/{path.stem}": path for name in PAPERS for path in paper(name).experiments}
    chosen = options.experiment or [name for name in experiments if name.endswith("_small")]
    left = options.most
    for name in chosen:
        for one in work(name, experiments[name], {"data_root": options.data_root}):
            if any(_same(one.row, row) for row in read_rows(record)):
                continue
            if left == 0:
                return
            started = perf_counter()
            line = {
                **measure(one, Path(options.out)),
                "experiment": one.experiment,
                "seconds": round(perf_counter() - started, 1),
                "machine": machine(1)["processor"],
                "date": datetime.now(UTC).date().isoformat(),
            }
            with record.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            print(json.dumps(line, ensure_ascii=False), flush=True)
            left = None if left is None else left - 1


def _same(planned: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a line is of this cell."""
    return all(row.get(key, value) == value for key, value in planned.items())
