"""Measure how well attacks reconstruct images: error, structural similarity, and the share of identified images.

    python benchmarks/run.py recovered --data-root DIR --data cifar10 faces=folder:path=DIR

Each cell (one measurement) has one data set, model, defense, attack and seed. A finished cell is a line of
`benchmarks/results/inversion/recovered.jsonl`; the same command continues with the missing cells. All attacks on one
model run in one audit, so that the model is trained once. Control experiments are left out; `privkit audit` runs them,
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from audits import defended, timed_rows
from cells import append, read_lines
from run import machine, titled

from privkit.reports.schema import Row
from privkit.settings.config import AuditConfig

LINES = Path(__file__).resolve().parent / "results" / "inversion" / "recovered.jsonl"
MEASURES = ("mse", "ssim", "identified", "f_sim", "lpips")
_Cell = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `recovered`.

    Attributes:
        data: data sets; write TITLE=DATASET if the name contains a path, such as faces=folder:path=DIR.
        data_root: folder of the official data sets.
        model: the models, with their cuts.
        defense: the defenses, with options.
        attack: the attacks, with options.
        features: networks that compare guesses with originals; they take minutes per cell.
        seeds: the seeds to measure.
        budget: budget of the audits.
        out: folder of unfinished runs.
    """

    data: tuple[str, ...]
    data_root: str | None = None
    model: tuple[str, ...] = ("resnet20:cut=stage1", "resnet20:cut=stage2", "resnet20:cut=stage3", "resnet20:cut=pool")
    defense: tuple[str, ...] = ("none",)
    attack: tuple[str, ...] = ("black_box",)
    features: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    budget: str = "quick:victims=1000"
    out: str = "privkit-runs/recovered"


def audits(options: Options) -> Iterator[tuple[list[_Cell], AuditConfig]]:
    """The missing cells of one model, and their audit, which leaves out the undefended twin."""
    lines = read_lines(LINES)
    had = [{name: one[name] for name in ("data", "model", "defense", "attack", "seed", "budget")} for one in lines]
    for seed, data, model, defense in product(options.seeds, options.data, options.model, options.defense):
        title, dataset = titled(data)
        of = {"data": title, "model": model, "defense": defense}
        cells = [of | {"attack": attack, "seed": seed, "budget": options.budget} for attack in options.attack]
        if missing := [cell for cell in cells if cell not in had]:
            asked = {"dataset": dataset, "model": model, "defense": defense, "budget": options.budget, "threads": 1}
            asked |= {"attack": [cell["attack"] for cell in missing], "features": options.features}
            root = {} if options.data_root is None else {"data_root": options.data_root}
            yield missing, defended(asked | root, seed)


def line(row: Row) -> _Cell:
    """The recorded fields of an audit's row."""
    if row.status != "done":
        return {"status": row.status, "reason": row.reason}
    metrics, floor = row.recovered["unaligned"], row.floors["mean_image"]["unaligned"]
    assert row.accuracy is not None
    found: _Cell = {"status": row.status, "accuracy": round(row.accuracy.value, 4)}
    found |= {name: round(metrics[name].value, 6) for name in MEASURES if name in metrics}
    found |= {f"floor_{name}": round(floor[name].value, 6) for name in MEASURES if name in floor}
    found |= {name: row.counts[name] for name in ("private", "auxiliary", "victims")}
    return found | {"queries": row.queries}


def main(options: Options) -> None:
    """Run the missing cells, and append their lines."""
    for cells, config in audits(options):
        timed = timed_rows(config, Path(options.out) / config.fingerprint)
        for cell, (row, seconds) in zip(cells, timed, strict=True):
            where = machine(1)
            found = cell | line(row) | {"cpu_seconds": round(seconds, 1)}
            found |= {key: where[key] for key in ("commit", "date", "processor", "torch")}
            append(LINES, found)
            shown = (*cell.values(), *(found.get(name) for name in (*MEASURES, "reason", "cpu_seconds")))
            print(*shown, flush=True)
