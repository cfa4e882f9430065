"""The jigsaw attack, which puts shuffled patches back in order: on pixels of pictures, and on tokens of a frozen
network.

    python benchmarks/run.py jigsaw --part pictures
    python benchmarks/run.py jigsaw --part tokens --data-root ROOT --set cifar10

"pictures" uses scikit-image's pictures. "tokens" uses a random ViT or T2T-ViT on the images in ROOT:
cifar-10-batches-py, or with `--set NAME` a folder that holds one folder of pictures per person. An image has 64 tokens:
patches of 4×4 pixels on CIFAR-10, and of 8×8 on faces of 64×64 pixels. The adversary knows the client's segment (`--box
white`) or can only query it (`--box black`); the attack on the spectral shuffle needs `white`.

Confidence limits are Clopper–Pearson's at 95 %, as if pieces or pairs were independent. The parentheses after them show
a lower limit that is valid under any dependence, and the accuracy if every token stays at its place.
"""

import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Generator, Tensor, nn

from privkit.attacks.base import QueryResult, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.order.assembly import Frame, Puzzles, best_arrangement, starts
from privkit.attacks.order.jigsaw import Jigsaw
from privkit.attacks.order.piece_network import SHARPNESS
from privkit.attacks.order.piece_solver import edge_ratios, log_odds
from privkit.attacks.patches import patchify
from privkit.attacks.scores.order import direct_accuracy, equal_tokens, neighbor_accuracy
from privkit.audit.order_scores import OrderAccuracy, arrangement_scores, true_arrangement
from privkit.defenses.base import Defense
from privkit.domains.images.domain import Images
from privkit.domains.images.vision import Cifar10
from privkit.models.t2t import T2tVit
from privkit.models.vit import Vit
from privkit.parts.registry import parse
from privkit.reports.tables import interval
from privkit.training.known_form import PublicTransform

PICTURES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg", "ihc.png", "motorcycle_left.png")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `jigsaw`.

    Attributes:
        part: "pictures" (pixels) or "tokens".
        kicks: number of rounds in which the puzzle search destroys and repairs part of the solution.
        set: image set: "cifar10", or a folder in `data_root`.
        size: side in pixels to which faces are resampled.
        width: token size.
        keep: share of the tokens that batch shuffling keeps.
        pairs: how the attack compares tokens; see `privkit describe jigsaw`.
        box: whether the adversary knows the client's segment ("white") or only queries it ("black").
        batch: number of images in a batch that batch shuffling mixes.
        cut: the cut layer; by default "block1" of the ViT and "tokens" of the T2T-ViT.
    """

    part: Literal["pictures", "tokens"]
    seeds: tuple[int, ...] = (0,)
    kicks: int = 100
    data_root: Path | None = None
    set: str = "cifar10"
    size: int = 64
    model: tuple[Literal["vit", "t2t"], ...] = ("vit", "t2t")
    width: int = 192
    cut: str | None = None
    defense: tuple[str, ...] = ("patch_shuffle", "batch_shuffle", "spectral_shuffle")
    keep: float = 0.4
    pairs: Literal["learned", "joint", "edges"] = "learned"
    box: Literal["white", "black"] = "white"
    epochs: int = 20
    victims: int = 100
    auxiliary: int = 600
    batch: int = 10


def pictures(side: int, kicks: int, seed: int) -> None:
    """Shuffle the pieces of scikit-image's color pictures (224×224), solve them, and print the accuracies."""
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    shown = [np.asarray(ImageOps.fit(Image.open(folder / name).convert("RGB"), (224, 224))) for name in PICTURES]
    x = torch.from_numpy(np.stack(shown)).permute(0, 3, 1, 2).float() / 255
    pieces, grid = patchify(x, side), 224 // side
    n, t = pieces.shape[:2]
    order = torch.rand(n, t, generator=Generator().manual_seed(seed)).argsort(1)
    released = pieces.gather(1, order.unsqueeze(2).expand_as(pieces))
    began = time.process_time()
    pairs = log_odds(SHARPNESS * edge_ratios(released.unflatten(2, (side, side, 3)))).double().numpy()
    puzzles = Puzzles(unary=np.zeros((n, t, t)), pairs=pairs, frame=Frame(rows=grid, columns=grid))
    guess = torch.from_numpy(best_arrangement(puzzles, starts(puzzles), kicks, np.random.default_rng(seed)).argsort(1))
    seconds = (time.process_time() - began) / n
    accuracies = [
        measure(guess, order, batch=1, kinds=kinds)
        for measure in (neighbor_accuracy, direct_accuracy)
        for kinds in (None, equal_tokens(released, 1))
    ]
    print(
        f"{t} pieces of {side} pixels, {seconds:.2f} CPU seconds a picture; neighbor, direct; with equal pieces as one"
    )
    for name, a, b, c, d in zip(PICTURES, accuracies[0], accuracies[2], accuracies[1], accuracies[3], strict=True):
        print(f"  {name:22} {a:.3f} {b:.3f}   {c:.3f} {d:.3f}")
    print("  {:22} {:.3f} {:.3f}   {:.3f} {:.3f}".format("mean", *(accuracies[i].mean() for i in (0, 2, 1, 3))))


