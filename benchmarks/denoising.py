"""Measure accurate_sl's experiments at reduced size: `python benchmarks/run.py denoising --data-root DATA`.

Each experiment `privkit/papers/accurate_sl/experiments/*_small.toml` runs seed by seed, as far as a published effect
needs it. A finished cell is one line of `privkit/papers/accurate_sl/measured.jsonl`, and run folders resume; the same
command goes on with what is missing. `python benchmarks/pages.py` then writes the verdicts. DATA holds the official
files of CIFAR-10, IMDB and Names, or samples in their format; the digits need none.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from time import process_time

from run import machine

from privkit.audit.run import run_audit
from privkit.papers import paper
from privkit.papers.accurate_sl.effects import bounds_of, needed
from privkit.papers.presets import settings_of
from privkit.settings.resolve import resolve

MEASURED = paper("accurate_sl").folder / "measured.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags.

    Attributes:
        data_root: folder of the datasets.
        experiment: names such as table_3_small, in this order; all by default.
        out: where run folders are kept.
        record_to: the file of results.
    """

    data_root: str
    experiment: tuple[str, ...] | None = None
    out: str = "privkit-runs/denoising"
    record_to: str = str(MEASURED)


def main(options: Options) -> None:
    """Run what is missing and append it."""
    record = Path(options.record_to)
    record.touch()
    paths = {path.stem: path for path in paper("accurate_sl").experiments if path.stem.endswith("_small")}
    for name in options.experiment or tuple(paths):
        config = resolve({**settings_of(paths[name]), "data_root": options.data_root})
        for seed in config.seeds:
            spec, budget = config.training, config.budget
            steps = budget.epochs * (budget.private // spec.batch_size)
            done = {
                (row["experiment"], row["defense"], row["seed"])
                for row in map(json.loads, record.open())
                if (row["steps"], row["kept"]) == (steps, spec.keep)
            }
            missing = tuple(
                defense
                for defense in config.defenses
                if (name, defense.label) in needed() and (name, defense.label, seed) not in done
            )
            if not missing:
                continue
            alone = replace(config, defenses=missing, seeds=(seed,))
            started = process_time()
            rows = run_audit(alone, out=Path(options.out) / alone.fingerprint).rows
            seconds = (process_time() - started) / len(rows)
            for row in rows:
                if row.status != "done" or row.accuracy is None or row.certificate is None:
                    raise ValueError(f"{name}, {row.defense}, seed {seed}, is {row.status}: {row.reason}")
                epsilon = row.certificate.epsilon
                line = {
                    "experiment": name,
                    "defense": row.defense,
                    "seed": seed,
                    "accuracy": round(row.accuracy.value, 6),
                    "steps": steps,
                    "kept": spec.keep,
                    "accuracy_last": round(row.task["accuracy_last"].value, 6),
                    **bounds_of(name, row.defense),
                    "epsilon_of_the_run": epsilon if isfinite(epsilon) else None,
                    "seconds": round(seconds, 1),
                    "machine": machine(1)["processor"],
                    "date": datetime.now(UTC).date().isoformat(),
                }
                with record.open("a", encoding="utf-8") as lines:
                    fcntl.flock(lines, fcntl.LOCK_EX)  # two processes may measure at once
                    lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                print(json.dumps(line, ensure_ascii=False), flush=True)
