"""Measure noise and denoising on MNIST: accuracy with and without a fault of the paper's code, and time of a step.

    python benchmarks/run.py noise --data-root DIR        # accuracy, three seeds; appends to results/noise/runs.jsonl
    python benchmarks/run.py noise --what steps           # time of a step with and without noise and denoising
    python benchmarks/run.py noise --what steps --beside train_mnist_dp.py --data-root DIR

Setting for accuracy: the CNN of the paper accurate_sl, cut after "fc"; batch size 64; SGD with learning rate 0.1; σ =
0.7; the first 4,032 training images and 2,000 test images. Accuracy is measured on test images without noise and
denoising, as in the paper, and on test images that pass both. A finished run is not repeated. `--beside` also times the
authors' script, which is not part of this repository, in turns with privkit.
"""

import contextlib
import importlib.util
import io
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from cells import append, mean_cell, read_lines, write_table
from run import machine
from timing import in_turns
from torch import Generator, nn
from torchvision import datasets, transforms

from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.models.convolutional import CNN
from privkit.parts.registry import parse
from privkit.torch_utils.freed_memory import keep_freed_memory
from privkit.training import Clients, TrainingSpec, evaluate, train
from privkit.training.spec import Precision

RUNS = Path(__file__).parent / "results" / "noise" / "runs.jsonl"
SHAPE, CLASSES, BATCH = (1, 28, 28), 10, 64
NOISE = "gaussian_noise:sigma=0.7"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `noise`.

    Attributes:
        what: what to measure: "accuracy", or "steps" for the time of a step.
        data_root: folder with the official MNIST files.
        images: number of training images.
        epochs: number of training epochs; each has 63 steps with the default images.
        beside: path of the authors' train_mnist_dp.py.
        steps: number of steps in a timed turn.
        turns: number of timed turns, whose median counts.
    """

    what: Literal["accuracy", "steps"] = "accuracy"
    data_root: str | None = None
    images: int = 4032
    test: int = 2000
    epochs: int = 5
    seeds: tuple[int, ...] = (0, 1, 2)
    defense: tuple[str, ...] = ("none", NOISE, f"{NOISE},noise_in_place=true")
    precision: Precision = "float32"
    beside: str | None = None
    steps: int = 2
    turns: int = 15


def built(defense: str, seed: int) -> tuple[Clients, nn.Module]:
    """Untrained clients and server with this defense."""
    split = CNN.build(Images(shape=SHAPE), CLASSES, positions=True, seed=seed)
    edge = Clients.build(split.lower, parse("defenses", defense).spec, Images(shape=SHAPE), classes=CLASSES, seed=seed)
    return edge, edge.fitted(split.upper, Images(shape=SHAPE), seed)


def accuracy(options: Options) -> None:
    """Train every defense with every seed, and append a line for each."""
    where = None if options.data_root is None else Path(options.data_root)
    data = parse("datasets", "mnist").spec.open(where, download=False, train_images=60_000)
    private, test = data.train.take(np.arange(options.images)), data.test.take(np.arange(options.test))
    spec = TrainingSpec(
        batch_size=BATCH, optimizer="sgd", learning_rate=0.1, schedule="constant", precision=options.precision
    )
    done = read_lines(RUNS)
    for seed in options.seeds:
        for defense in options.defense:
            key = {"defense": defense, "seed": seed, "images": len(private), "epochs": options.epochs}
            key |= {"precision": options.precision}
            if any(key.items() <= line.items() for line in done):
                continue
            edge, upper = built(defense, seed)
            trained = train(edge, upper, private, spec, epochs=options.epochs, seed=seed)
            scores = {
                name: asdict(evaluate(edge, upper, test, batch_size=50, seed=seed, noise_free=free).accuracy)
                for name, free in (("noisy", False), ("noise_free", True))
            }
            line = {**key, "loss": trained.curve, **scores, **machine(torch.get_num_threads())}
            append(RUNS, line)
            print(defense, seed, *(f"{name} {score['value']:.4f}" for name, score in scores.items()), flush=True)


def summarize() -> None:
    """Write results/noise/accuracy.csv: every configuration's mean over seeds, and its 95 % Student interval."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in read_lines(RUNS):
        steps = line["images"] // BATCH * line["epochs"]
        found.setdefault((line["defense"], str(steps), line["precision"]), []).append(line)
    table = []
    for key, lines in found.items():
        seeds = " ".join(str(line["seed"]) for line in sorted(lines, key=lambda line: int(line["seed"])))
        values = [[line[name]["value"] for line in lines] for name in ("noise_free", "noisy")]
        table.append([f"`{key[0]}`", *key[1:], seeds, *map(mean_cell, values)])
    heading = ["defense", "steps", "precision", "seeds", "noise-free accuracy", "noisy accuracy"]
    write_table(RUNS.parent / "accuracy.csv", heading, table)


