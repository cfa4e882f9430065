"""Measure which share of labels each label-inference attack guesses right, by a client or the server of a U-shape.

    python benchmarks/run.py label_inference --seeds 0 1 2 --data-root DIR

The attacking client sees its own smashed data and returned gradients; the server of a U-shape sees features and
gradients, but no labels. The model and digits are those of the default audit, with one client, fewer epochs and fewer
records. Attacks by a U-shape's server, and attacks on CIFAR-10, use 2,000 private and 2,000 auxiliary records. CIFAR-10
is read from DIR; texts need the extra `language`. Attacks on gradients use the first epoch; attacks on smashed data or
the lower segment use the end of training. The row "no client segment" is model completion on the images themselves, as
a reference without split learning. A run appends its lines to results/labels/inference.jsonl, and is not repeated.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from cells import append, read_lines
from run import machine
from torch import Generator, nn

from privkit.attacks.base import View
from privkit.attacks.goals.labels import LabelObservation, first_of_each
from privkit.attacks.labels.model_completion import ModelCompletion
from privkit.attacks.scores.labels import cluster_accuracy, label_accuracy
from privkit.attacks.scores.leak import pooled_auc
from privkit.audit.run import run_audit
from privkit.audit.seed_data import prepare
from privkit.settings.resolve import resolve

RUNS = Path(__file__).parent / "results" / "labels" / "inference.jsonl"
U_SHAPE = {
    "protocol": "u_shape",
    "attack": ["release_clustering", "release_clustering:named_by=likeness", "exploit", "label_leak:epoch=0"],
    "budget": "small:private=2000,auxiliary=2000,test=500,victims=50,epochs=5",
}
GPT2 = {"model_type": "gpt2", "vocab_size": 2000, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
"""Configuration of a small GPT-2, whose weights are random."""
PARTIES = {
    "dataset": "digits",
    "model": "vertical",
    "defense": "split_parts",
    "parts": "part_1",
    "attack": ["release_clustering", "exploit", "model_completion"],
    "budget": "small:private=2000,auxiliary=200,test=500,victims=50,epochs=5",
}
ONE_PARTY = {
    **PARTIES,
    "attack": [
        "release_clustering",
        "release_clustering:labeled=4,epoch=pooled",
        "release_clustering:on=smashed,labeled=4,epoch=-1",
        "model_completion",
    ],
}
"""As `PARTIES`, with attacks on the gradients of one epoch and of all epochs, and on the party's smashed data."""
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "defense": "grad_perturb"},
    "digits, max-norm": {
        "dataset": "digits",
        "defense": "max_norm",
        "attack": ["release_clustering", "release_clustering:on=line", "exploit", "model_completion"],
    },
    "digits, confusional labels": {
        "dataset": "digits",
        "defense": "confusional_labels",
        "attack": ["release_clustering", "exploit", "model_completion"],
    },
    "digits, 0 against 1": {"dataset": "digits:classes=[0,1]", "defense": "none"},
    "digits, U-shape": {**U_SHAPE, "dataset": "digits", "defense": "none"},
    "digits, U-shape, max-norm": {
        **U_SHAPE,
        "dataset": "digits",
        "defense": "max_norm",
        "attack": [*U_SHAPE["attack"], "release_clustering:on=line"],
    },
    "digits, U-shape, known last layer": {
        **U_SHAPE,
        "dataset": "digits",
        "defense": "max_norm",
        "attack": ["tail_inversion", "tail_inversion:on=line"],
    },
    "texts, next token, known last layer": {
        **U_SHAPE,
        "dataset": "definitions",
        "model": "hf:path={folder},block=1,task=next_token",
        "defense": "gaussian_noise:sigma=2",
        "attack": ["tail_inversion"],
    },
    "digits, vertical": {**PARTIES, "parts": []},
    "digits, vertical, one of two parties": PARTIES,
    **{f"digits, one of two parties, cut {cut}": {**ONE_PARTY, "model": f"vertical:cut={cut}"} for cut in (1, 2, 3)},
    "digits, one of two parties, its pixels alone": {**PARTIES, "attack": []},
    "digits, one of two parties, decorrelated labels": {
        **ONE_PARTY,
        "attack": [attack for attack in ONE_PARTY["attack"] if "pooled" not in attack],
        "defense": [f"split_parts+label_decorrelation:weight={weight}" for weight in (0.1, 0.3)],
    },
    "digits, one of two parties, FedPass": {
        **PARTIES,
        "attack": ["release_clustering", "model_completion"],
        "defense": ["fedpass:sigma=0.0+split_parts", "fedpass+split_parts"],
    },
    "digits, one of two parties, all epochs": {
        **PARTIES,
        "attack": ["release_clustering:labeled=4,epoch=pooled"],
        "defense": ["split_parts+label_decorrelation", "fedpass+split_parts"],
    },
    "CIFAR-10": {**U_SHAPE, "protocol": "sl", "dataset": "cifar10", "defense": "none"},
    "CIFAR-10, U-shape": {**U_SHAPE, "dataset": "cifar10", "defense": "none"},
}
ATTACKS = (
    "release_clustering",
    "exploit",
    "exploit:start=random,epochs=60",
    "gradient_matching:epoch=0",
    "release_clustering:on=smashed,labeled=4,epoch=-1",
    "model_completion",
)
MEASURED = ("label_accuracy", "cluster_accuracy", "auc")
ALONE = "model_completion on own images"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `label_inference`.

    Attributes:
        seeds: seeds of data, weights and attacks.
        private: number of the client's records.
        epochs: epochs of the model's training.
        data_root: folder with CIFAR-10.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    private: int = 800
    epochs: int = 5
    data_root: str | None = None


