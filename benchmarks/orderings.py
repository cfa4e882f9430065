"""The papers' orderings of methods on real data at reduced size: which of them does one see?

    python benchmarks/orderings.py --data-root DATA --out runs.jsonl      # goes on where it was interrupted
    python benchmarks/orderings.py --out runs.jsonl --report              # the tables only

Every run is one training. A claim "A > B" is judged on the differences of the same seeds: reproduced if the
95 % Student interval of the mean difference lies above 0, reversed if below, otherwise undecided. What was not run is
said, too.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privkit.audit.seed_intervals import UNIT, over_values
from privkit.domains.splits import split
from privkit.registry import parse
from privkit.training import Clients, Stacked, TrainingSpec, evaluate, train

VIT = "vit_micro:cut=embedding"
VGG = "vgg16:batch_norm=true"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training.

    Attributes:
        method: its name in the tables.
        protocol: of the registry.
        defense: of the registry.
        model: of the registry.
        dataset: of the registry.
        partition: of the registry.
    """

    method: str
    protocol: str
    defense: str = "none"
    model: str = VIT
    dataset: str = "cifar10"
    partition: str = "iid"


METHODS = (
    Run(method="standalone", protocol="standalone"),
    Run(method="PSL", protocol="psl"),
    Run(method="SFL", protocol="splitfed"),
    Run(method="PSL + Mixup", protocol="cutmixsl", defense="mixup"),
    Run(method="PSL + Random Cutout", protocol="psl", defense="random_cutout"),
    Run(method="PSL + Vanilla CutMix", protocol="cutmixsl", defense="vanilla_cutmix"),
    Run(method="CutMixSL", protocol="cutmixsl", defense="random_cutmix"),
    Run(method="CutMixSL (×n updates)", protocol="cutmixsl:updates=message", defense="random_cutmix"),
    Run(method="Shuffled CutMix", protocol="cutmixsl", defense="shuffled_cutmix"),
    Run(method="CutMixSFL", protocol="cutmixsfl", defense="random_cutmix"),
)
SWEEPS = (
    *(Run(method=f"CutMixSL, n={n}", protocol=f"cutmixsl:clients={n}", defense="random_cutmix") for n in (2, 4)),
    *(Run(method=f"CutMixSL, k={k}", protocol="cutmixsl", defense=f"random_cutmix:group={k}") for k in (3, 5)),
    Run(method="CutMixSL, α_M=∞", protocol="cutmixsl", defense="random_cutmix:concentration=inf"),
    Run(method="PSL, α_D=0.1", protocol="psl", partition="dirichlet:alpha=0.1"),
    Run(method="SFL, α_D=0.1", protocol="splitfed", partition="dirichlet:alpha=0.1"),
    Run(method="CutMixSL, α_D=0.1", protocol="cutmixsl", defense="random_cutmix", partition="dirichlet:alpha=0.1"),
    Run(method="CutMixSFL, α_D=0.1", protocol="cutmixsfl", defense="random_cutmix", partition="dirichlet:alpha=0.1"),
    *(
        Run(method=f"{name}, σ={sigma}", protocol=protocol, defense=f"{defense}:sigma={sigma},sigma_labels={sigma}")
        for sigma in (0.03, 0.13)
        for name, protocol, defense in (
            ("DP-SL", "psl", "dp_sl"),
            ("DP-MixSL", "cutmixsl", "dp_mixsl"),
            ("DP-CutMixSL", "cutmixsl", "dp_cutmixsl"),
        )
    ),
)
FASHION = tuple(
    Run(method=f"{run.method}, Fashion", protocol=run.protocol, defense=run.defense, dataset="fashion_mnist")
    for run in METHODS
    if run.method in ("standalone", "PSL", "SFL", "PSL + Mixup", "CutMixSL")
)
CNN = (
    Run(method="PSL + Mixup, VGG-16", protocol="cutmixsl", defense="mixup", model=VGG),
    Run(method="CutMixSL, VGG-16", protocol="cutmixsl", defense="random_cutmix:patch=4", model=VGG),
)
CLAIMS = (
    ("CutMixSL > PSL + Mixup", "CutMixSL", "PSL + Mixup", "DP-CutMixSL Table 3, CutMixSL Table 1"),
    ("CutMixSL > PSL + Vanilla CutMix", "CutMixSL", "PSL + Vanilla CutMix", "DP-CutMixSL Table 3"),
    ("CutMixSL > SFL", "CutMixSL", "SFL", "DP-CutMixSL Table 3"),
    ("SFL > PSL", "SFL", "PSL", "DP-CutMixSL Table 3"),
    ("PSL > standalone", "PSL", "standalone", "DP-CutMixSL Table 3"),
    (
        "PSL > PSL + Random Cutout",
        "PSL",
        "PSL + Random Cutout",
        "DP-CutMixSL Table 3, ViT (CutMixSL Table 1: reversed)",
    ),
    ("CutMixSFL > CutMixSL", "CutMixSFL", "CutMixSL", "CutMixSL Table 2"),
    ("CutMixSL > its ×n variant", "CutMixSL", "CutMixSL (×n updates)", "CutMixSL Table 2"),
    ("CutMixSL > Shuffled CutMix", "CutMixSL", "Shuffled CutMix", "CutMixSL Table 1"),
    ("n = 10 > n = 2", "CutMixSL", "CutMixSL, n=2", "CutMixSL Table 2"),
    ("k = 2 > k = 3", "CutMixSL", "CutMixSL, k=3", "CutMixSL Table 2(a)"),
    ("k = 3 > k = 5", "CutMixSL, k=3", "CutMixSL, k=5", "CutMixSL Table 2(a)"),
    ("α_M = 2 > α_M = ∞", "CutMixSL", "CutMixSL, α_M=∞", "CutMixSL Table 2(a), DP-CutMixSL Fig. 4c"),
    ("IID > α_D = 0.1, CutMixSL", "CutMixSL", "CutMixSL, α_D=0.1", "DP-CutMixSL Fig. 11b"),
    ("CutMixSFL > CutMixSL at α_D = 0.1", "CutMixSFL, α_D=0.1", "CutMixSL, α_D=0.1", "DP-CutMixSL Fig. 11b"),
    ("CutMixSL > PSL at α_D = 0.1", "CutMixSL, α_D=0.1", "PSL, α_D=0.1", "DP-CutMixSL Fig. 11b"),
    ("DP-CutMixSL > DP-SL, σ = 0.03", "DP-CutMixSL, σ=0.03", "DP-SL, σ=0.03", "DP-CutMixSL Fig. 7c"),
    ("DP-CutMixSL > DP-MixSL, σ = 0.03", "DP-CutMixSL, σ=0.03", "DP-MixSL, σ=0.03", "DP-CutMixSL Fig. 7c"),
    ("DP-CutMixSL > DP-MixSL, σ = 0.13", "DP-CutMixSL, σ=0.13", "DP-MixSL, σ=0.13", "DP-CutMixSL Fig. 7c"),
    ("less noise is better (DP-CutMixSL)", "DP-CutMixSL, σ=0.03", "DP-CutMixSL, σ=0.13", "DP-CutMixSL Fig. 7c"),
    ("CutMixSL > Mixup, Fashion-MNIST", "CutMixSL, Fashion", "PSL + Mixup, Fashion", "DP-CutMixSL Table 3"),
    ("SFL > PSL, Fashion-MNIST", "SFL, Fashion", "PSL, Fashion", "DP-CutMixSL Table 3"),
    ("PSL > standalone, Fashion-MNIST", "PSL, Fashion", "standalone, Fashion", "DP-CutMixSL Table 3"),
    ("Mixup > CutMixSL on VGG-16", "PSL + Mixup, VGG-16", "CutMixSL, VGG-16", "DP-CutMixSL Table 3, CutMixSL Table 1"),
)
PARTS = {"methods": METHODS, "sweeps": SWEEPS, "fashion": FASHION, "cnn": CNN}
EVERY = (*METHODS, *SWEEPS, *FASHION, *CNN)


