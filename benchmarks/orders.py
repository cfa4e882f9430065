"""Attacks on the order of tokens behind patch shuffling, side by side: what they recover and what they take.

    python benchmarks/run.py orders
    python benchmarks/run.py orders --data-root ROOT --set cifar10 --victims 100 --auxiliary 600 --batch 10

Digits are those of `permutation_decoder`: 4,000 for the attack, 49 tokens of 4 pixels a side; ROOT and other sets are
as in `jigsaw`, 64 tokens. The edge is a frozen random ViT without positions, cut after its first block, and known to
the adversary. Each finished run is one line of `results/orders/joint.jsonl`; a run whose line is there is not repeated.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import numpy as np
import torch
from jigsaw import load
from run import machine
from torch import Generator, Tensor

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.scores.image import mse, ssim
from privkit.audit.order_scores import arrangement_scores, true_arrangement
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import Digits
from privkit.models.vit import Vit
from privkit.registry import parse

RUNS = Path(__file__).parent / "results" / "orders" / "joint.jsonl"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags.

    Attributes:
        size: side to which faces are resampled.
    """

    attacks: tuple[str, ...] = ("jigsaw:pairs=joint,epochs=12,kicks=30", "jigsaw:epochs=36,kicks=30")
    seeds: tuple[int, ...] = (0, 1, 2)
    data_root: Path | None = None
    set: str = "digits"
    size: int = 64
    victims: int = 500
    auxiliary: int = 4000
    batch: int = 50


def split(given: Options) -> tuple[Tensor, Tensor]:
    """The adversary's own images, and the victims."""
    if given.set == "digits":
        pool = Digits().open(None, download=False, train_images=5_000).train
        x = pool.take(np.random.default_rng(0).permutation(len(pool))).x
    elif given.data_root is None:
        raise ValueError(f"{given.set} needs --data-root ROOT")
    else:
        x = load(given.data_root, given.set, given.size)
    return x[: given.auxiliary], x[given.auxiliary : given.auxiliary + given.victims]


def measured(attack: str, seed: int, own: Tensor, victims: Tensor, batch: int) -> dict[str, float]:
    """What one attack recovers of the victims."""
    shape = (victims.shape[1], victims.shape[2], victims.shape[3])
    spec = Vit(patch=4) if shape[1] == 28 else Vit(width=192, grid=8)
    lower = spec.build(Images(shape=shape), 10, positions=False, seed=seed).lower.eval().requires_grad_(False)
    smashed = torch.cat([lower(part) for part in victims.split(batch)]).unflatten(0, (-1, batch))
    sent, receipt = PatchShuffle().apply(smashed, torch.zeros(smashed.shape[:2]), Generator().manual_seed(seed))
    observation = ImageObservation(
        image_shape=shape,
        batch_size=batch,
        auxiliary=own,
        lower=lower,
        views=[View(round=0, smashed=sent.smashed.flatten(0, 1), messages=len(smashed))],
    )
    began = process_time()
    guess = parse("attacks", attack).spec.run(observation, Generator().manual_seed(seed))
    row = {"cpu_seconds": process_time() - began}
    for name, measure in (("ssim", ssim), ("mse", mse)):
        row[name] = float(measure(victims.numpy(), guess.images.numpy(), data_range=1.0).mean())
    truth = true_arrangement(receipt)
    if guess.permutation is not None and truth is not None:
        scores = arrangement_scores(guess.permutation.source, truth, batch=batch)
        for name, one in (("direct", scores.direct), ("neighbor", scores.neighbor), ("membership", scores.membership)):
            row |= {} if one is None else {name: one.share.value}
        row |= {"bits_left": scores.bits_left, "bits_before": scores.bits_before}
    return row


def main(given: Options) -> None:
    """Append a line for each run that is not there yet, and print it."""
    own, victims = split(given)
    done = [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []
    options = {name: value for name, value in asdict(given).items() if name in ("set", "victims", "auxiliary", "batch")}
    for seed in given.seeds:
        for attack in given.attacks:
            key = {"attack": attack, "seed": seed, **options}
            if any(key.items() <= row.items() for row in done):
                continue
            row = key | measured(attack, seed, own, victims, given.batch) | machine(torch.get_num_threads())
            with RUNS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{attack} seed {seed}: SSIM {row['ssim']:.3f}, MSE {row['mse']:.4f}, {row['cpu_seconds']:.0f} CPU s")