def ours(defense: str, options: Options, precision: Precision) -> Callable[[], object]:
    """Some steps of privkit's loop."""
    edge, upper = built(defense, 0)
    count, draws = BATCH * options.steps, Generator().manual_seed(0)
    data = Batch(
        x=torch.rand(count, *SHAPE, generator=draws),
        y=torch.randint(CLASSES, (count,), generator=draws),
        ids=torch.arange(count),
    )
    spec = TrainingSpec(batch_size=BATCH, optimizer="sgd", learning_rate=0.1, schedule="constant", precision=precision)
    return lambda: train(edge, upper, data, spec, epochs=1, seed=0)


def theirs(path: str, root: str, options: Options) -> Callable[[], None]:
    """Function that runs as many training steps of the authors' script, without the script's tests."""
    found = importlib.util.spec_from_file_location("authors", path)
    assert found is not None
    assert found.loader is not None
    script: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    script.test = lambda *given: None
    layers = list(script.Net().children())
    sides = nn.Sequential(*layers[:-1]), nn.Sequential(*layers[-1:])
    steppers = [torch.optim.SGD(side.parameters(), lr=0.1) for side in sides]
    scale = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    data = torch.utils.data.Subset(datasets.MNIST(root, transform=scale), range(BATCH * options.steps))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    given = SimpleNamespace(
        add_noise=True,
        sigma=0.7,
        enable_denoise=True,
        mask_ratio=0.2,
        dropout_only=False,
        scaling_factor=1.0,
        weight_decay=0,
        log_interval=10,
        dry_run=False,
        step=0,
        test_interval=10**9,
    )

    def epoch() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            script.train(given, sides, torch.device("cpu"), loader, loader, steppers, 1)

    return epoch


def steps(options: Options) -> None:
    """Print the CPU time of a step, and its ratio to a step without noise in the same turn (medians over turns)."""
    keep_freed_memory()
    stages = {
        "without noise": "none",
        "noise": NOISE,
        "noise, masked": f"{NOISE}+masking",
        "noise, scaled": f"{NOISE}+scaling",
        "noise, scaled by an estimated factor": f"{NOISE}+scaling:factor=auto",
        "noise, masked by an estimated share": f"{NOISE}+masking:keep=auto",
    }
    works = {name: ours(defense, options, "float32") for name, defense in stages.items()}
    works["noise, masked, bfloat16"] = ours(stages["noise, masked"], options, "bfloat16")
    if options.beside is not None:
        works["the authors' script: noise, masked"] = theirs(options.beside, options.data_root or "data", options)
    turns = in_turns(works, options.turns)
    times = {name: [spent / options.steps for spent in found] for name, found in turns.items()}
    plain = times["without noise"]
    print("step,median,least,of the step without noise")
    for name, found in times.items():
        ratio = statistics.median(one / beside for one, beside in zip(found, plain, strict=True))
        print(f'"{name}",{1e3 * statistics.median(found):.1f} ms,{1e3 * min(found):.1f} ms,{ratio:.3f}')


def main(options: Options) -> None:
    """Measure the time of a step, or the accuracies; for accuracies, also write the table."""
    if options.what == "steps":
        steps(options)
    else:
        accuracy(options)
        summarize()
