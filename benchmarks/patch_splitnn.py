"""Patch SplitNN: what an adversary recovers by the storages it holds, and what M networks cost beside one.

    python benchmarks/run.py patch_splitnn --part storages --folder RUNS     # resumable; then --part figure
    python benchmarks/run.py patch_splitnn --part cost

Storages: scikit-learn's digits of 8×8 pixels, 16 patches of 2 pixels side by side, each in a storage of its own; ResNet-20
cut after its first stage. Each seed draws an order of the storages, and the adversary holds the first 1, 2, 4, … of it.
The models of a seed are trained once and attacked with every number of storages.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Generator

from privkit.audit.cell import run_cell
from privkit.audit.run import pick_device
from privkit.audit.seed_data import prepare
from privkit.config import AuditConfig
from privkit.metrics.perception import Perception
from privkit.reports.schema import Row
from privkit.run.folder import RunFolder
from privkit.run.ingredients import ingredients
from privkit.run.plan import plan
from privkit.run.progress import Silent
from privkit.run.provenance import circumstances, manifest
from privkit.settings import resolve

RESULTS = Path(__file__).parent / "results" / "patches"
FIGURE = Path(__file__).parents[1] / "docs" / "storages.svg"
PATCHES = 16
NETWORKS = {"one a patch": "", "one for all": ",models=1"}
FIELDS = ("networks", "attack", "held", "seed", "ssim", "mse", "mean image ssim", "accuracy")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags.

    Attributes:
        folder: of the runs, for storages.
        held: how many storages the adversary holds.
        networks: whether each patch has a network of its own.
        turns: of which the fastest counts, for cost.
    """

    part: Literal["storages", "figure", "cost"]
    folder: str = "privkit-runs/storages"
    networks: tuple[str, ...] = tuple(NETWORKS)
    attack: tuple[str, ...] = ("black_box:decoder=mae", "white_box")
    held: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (0, 1, 2)
    budget: str = "small:private=600,auxiliary=600,test=400,victims=100,epochs=10,attack_epochs=20"
    turns: int = 5


def storages(options: Options) -> None:
    """Train, attack with each number of storages, and write one row a seed."""
    for networks in options.networks:
        config = resolve(
            {
                "defense": [f"split_parts:parts={PATCHES}"],
                "attack": list(options.attack),
                "dataset": "tiny_digits",
                "model": f"patch_splitnn:depth=20,patch=2,stride=2{NETWORKS[networks]}",
                "budget": options.budget,
                "seed": list(options.seeds),
                "threads": torch.get_num_threads(),
            }
        )
        folder = Path(options.folder) / networks.replace(" ", "-")
        for count, row in audited(config, folder, options.held):
            if row.status != "done":
                raise ValueError(f"{row.attack}, {count} storages, seed {row.seed}: {row.reason}")
            measured, floor = row.recovers["unaligned"], row.floors["mean_image"]["unaligned"]
            assert row.accuracy is not None
            values = (measured["ssim"].mean, measured["mse"].mean, floor["ssim"].mean, row.accuracy.value)
            record((networks, row.attack, count, row.seed, *(f"{value:.4f}" for value in values)))


def audited(config: AuditConfig, folder: Path, counts: tuple[int, ...]) -> Iterator[tuple[int, Row]]:
    """The cells of every number of storages in one run folder, so that each model is trained once."""
    device = pick_device("cpu")
    perception = Perception.of((), device)
    here = circumstances(device.type, torch.get_num_threads())
    with RunFolder(folder, manifest(config, threads=torch.get_num_threads())) as run:
        for seed in config.seeds:
            drawn = torch.randperm(PATCHES, generator=Generator().manual_seed(seed)).tolist()
            seed_data = prepare(config, seed, device, perception)
            for count in counts:
                held = tuple(f"part_{number + 1}" for number in sorted(drawn[:count]))
                part = replace(config, held=held if count < PATCHES else ())
                cells = [cell for cell in plan(part) if cell.seed == seed and cell.defense.name == "split_parts"]
                made_of = ingredients(part, cells, perception, here)
                done, _ = run.finished(cell.id for cell in cells)
                for cell in cells:
                    made = made_of[cell.id].on(seed_data.hashes)
                    yield count, done.get(cell.id) or run.finish(run_cell(part, cell, seed_data, run, Silent(), made))


def record(values: tuple[object, ...]) -> None:
    """Put one row in the place of that of the same cell, and print it."""
    path = RESULTS / "storages_by_seed.csv"
    rows = read()
    rows[tuple(map(str, values[:4]))] = [str(value) for value in values]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as lines:
        csv.writer(lines, lineterminator="\n").writerows([FIELDS, *rows.values()])
    print(*values, sep=", ", flush=True)


def read() -> dict[tuple[str, ...], list[str]]:
    """The recorded rows by networks, attack, number of storages and seed."""
    path = RESULTS / "storages_by_seed.csv"
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as lines:
        _, *rows = csv.reader(lines)
    return {tuple(row[:4]): row for row in rows}


def main(options: Options) -> None:
    """Measure one part."""
    {"storages": storages}[options.part](options)
