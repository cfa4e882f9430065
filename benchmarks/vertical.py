"""Attack vertical split learning of two parties: a party infers labels, and the server reconstructs records.

    python benchmarks/run.py vertical

The defenses and attacks correspond to those of SecretFlow's benchmark; `benchmarks/results/vertical/*.csv` say how
closely. Each result is a line of `benchmarks/results/vertical/runs.jsonl`; the same command continues with the missing
results. Control experiments are left out.
"""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from audits import defended, timed_rows
from cells import append, read_lines
from run import machine

from privkit.shared.measures import FLOORS

RUNS = Path(__file__).resolve().parent / "results" / "vertical" / "runs.jsonl"
WORK = "victims=50,epochs=15,attack_epochs=10,attack_doublings=0"
SIZES = {
    "digits": f"small:private=300,auxiliary=400,test=400,{WORK}",
    "breast_cancer": f"small:private=200,auxiliary=200,test=130,{WORK}",
}
CLIENTS = "information_bottleneck:weight=0.001", "mixup", "fedpass:sigma=0.0", "fedpass"
DEFENSES = {
    "party": ("none", *CLIENTS, "grad_perturb", "max_norm", "confusional_labels", "label_decorrelation"),
    "server": ("none", *CLIENTS, "orthogonal_map"),
}
"""Adversary -> defenses. "party" is the first of two parties; "server" is the server, which receives from both."""
ATTACKS = {
    "party": ("exploit", "exploit:start=random,epochs=60", "model_completion", "label_leak", "release_clustering"),
    "server": ("black_box", "ridge", "fsha"),
}
AT_THE_SERVER = ("grad_perturb", "max_norm", "confusional_labels", "label_decorrelation")
MEASURED = ("label_accuracy", "cluster_accuracy", "auc")
RECOVERED = ("ssim", "cells", "identified")
SERVER_ON_TABLES = "fsha"
"""An attack that runs on tables only, as in SecretFlow; privkit then reports that it works for images only."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `vertical`.

    Attributes:
        seeds: seeds of data, weights and attacks.
        datasets: "digits", whose images are cut into two halves, or "breast_cancer", a table with 15 columns per party.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    datasets: tuple[str, ...] = ("digits", "breast_cancer")


def chained(defense: str) -> str:
    """Chain a defense with `split_parts`, which names the part of the release that each party sends.

    >>> chained("none"), chained("mixup"), chained("max_norm")
    ('split_parts', 'mixup+split_parts@mixer', 'split_parts+max_norm')
    """
    if defense in AT_THE_SERVER:
        return f"split_parts+{defense}"
    return {"none": "split_parts", "mixup": "mixup+split_parts@mixer"}.get(defense, f"{defense}+split_parts")


def audited(dataset: str, adversary: str, defense: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one audit."""
    party = adversary == "party"
    attacks = [one for one in ATTACKS[adversary] if dataset != "digits" or one != SERVER_ON_TABLES]
    given = {
        "dataset": dataset,
        "model": "vertical",
        "defense": chained(defense) if party else defense,
        "attack": attacks,
        "budget": SIZES[dataset],
        "training": "learning_rate=.003",
        "threads": 1,
    }
    config = defended(given | ({"parts": "part_1"} if party else {}), seed)
    of: dict[str, Any] = {"dataset": dataset, "adversary": adversary, "defense": defense, "seed": seed}
    with TemporaryDirectory() as folder:
        rows = timed_rows(config, Path(folder) / "run")
    found = []
    for attack, (row, seconds) in zip(attacks, rows, strict=True):
        recovered = row.recovered.get("unaligned", {})
        values = {name: row.answers[name].value for name in MEASURED if name in row.answers}
        values |= {name: recovered[name].value for name in RECOVERED if name in recovered}
        for name in RECOVERED[:2]:
            constant = [guess["unaligned"][name].value for guess in _constant(row.floors) if name in guess["unaligned"]]
            values |= {f"floor_{name}": max(constant)} if name in recovered else {}
        accuracy = {} if row.accuracy is None else {"accuracy": row.accuracy.value}
        spent = {"cpu_seconds": round(seconds, 1)}
        found.append(
            {**of, "attack": attack, "status": row.status, "reason": row.reason, **values, **accuracy, **spent}
        )
    return found


def _constant(floors: dict[str, Any]) -> list[Any]:
    """Floors of guesses without smashed data, except those that know labels and the attack's own start."""
    return [guess for name, guess in floors.items() if name != "zero_steps" and not FLOORS[name].labels]


def main(options: Options) -> None:
    """Measure what is missing, append it, and print each line."""
    done = {(line["dataset"], line["adversary"], line["defense"], line["seed"]) for line in read_lines(RUNS)}
    where = machine(1)
    for seed, dataset, adversary in product(options.seeds, options.datasets, ATTACKS):
        for defense in DEFENSES[adversary]:
            if (dataset, adversary, defense, seed) in done:
                continue
            lines = audited(dataset, adversary, defense, seed)
            append(RUNS, *(line | where for line in lines))
            for line in lines:
                print(json.dumps(line, ensure_ascii=False), flush=True)
