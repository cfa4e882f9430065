"""Measure accurate_sl's experiments at reduced size: `python benchmarks/run.py denoising --data-root DATA`.

Of each experiment `privkit/papers/accurate_sl/experiments/*_small.toml`, the cells (defense, attack, seed) that a
published effect needs are run one by one. A finished cell is one line of `privkit/papers/accurate_sl/measured.jsonl`;
the same command continues with the missing cells. `python benchmarks/pages.py` then writes the verdicts. DATA holds the
official files of CIFAR-10, IMDB and Names, or samples in their format; the digits need no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from time import process_time
from typing import Any

from cells import read_lines, run_cells, today

from privkit.audit.run import run_audit
from privkit.papers import paper
from privkit.papers.accurate_sl.effects import bounds_of, needed_runs
from privkit.papers.presets import preset_settings
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve

MEASURED = paper("accurate_sl").folder / "measured.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `denoising`.

    Attributes:
        data_root: folder of the datasets.
        experiment: names of experiments such as table_3_small, run in this order; all by default.
        out: folder of the runs.
        workers: number of processes, each of which runs one cell at a time; use one thread in each
            (`OMP_NUM_THREADS=1`).
        record_to: the file of results.
    """

    data_root: str
    experiment: tuple[str, ...] | None = None
    out: str = "privkit-runs/denoising"
    workers: int = 1
    record_to: str = str(MEASURED)


def main(options: Options) -> None:
    """Run the missing cells, and append a line for each."""
    record = Path(options.record_to)
    run_cells(_line, ((*cell, options.out) for cell in _missing(options, record)), record, options.workers)


def _missing(options: Options, record: Path) -> Iterator[tuple[str, AuditConfig]]:
    """Every cell that an effect needs and that has no line: the experiment, and an audit of this cell alone."""
    key = ("experiment", "defense", "seed", "steps", "kept")
    done = {tuple(row[name] for name in key) for row in read_lines(record)}
    paths = {path.stem: path for path in paper("accurate_sl").experiments if path.stem.endswith("_small")}
    for name in options.experiment or tuple(paths):
        config = resolve({**preset_settings(paths[name]), "data_root": options.data_root})
        for seed in config.seeds:
            for defense in config.defenses:
                cell = (name, defense.label, seed, _steps(config), config.training.keep)
                if (name, defense.label) in needed_runs() and cell not in done:
                    yield name, replace(config, defenses=(defense,), seeds=(seed,))


def _steps(config: AuditConfig) -> int:
    return int(config.budget.epochs * (config.budget.private // config.training.batch_size))


def _line(name: str, config: AuditConfig, out: str) -> dict[str, Any]:
    """Run one cell, and return its line."""
    started = process_time()
    (row,) = run_audit(config, out=Path(out) / config.fingerprint).rows
    if row.status != "done" or row.accuracy is None or row.certificate is None:
        raise ValueError(f"{name}, {row.defense}, seed {row.seed}, is {row.status}: {row.reason}")
    epsilon = row.certificate.epsilon
    return {
        "experiment": name,
        "defense": row.defense,
        "seed": row.seed,
        "accuracy": round(row.accuracy.value, 6),
        "steps": _steps(config),
        "kept": config.training.keep,
        "accuracy_last": round(row.task["accuracy_last"].value, 6),
        **bounds_of(name, row.defense),
        "epsilon_of_the_run": epsilon if isfinite(epsilon) else None,
        "seconds": round(process_time() - started, 1),
        **today(),
    }
