"""Attack Patch SplitNN with some of its storages, and time its training with one network per patch.

    python benchmarks/run.py patch_splitnn --part storages --folder RUNS     # resumable
    python benchmarks/run.py patch_splitnn --part figure                     # of what was recorded
    python benchmarks/run.py patch_splitnn --part cost

"storages": scikit-learn's digits of 8×8 pixels have 16 patches of 2×2 pixels, each in a separate storage; ResNet-20 is
cut after its first stage. Each seed draws an order of the storages; the adversary reads the first 1, 2, 4, …. The
models of a seed are trained once and attacked with every number of storages.

"cost": a training step on 32×32 pixels with the paper's ResNet-18 is timed, for one network per patch and for one
network for all patches, which need equal multiply-accumulates. Both take turns, so that a slow minute affects both.
"""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import process_time
from typing import Literal

import torch
from cells import write_table
from torch import Generator, nn

from privkit.audit.cell import run_cell
from privkit.audit.seed_data import prepare
from privkit.audit.worker import pick_device
from privkit.domains.images.domain import Images
from privkit.metrics.perception import Perception
from privkit.models.patch_splitnn import PatchSplitNN
from privkit.reports.schema import Row
from privkit.reports.seed_intervals import over_values
from privkit.reports.tables import interval
from privkit.run.ledger import RunLedger
from privkit.run.plan import plan
from privkit.run.progress import Progress
from privkit.run.provenance import circumstances, ingredients, manifest
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve
from privkit.shared.measures import measure

RESULTS = Path(__file__).parent / "results" / "patches"
BY_SEED = RESULTS / "storages_by_seed.csv"
FIGURE = Path(__file__).parents[1] / "docs" / "storages.svg"
PATCHES = 16
NETWORKS = {"one a patch": "", "one for all": ",models=1"}
FIELDS = ("networks", "attack", "held", "seed", "ssim", "mse", "mean image ssim", "accuracy")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `patch_splitnn`.

    Attributes:
        folder: folder of the runs, for "storages".
        held: numbers of storages that the adversary can read.
        networks: the models to measure: one network per patch, or one for all patches; names as in `NETWORKS`.
        batch: number of images in a step, for "cost".
        turns: number of timed turns, whose median counts, for "cost".
    """

    part: Literal["storages", "figure", "cost"]
    folder: str = "privkit-runs/storages"
    networks: tuple[str, ...] = tuple(NETWORKS)
    attack: tuple[str, ...] = ("white_box:epochs=0",)
    held: tuple[int, ...] = (1, 2, 4, 8, 16)
    seeds: tuple[int, ...] = (0, 1, 2)
    budget: str = "small:private=400,auxiliary=600,test=400,victims=100,epochs=6"
    batch: int = 16
    turns: int = 5


def storages(options: Options) -> None:
    """Train the models, attack them with each number of storages, and write one row per attack and seed."""
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
            measured, floor = row.recovered["unaligned"], row.floors["mean_image"]["unaligned"]
            assert row.accuracy is not None
            values = (measured["ssim"].value, measured["mse"].value, floor["ssim"].value, row.accuracy.value)
            record((networks, row.attack, count, row.seed, *(f"{value:.4f}" for value in values)))


def audited(config: AuditConfig, folder: Path, counts: tuple[int, ...]) -> Iterator[tuple[int, Row]]:
    """Results for every number of storages: (number, row). One run folder, so that each model is trained once."""
    device = pick_device("cpu")
    perception = Perception.of((), device)
    here = circumstances(device.type, torch.get_num_threads())
    with RunLedger(folder, manifest(config, threads=torch.get_num_threads())) as run:
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
                    yield count, done.get(cell.id) or run.finish(run_cell(part, cell, seed_data, run, Progress(), made))


def record(values: tuple[object, ...]) -> None:
    """Put one row in the place of that of the same cell, and print it."""
    rows = read()
    rows[tuple(map(str, values[:4]))] = [str(value) for value in values]
    write_table(BY_SEED, FIELDS, rows.values())
    print(*values, sep=", ", flush=True)


def read() -> dict[tuple[str, ...], list[str]]:
    """The recorded rows by networks, attack, number of storages and seed."""
    if not BY_SEED.exists():
        return {}
    with BY_SEED.open(newline="", encoding="utf-8") as lines:
        _, *rows = csv.reader(lines)
    return {tuple(row[:4]): row for row in rows}


def figure(_: Options) -> None:
    """Draw SSIM against the number of storages, and write the table of means and intervals."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    series: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    floors: dict[str, float] = {}
    for networks, attack, held, seed, ssim, _mse, floor, _accuracy in read().values():
        series[networks, attack][int(held)].append(float(ssim))
        floors[seed] = float(floor)
    picture, axis = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    heading, lines = ["storages held", *(f"{attack}, {networks}" for networks, attack in series)], {}
    for (networks, attack), by_count in series.items():
        known = {
            count: over_values(values, 0.95, measure("ssim").within) for count, values in by_count.items() if values[1:]
        }
        middle = [one.value for one in known.values()]
        below = [one.value - one.low for one in known.values()]
        above = [one.high - one.value for one in known.values()]
        axis.errorbar(list(known), middle, (below, above), fmt="o-", capsize=3, label=f"{attack}, {networks}")
        for count, one in known.items():
            lines.setdefault(count, {})[networks, attack] = interval(one)
    floor = sum(floors.values()) / len(floors)
    axis.axhline(floor, color="grey", linestyle="--", label="the mean image")
    axis.set_xscale("log", base=2)
    axis.set(xlabel="storages held, of 16", ylabel="SSIM of the reconstructions", xticks=sorted(lines))
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.legend(fontsize="small")
    with pyplot.rc_context({"svg.hashsalt": "privkit"}):
        picture.savefig(FIGURE, metadata={"Date": None})
    table = [[str(count), *(lines[count].get(one, "") for one in series)] for count in sorted(lines)]
    write_table(RESULTS / "storages.csv", heading, table)
    print(f"{FIGURE}; SSIM of the mean image {floor:.3f}")