def accuracy(run: Run, seed: int, options: argparse.Namespace) -> float:
    """Test accuracy of one run."""
    dataset, model = parse("datasets", run.dataset).spec, parse("models", run.model).spec
    defense, protocol = parse("defenses", run.defense).spec, parse("protocols", run.protocol).spec
    pools = dataset.open(options.data_root, download=False, train_images=options.private + 10)
    parts = split(pools, private=options.private, auxiliary=10, test=options.test, seed=seed)
    built = model.build(parts.image_shape, parts.classes, positions=defense.positions, seed=seed)
    edge = Clients.build(built.lower, defense, parts.image_shape, classes=parts.classes, seed=seed, protocol=protocol)
    upper = Stacked(built.upper, protocol.clients) if protocol.upper == "own" else built.upper
    shares = parse("partitions", run.partition).spec.assign(parts.private.y, protocol.clients, seed)
    batch = options.batch // protocol.clients
    spec = TrainingSpec(batch_size=batch, learning_rate=options.learning_rate)
    train(edge, upper, parts.private, spec, epochs=options.epochs, seed=seed, shares=shares)
    return evaluate(edge, upper, parts.test, batch_size=batch, seed=seed).value


def report(path: Path) -> str:
    """Two Markdown tables: accuracies, and the verdict on each published ordering."""
    found: dict[str, dict[int, float]] = {}
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        found.setdefault(row["method"], {})[row["seed"]] = row["accuracy"]
    lines = ["| method | seeds | accuracy |", "| --- | --- | --- |"]
    for run in EVERY:
        seeds = found.get(run.method, {})
        if len(seeds) > 1:
            mean = over_values(list(seeds.values()), 0.95, UNIT)
            lines.append(f"| {run.method} | {len(seeds)} | {mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}] |")
        else:
            lines.append(
                f"| {run.method} | {len(seeds)} | {', '.join(f'{v:.3f}' for v in seeds.values()) or 'not run'} |"
            )
    lines += ["", "| published ordering | source | difference | verdict |", "| --- | --- | --- | --- |"]
    for claim, better, worse, source in CLAIMS:
        a, b = found.get(better, {}), found.get(worse, {})
        shared = sorted(set(a) & set(b))
        if len(shared) < 2:
            lines.append(f"| {claim} | {source} | – | not run |")
            continue
        gap = over_values([a[seed] - b[seed] for seed in shared], 0.95, (-1.0, 1.0))
        verdict = "reproduced" if gap.low > 0 else "reversed" if gap.high < 0 else "undecided"
        lines.append(f"| {claim} | {source} | {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}] | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is missing, then print the tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data-root", type=Path)
    arguments.add_argument("--out", type=Path, required=True, help="one JSON line a run; runs in it are not repeated")
    arguments.add_argument("--report", action="store_true", help="train nothing")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--private", type=int, default=2_000)
    arguments.add_argument("--test", type=int, default=2_000)
    arguments.add_argument("--epochs", type=int, default=25)
    arguments.add_argument("--batch", type=int, default=100, help="images a round over all clients")
    arguments.add_argument("--learning-rate", type=float, default=2e-3)
    arguments.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    options.out.touch()
    if not options.report:
        runs = [run for part in options.part for run in PARTS[part]]
        for seed in options.seeds:
            for run in runs:
                done = [json.loads(line) for line in options.out.read_text().splitlines()]
                if any((row["method"], row["seed"]) == (run.method, seed) for row in done):
                    continue
                start = time.perf_counter()
                value = accuracy(run, seed, options)
                row = {"method": run.method, "seed": seed, "accuracy": value, "seconds": time.perf_counter() - start}
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)
    print(
        f"\n{options.private} training and {options.test} test images, {options.epochs} epochs, batch {options.batch}"
    )
    print(f"torch {torch.__version__}, numpy {np.__version__}, CPU, {options.threads} thread\n")
    print(report(options.out))


if __name__ == "__main__":
    main()
