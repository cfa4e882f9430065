"""Measure the papers' experiments at reduced size: `python benchmarks/run.py experiments --data-root DATA`.

Each experiment `privkit/papers/PAPER/experiments/*_small.toml` is run cell by cell, without the undefended baselines
that no published ordering needs. A finished cell is one line of `privkit/papers/measured.jsonl`; the same command goes
on with those that are missing, all seeds of a method before the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from run import machine

from privkit.audit.run import run_audit
from privkit.config import AuditConfig
from privkit.papers import PAPERS, paper
from privkit.papers.orderings import QUANTITIES, read_rows, wanted, without_protocol
from privkit.settings import read_toml, resolve

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


@dataclass(frozen=True, kw_only=True)
class Work:
    """One cell that a published ordering needs.

    Attributes:
        experiment: its configuration, such as cutmixsl/table_2_small.
        config: an audit of this cell alone.
        row: what the result will say of itself.
        quantities: what is recorded.
    """

    experiment: str
    config: AuditConfig
    row: dict[str, Any]
    quantities: tuple[str, ...]


def work(experiment: str, path: Path, data_root: str) -> Iterator[Work]:
    """The cells of an experiment that some ordering of its paper needs, method by method."""
    for part in resolve({**read_toml(path), "data_root": data_root}).parts:
        for defense in part.defenses:
            for attack in part.attacks:
                for seed in part.seeds:
                    row = {
                        "defense": without_protocol(defense.label),
                        "attack": attack.label,
                        "protocol": part.protocol.label,
                        "dataset": part.dataset.label,
                        "model": part.model.label,
                        "partition": part.partition.label,
                        "auxiliary": part.auxiliary,
                        "seed": seed,
                    }
                    if quantities := wanted(experiment.partition("/")[0], row):
                        alone = replace(part, defenses=(defense,), attacks=(attack,), seeds=(seed,), also=())
                        yield Work(experiment=experiment, config=alone, row=row, quantities=quantities)


def measure(one: Work, out: Path) -> dict[str, Any]:
    """Run a cell and say what it gave, on which machine and when."""
    started = perf_counter()
    run = run_audit(one.config, out=out / one.config.fingerprint)
    (row,) = run.rows
    if row.status != "done":
        raise ValueError(f"{row.cell} is {row.status}: {row.reason}")
    return {
        **one.row,
        **{name: round(QUANTITIES[name](row), 6) for name in one.quantities},
        "experiment": one.experiment,
        "seconds": round(perf_counter() - started, 1),
        "machine": machine(1)["processor"],
        "date": datetime.now(UTC).date().isoformat(),
    }


def main(options: Options) -> None:
    """Run what is missing and append it."""
    record = Path(options.record_to)
    experiments = {f"{name}/{path.stem}": path for name in PAPERS for path in paper(name).experiments}
    chosen = options.experiment or [name for name in experiments if name.endswith("_small")]
    left = options.most
    for name in chosen:
        for one in work(name, experiments[name], options.data_root):
            if any(_same(one.row, row) for row in read_rows(record)):
                continue
            if left == 0:
                return
            line = measure(one, Path(options.out))
            with record.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
            print(json.dumps(line, ensure_ascii=False), flush=True)
            left = None if left is None else left - 1


def _same(planned: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether a line is of this cell."""
    return all(row.get(key, value) == value for key, value in planned.items())