def cost(options: Options) -> None:
    """Print the time of a step for each pattern (size and stride of patches), with one network and one per patch."""
    print("| pattern | M | ms a step, M=1 | ms a step, M=P | ratio | ratio of the patches' networks alone |")
    print("| --- | --- | --- | --- | --- | --- |")
    for patch, stride in ((16, 8), (8, 8), (7, 5)):
        count = PatchSplitNN(patch=patch, stride=stride).grid(32, 32) ** 2
        steps = {
            (models, whole): _step(PatchSplitNN(patch=patch, stride=stride, models=models), whole, options.batch)
            for models in (1, count)
            for whole in (True, False)
        }
        seconds: dict[tuple[int, bool], list[float]] = defaultdict(list)
        for _ in range(options.turns):
            for which, step in steps.items():
                start = process_time()
                step()
                seconds[which].append(process_time() - start)
        middle = {which: median(values) for which, values in seconds.items()}
        one, many = middle[1, True], middle[count, True]
        alone = middle[count, False] / middle[1, False]
        print(
            f"| ({patch}, {stride}) | {count} | {1e3 * one:.0f} | {1e3 * many:.0f} | {many / one:.2f} | {alone:.2f} |"
        )


def _step(spec: PatchSplitNN, whole: bool, batch: int) -> Callable[[], None]:
    """Function that runs a forward and backward pass of both segments, or (not `whole`) of the patches' networks."""
    split = spec.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0)
    images, labels = torch.rand(batch, 3, 32, 32), torch.arange(batch) % 10

    def step() -> None:
        maps = split.lower(images)
        if whole:
            nn.functional.cross_entropy(split.upper(maps), labels).backward()
        else:
            maps.sum().backward()

    return step


def main(options: Options) -> None:
    """Measure or draw one part."""
    {"storages": storages, "figure": figure, "cost": cost}[options.part](options)
