"""Measure label leakage through the gradients that clients receive: AUC of the scores norm and cosine, by epoch.

    python benchmarks/run.py label_leak --data-root data --epochs 5 --seeds 0 1 2 --figures docs/figures

The setting is that of DP-CutMixSL's Figs. 8-10: LeNet-5 cut after the second convolution, MNIST digits 0 and 4, two
clients with 1,000 images each. The paper's §5 trains by AdamW at rate .001 with batches of 128, and gives no epochs;
the defaults here are rate .002, batches of 50 and five epochs. A client gets one gradient for each of its images, which
some settings mix with the other client's image of the same number. From each gradient it guesses the label of its own
image ("own", which an eavesdropper would learn) and of the other client's image ("peer", which an honest-but-curious
client would learn).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from cells import mean_cell
from torch import Generator, Tensor, nn

from privkit.attacks.goals.labels import LabelObservation
from privkit.attacks.labels.label_leak import LabelLeak
from privkit.attacks.scores.leak import Leak, per_batch_auc, pooled_auc, roc_points
from privkit.defenses.base import Defense
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.none import NoDefense
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.domains.images.vision import Mnist
from privkit.models.convolutional import LENET5
from privkit.reports.charts import Told, score_charts
from privkit.reports.page import standalone
from privkit.reports.tables import interval
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients, SplitProtocol, evaluate
from privkit.wire.transcript import Transcript

SHAPE, CLIENTS = (1, 28, 28), 2
SETTINGS: dict[str, tuple[Defense, SplitProtocol]] = {
    "PSL: own gradient": (NoDefense(), SplitProtocol(clients=CLIENTS)),
    "SFL: averaged gradient": (NoDefense(), SplitProtocol(clients=CLIENTS, average="round", gradient="average")),
    "CutMixSL, broadcast, lower averaged": (
        RandomCutMix(patch=2),
        SplitProtocol(clients=CLIENTS, average="round", gradient="broadcast"),
    ),
    "CutMixSL, unicast": (RandomCutMix(patch=2), SplitProtocol(clients=CLIENTS)),
}
ATTACKS: dict[str, LabelLeak] = {
    "norm": LabelLeak(),
    "cosine, mean": LabelLeak(score="cosine"),
    "cosine, one known": LabelLeak(score="cosine", reference="labeled"),
    "cosine, own labels": LabelLeak(score="cosine", reference="labeled"),
    "cosine, own labels, less own part": LabelLeak(score="cosine", reference="labeled", less_own=True),
    "norm, lower weights": LabelLeak(at="lower"),
    "cosine, lower weights": LabelLeak(score="cosine", at="lower"),
}

SHOWN = ("norm", "cosine, mean", "cosine, one known")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `label_leak`.

    Attributes:
        data_root: folder with MNIST/raw.
        settings: names of the measured defenses and protocols, as in `SETTINGS`.
        figures: folder for the first seed's ROC curves and histograms (Figs. 8-10); None draws no figures.
    """

    data_root: Path
    epochs: int = 5
    batch: int = 50
    learning_rate: float = 0.002
    seeds: tuple[int, ...] = (0,)
    settings: tuple[str, ...] = tuple(SETTINGS)
    figures: Path | None = None