def main(given: Options) -> None:
    """Run what is missing and print each line."""
    done = {(line["setting"], line["seed"]) for line in read_lines(RUNS)}
    where = machine(torch.get_num_threads())
    for seed in given.seeds:
        for setting in SETTINGS:
            if (setting, seed) in done:
                continue
            for line in attacked(setting, given, seed):
                append(RUNS, {"setting": setting, "seed": seed, **line, **where}, show=True)


def attacked(setting: str, given: Options, seed: int) -> list[dict[str, object]]:
    """Lines of results for one setting: each attack on each defense and, for default attacks, on the bare images."""
    size = f"small:private={given.private},auxiliary=200,test=500,victims=50,epochs={given.epochs}"
    root = {"data_root": given.data_root} if SETTINGS[setting]["dataset"] == "cifar10" else {}
    settings = {"attack": list(ATTACKS), "budget": size, **SETTINGS[setting], "seed": seed, **root}
    lines = audited(settings) if settings["attack"] else []
    return lines if SETTINGS[setting].get("attack") else [*lines, images_alone(settings, seed)]


def audited(settings: dict[str, Any]) -> list[dict[str, object]]:
    """Run an audit with these settings; a line of results for each attack on each defense."""
    lines: list[dict[str, object]] = []
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(GPT2), encoding="utf-8")
        settings |= {"model": settings["model"].format(folder=folder)} if "model" in settings else {}
        for row in run_audit(**settings, threads=torch.get_num_threads(), out=f"{folder}/run").rows:
            if row.status != "done":
                raise ValueError(f"{row.defense} / {row.attack}: {row.status}: {row.reason}")
            accuracy = None if row.accuracy is None else row.accuracy.value
            values = {name: one.value for name in MEASURED if (one := row.answers.get(name)) is not None}
            lines.append({"defense": row.defense, "attack": row.attack, **values, "accuracy": accuracy})
    return lines


def images_alone(settings: dict[str, Any], seed: int) -> dict[str, object]:
    """A line for model completion on the client's images themselves (or the first party's half of each image)."""
    private = prepare(resolve(settings | {"attack": list(ATTACKS)}), seed, torch.device("cpu")).splits.private
    known = first_of_each(private.y, 4)
    held = private.x[..., : private.x.shape[-1] // 2] if settings.get("parts") else private.x
    observation = LabelObservation(
        image_shape=tuple(held.shape[1:]),
        batch_size=50,
        views=[View(round=0, smashed=held)],
        lower=nn.Flatten(),
        auxiliary=held,
        known_rows=known,
        known_labels=private.y[known],
        label_shares=private.y.bincount() / len(private),
    )
    found = ModelCompletion().run(observation, Generator().manual_seed(seed))
    assert found.of_labels is not None
    asked = ~torch.isin(torch.arange(len(private)), known)
    truth, guesses = private.y[asked].numpy(), found.of_labels.argmax(1)[asked].numpy()
    return {
        "defense": "no client segment",
        "attack": ALONE,
        "label_accuracy": label_accuracy(truth, guesses).value,
        "cluster_accuracy": cluster_accuracy(truth, guesses).value,
        "auc": pooled_auc(found.values[asked].double().numpy(), truth == 1).auc.value,
    }