def load(root: Path, name: str, size: int) -> Tensor:
    """Images in an order drawn by seed 0; the pictures of a person stay together."""
    if name == "cifar10":
        pool = Cifar10(batches=1).open(root, download=False, train_images=5000).train
        return pool.take(np.random.default_rng(0).permutation(len(pool))[:5000]).x
    people = sorted(path for path in (root / name).iterdir() if path.is_dir())
    files = [
        file for row in np.random.default_rng(0).permutation(len(people)) for file in sorted(people[row].iterdir())
    ]
    grey = Image.open(files[0]).mode == "L"
    shown = [ImageOps.fit(Image.open(file).convert("L" if grey else "RGB"), (size, size)) for file in files]
    x = torch.from_numpy(np.stack([np.asarray(one) for one in shown])).float() / 255
    return (x.unsqueeze(1) if grey else x.permute(0, 3, 1, 2)).contiguous()


def edge(args: Options, model: str, shape: tuple[int, int, int], seed: int) -> nn.Module:
    """A frozen random client without position embedding, which sends 8×8 tokens per image."""
    spec: Vit | T2tVit = Vit(width=args.width, heads=4, grid=8, cut=args.cut or "block1")
    if model == "t2t":
        spec = T2tVit(width=args.width, heads=4, depth=2, stride=shape[1] // 32, cut=args.cut or "tokens")
    return spec.build(Images(shape=shape), 10, positions=False, seed=seed).lower.eval().requires_grad_(False)


def shown(accuracy: OrderAccuracy | None) -> str:
    """An accuracy with its limits, its lower limit under any dependence, and the accuracy without an attack."""
    if accuracy is None:
        return "none"
    return f"{interval(accuracy.share)} (≥ {accuracy.sound_low:.3f}; left {accuracy.left_alone:.3f})"


def tokens(args: Options) -> None:
    """Attack the tokens of frozen random clients, and print one row per model, defense and seed."""
    x = load(args.data_root, args.set, args.size)
    victims, auxiliary = x[: args.victims], x[args.victims : args.victims + args.auxiliary]
    shape = (x.shape[1], x.shape[2], x.shape[3])
    for model, name, seed in product(args.model, args.defense, args.seeds):
        defense = parse("defenses", f"{name}:keep={args.keep}" if name == "batch_shuffle" else name).spec
        lower = edge(args, model, shape, seed)

        def release(
            images: Tensor, draws: Generator, lower: nn.Module = lower, defense: Defense = defense
        ) -> tuple[View, Tensor]:
            smashed = lower(images).unflatten(0, (-1, args.batch))
            sent, receipt = defense.apply(smashed, torch.zeros(smashed.shape[:2]), draws)
            truth = true_arrangement(receipt)
            assert truth is not None
            return View(round=0, smashed=sent.smashed.flatten(0, 1), messages=len(smashed)), truth

        def query(images: Tensor, draws: Generator, release: Any = release) -> QueryResult:
            return QueryResult.row_by_row(release(images, draws)[0])

        view, truth = release(victims, Generator().manual_seed(seed))
        known = nn.Sequential(lower, PublicTransform(defense))  # known to all: the defense's transform
        knowledge = ImageObservation(
            image_shape=shape,
            batch_size=args.batch,
            auxiliary=auxiliary,
            query=query,
            lower=known if args.box == "white" else None,
        )
        attack = Jigsaw(pairs=args.pairs, epochs=args.epochs, kicks=args.kicks)
        began = time.process_time()
        reconstruction = attack.run(replace(knowledge, views=[view]), Generator().manual_seed(seed + 1))
        seconds = time.process_time() - began
        assert reconstruction.permutation is not None
        scores = arrangement_scores(reconstruction.permutation.source, truth, batch=args.batch)
        error, floor = (
            (guess - victims).square().mean().item()
            for guess in (reconstruction.images, auxiliary.mean(0, keepdim=True))
        )
        bits = "–" if scores.bits_left is None else f"{scores.bits_left:.1f}"
        accuracies = " | ".join(shown(one) for one in (scores.direct, scores.neighbor, scores.membership))
        print(
            f"| {args.set} | {model} | {name} | {seed} | {accuracies} "
            f"| {bits} of {scores.bits_before:.1f} per {scores.unit} "
            f"| {error:.4f} (mean image {floor:.4f}) | {seconds:.0f} |",
            flush=True,
        )


def main(args: Options) -> None:
    if args.part == "pictures":
        for side in (28, 16):
            pictures(side, args.kicks, args.seeds[0])
    elif args.data_root is None:
        raise ValueError("tokens needs --data-root ROOT")
    else:
        tokens(args)