def zeros_and_fours(root: Path, count: int, seed: int, train: bool) -> Batch:
    """`count` images of MNIST in random order: half zeros (label 0), half fours (label 1)."""
    pools = Mnist().open(root, download=False, train_images=60_000)
    pool: Any = pools.train if train else pools.test
    draws = np.random.default_rng(seed)
    rows = [draws.permutation(np.flatnonzero(np.asarray(pool.labels) == digit))[: count // 2] for digit in (0, 4)]
    batch = pool.take(draws.permutation(np.concatenate(rows)))
    return Batch(x=batch.x, y=(batch.y == 4).long(), ids=batch.ids)


def scored(transcript: Transcript, edge: Clients, images: Tensor) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Run each attack on both clients' gradients of the newest round: attack, target, scores and true labels."""
    kept = transcript.rounds.pop()
    labels = kept.labels.view(CLIENTS, -1)
    for client, view in enumerate(kept.received):
        asked = {"own": labels[client], "peer": labels[1 - client]}
        held = LabelObservation(
            image_shape=SHAPE, batch_size=labels.numel(), lower=edge.lowers.copy(client), auxiliary=images[client]
        )
        everything = torch.arange(len(asked["own"]))
        for name, attack in ATTACKS.items():
            for target, truth in asked.items():
                knowledge, judged = held, everything
                if name == "cosine, one known":
                    known = truth.nonzero()[:1].flatten()
                    if not len(known):
                        continue
                    knowledge = replace(held, known_rows=known, known_labels=truth[known])
                    judged = everything[everything != known]
                elif "own labels" in name:
                    if target == "own":  # this attack knows the client's own labels
                        continue
                    own = asked["own"]
                    knowledge = replace(held, known_rows=everything, known_labels=own, own_labels=own)
                yield (
                    name,
                    target,
                    attack.run(replace(knowledge, views=[view]), Generator()).values[judged],
                    truth[judged],
                )


def run(
    setting: str, given: Options, seed: int
) -> tuple[dict[tuple[str, str, int], list[Leak]], float, dict[str, Told]]:
    """Train once: AUCs by attack, target and epoch; the test accuracy; and the last epoch's scores of own labels."""
    defense, protocol = SETTINGS[setting]
    train = zeros_and_fours(given.data_root, 1_000 * CLIENTS, seed, True)
    model = LENET5.build(Images(shape=SHAPE), 2, positions=True, seed=seed)
    edge = Clients.build(model.lower, defense, Images(shape=SHAPE), classes=2, seed=seed, protocol=protocol)
    upper: nn.Module = edge.fitted(model.upper, Images(shape=SHAPE), seed)
    optimizer = torch.optim.AdamW([*edge.parameters(), *upper.parameters()], lr=given.learning_rate)
    transcript, weights = Transcript(), torch.full((CLIENTS,), 1 / CLIENTS)
    leaks: dict[tuple[str, str, int], list[Leak]] = {}
    told: dict[str, Told] = {}
    for epoch in range(given.epochs):
        edge.train()
        upper.train()
        draws = Generator().manual_seed(derive(seed, "train", epoch))
        order = torch.stack([1_000 * c + torch.randperm(1_000, generator=draws) for c in range(CLIENTS)])
        rows: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {}
        for step, part in enumerate(order.split(given.batch, 1)):
            optimizer.zero_grad(set_to_none=True)
            images = train.x[part]
            with seeded(torch.device("cpu"), seed):
                transcript(edge, upper, images, train.y[part], draws, shares=weights, number=step)
            for name, target, values, labels in scored(transcript, edge, images):
                rows.setdefault((name, target), []).append((values, labels))
            optimizer.step()
            if protocol.average == "round":
                edge.lowers.average(weights)
        for key, parts in rows.items():
            scores, truth = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
            batches = np.repeat(np.arange(len(parts)), [len(part) for part, _ in parts])
            leaks[(*key, epoch)] = [pooled_auc(scores, truth), per_batch_auc(scores, truth, batches)]
            if key[1] == "own":
                false, true, _ = roc_points(scores, truth)
                told[key[0]] = Told(
                    positive=scores[truth == 1],
                    negative=scores[truth == 0],
                    false=false,
                    true=true,
                    auc=leaks[(*key, epoch)][0].auc.value,
                )
    test = zeros_and_fours(given.data_root, 1_000, seed, False)
    return leaks, evaluate(edge, upper, test, batch_size=100, seed=seed).accuracy.value, told


def cell(leaks: list[Leak]) -> str:
    """Cell of the table: one AUC with its interval, or the mean over seeds with a Student interval."""
    if len(leaks) == 1:
        return interval(leaks[0].auc)
    return mean_cell([leak.auc.value for leak in leaks])


def main(given: Options) -> None:
    """Print the tables."""

    print(
        f"\nLeNet-5 cut after conv2, MNIST 0 against 4, {CLIENTS} clients of 1,000, batch {given.batch}, AdamW "
        f"{given.learning_rate:g}, seeds {given.seeds}; AUC of label 4, below 1/2 leaks as much as above\n"
    )
    print("| setting | accuracy | target | score | epoch | AUC, pooled | AUC, mean of batches |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for setting in given.settings:
        runs = [run(setting, given, seed) for seed in given.seeds]
        accuracy = mean(value for _, value, _ in runs)
        if given.figures is not None:
            given.figures.mkdir(parents=True, exist_ok=True)
            lines = [(f"{setting} / {name}, seed {given.seeds[0]}", score_charts(runs[0][2][name])) for name in SHOWN]
            (given.figures / f"label_leak_{list(SETTINGS).index(setting)}.svg").write_text(standalone(lines))
        for name, target, epoch in sorted(runs[0][0], key=lambda key: (key[1], list(ATTACKS).index(key[0]), key[2])):
            leaks = [of_run[name, target, epoch] for of_run, _, _ in runs]
            cells = " | ".join(cell([leak[kind] for leak in leaks]) for kind in (0, 1))
            print(f"| {setting} | {accuracy:.3f} | {target} | {name} | {epoch + 1} | {cells} |", flush=True)
