"""Table III of patch shuffling at reduced size: accuracy, AUC and reconstruction on Criteo behind a trained DIFM.

    python benchmarks/run.py difm --data-root ROOT

ROOT holds Criteo's train.txt in the official format. The experiment is table_3_small of the paper patch_shuffling. A
finished result is a line of results/tables/table_3.jsonl; the same command continues with the missing results, all
defenses of a seed before the next seed. At the end it writes results/tables/table_3.csv.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cells import append, mean_cell, read_lines, today, write_table

from privkit.audit.run import run_audit
from privkit.papers import paper
from privkit.papers.presets import preset_settings
from privkit.reports.schema import Row
from privkit.settings.resolve import resolve

RESULTS = Path(__file__).parent / "results" / "tables"
EXPERIMENT = paper("patch_shuffling").folder / "experiments" / "table_3_small.toml"
MEASURES = ("accuracy", "auc", "dense MSE", "categories")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `difm`.

    Attributes:
        data_root: folder that holds train.txt.
        out: folder of the runs.
        record_to: the file of results.
    """

    data_root: str
    out: str = "privkit-runs/difm"
    record_to: str = str(RESULTS / "table_3.jsonl")


def measured(row: Row) -> dict[str, Any]:
    """The quantities of Table III for a cell's result, and those of guesses without smashed data."""
    if row.accuracy is None or row.status != "done":
        raise ValueError(f"{row.defense} under {row.attack} is {row.status}: {row.reason}")
    found, floor = row.recovered["unaligned"], row.floors["column_mean"]["unaligned"]
    values = {
        "accuracy": row.accuracy.value,
        "auc": row.task["auc"].value if "auc" in row.task else None,
        "dense MSE": found["dense_mse"].value,
        "categories": found["categories"].value,
        "dense MSE of the column mean": floor["dense_mse"].value,
        "categories of the column mean": floor["categories"].value,
    }
    return {name: None if value is None else round(value, 6) for name, value in values.items()}


def main(options: Options) -> None:
    """Run the missing cells, append a line for each, and write the table."""
    record = Path(options.record_to)
    config = resolve({**preset_settings(EXPERIMENT), "data_root": options.data_root, "threads": 1})
    for seed in config.seeds:
        for defense in config.defenses:
            done = {(row["defense"], row["attack"], row["seed"]) for row in read_lines(record)}
            missing = tuple(one for one in config.attacks if (defense.label, one.label, seed) not in done)
            if not missing:
                continue
            alone = replace(config, defenses=(defense,), attacks=missing, seeds=(seed,))
            for row in run_audit(alone, out=Path(options.out) / alone.fingerprint).rows:
                if row.defense != defense.label:
                    continue
                checks = {check.name: check.passed for check in row.checks if check.decisive}
                key = {"defense": row.defense, "attack": row.attack, "seed": seed}
                size = {name: row.counts[name] for name in ("private", "auxiliary", "test")}
                line = {**key, **measured(row), "checks": checks, **size, **today("processor")}
                append(record, line, show=True)
    summarize(read_lines(record), RESULTS / "table_3.csv")


def summarize(rows: list[dict[str, Any]], to: Path) -> None:
    """Write the CSV table: means over seeds with 95 % Student intervals."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["defense"], row["attack"]].append(row)
    table = []
    for (defense, attack), same in found.items():
        cells = []
        for name in MEASURES:
            values = [row[name] for row in same if row[name] is not None]
            cells.append(mean_cell(values, 4) if len(values) > 1 else "—")
        seeds = " ".join(str(row["seed"]) for row in sorted(same, key=lambda row: int(row["seed"])))
        table.append([f"`{defense}`", f"`{attack}`", seeds, *cells])
    write_table(to, ["defense", "attack", "seeds", *MEASURES], table)
