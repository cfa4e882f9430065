"""Jigsaw attack: raw pieces of scikit-image's pictures, and frozen random ViT tokens of CIFAR-10 and faces.

    python benchmarks/jigsaw.py pictures
    python benchmarks/jigsaw.py tokens --data ROOT --set cifar10 --patch 8 --defense batch_shuffle

ROOT holds cifar-10-batches-py, or a folder of picture folders, one a person (`--set NAME`).
Intervals are 95 % over images.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from scipy.stats import t as student
from torch import Generator, Tensor

from privkit.attacks.assembly import Frame, Puzzles, assemble
from privkit.attacks.base import Answer, Knowledge, View
from privkit.attacks.compatibility import SHARPNESS, edge_ratios, log_odds
from privkit.attacks.coordinates import starts
from privkit.attacks.decoders.patches import patchify
from privkit.attacks.jigsaw import Jigsaw
from privkit.attacks.puzzle import direct_accuracy, kinds_of, membership_accuracy, neighbor_accuracy
from privkit.data.vision import Cifar10
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.models.vit import Vit

PICTURES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg", "ihc.png", "motorcycle_left.png")


def pictures(side: int, kicks: int, seed: int) -> None:
    """Neighbor accuracy on shuffled pieces of each bundled color picture, center square at 224×224."""
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
    guess = torch.from_numpy(assemble(puzzles, starts(puzzles), kicks, np.random.default_rng(seed)).argsort(1))
    seconds = (time.process_time() - began) / n
    found = [
        measure(guess, order, batch=1, kinds=kinds)
        for measure in (neighbor_accuracy, direct_accuracy)
        for kinds in (None, kinds_of(released, 1))
    ]
    print(
        f"{t} pieces of {side} pixels, {seconds:.2f} CPU seconds a picture; neighbor, direct; with equal pieces as one"
    )
    for name, a, b, c, d in zip(PICTURES, found[0], found[2], found[1], found[3], strict=True):
        print(f"  {name:22} {a:.3f} {b:.3f}   {c:.3f} {d:.3f}")
    print("  {:22} {:.3f} {:.3f}   {:.3f} {:.3f}".format("mean", *(found[i].mean() for i in (0, 2, 1, 3))))


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


def interval(values: Tensor) -> str:
    """Mean and its 95 % interval over images."""
    half = student.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5
    return f"{values.mean():.3f} ± {half:.3f}"


def tokens(args: argparse.Namespace) -> None:
    """The attack on frozen random ViT tokens."""
    x = load(args.data, args.set, args.size)
    victims, auxiliary = x[: args.victims], x[args.victims : args.victims + args.auxiliary]
    grid = x.shape[2] // args.patch
    spec = Vit(width=args.width, heads=4, grid=grid, patch=args.patch, cut=args.cut)
    lower = spec.build(tuple(x.shape[1:]), 10, positions=False, seed=args.seed).lower.eval()
    defense = BatchShuffle(keep=args.keep) if args.defense == "batch_shuffle" else PatchShuffle()

    def release(images: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            sent, receipt = defense.apply(lower(images).unsqueeze(0), torch.zeros(1, len(images)), draws)
        rows = torch.arange(len(images)).unsqueeze(1)
        source = receipt.source[0] if isinstance(defense, BatchShuffle) else receipt.permutation[0] + grid**2 * rows
        return sent.smashed[0], source

    def query(images: Tensor, draws: Generator) -> Answer:
        members = torch.arange(len(images)).unsqueeze(1)
        return Answer(view=View(round=0, smashed=release(images, draws)[0]), members=members)

    draws = Generator().manual_seed(args.seed)
    sent = [release(part, draws) for part in victims.split(args.batch)]
    views = [View(round=i, smashed=smashed) for i, (smashed, _) in enumerate(sent)]
    knowledge = Knowledge(
        image_shape=tuple(x.shape[1:]),
        batch_size=args.batch,
        auxiliary=auxiliary,
        query=None if args.white_box else query,
        lower=lower if args.white_box else None,
    )
    attack = Jigsaw(
        pairs=args.pairs,
        epochs=args.epochs,
        kicks=args.kicks,
        keep=args.keep if args.white_box and args.defense == "batch_shuffle" else None,
    )
    began = time.process_time()
    found = attack.run(views, knowledge, Generator().manual_seed(args.seed + 1))
    seconds = time.process_time() - began
    assert found.arrangement is not None
    truth, guess = torch.cat([source for _, source in sent]), found.arrangement.source
    print(
        f"{args.set} {list(x.shape[1:])}, {grid**2} tokens of {args.patch} pixels, {args.cut}, {args.defense}, {attack}"
    )
    box = "white" if args.white_box else "black"
    print(f"  {box} box, {len(auxiliary)} auxiliary images, {len(victims)} victims in messages of {args.batch}")
    print(f"  {seconds:.0f} CPU seconds in all")
    kinds = kinds_of(torch.cat([view.smashed for view in views]), args.batch)
    for name, measure in (
        ("direct", direct_accuracy),
        ("neighbor", neighbor_accuracy),
        ("membership", membership_accuracy),
    ):
        accuracy, merged = (measure(guess, truth, batch=args.batch, kinds=k) for k in (None, kinds))
        print(f"  {name:11} {interval(accuracy)}   equal tokens as one {interval(merged)}")
    own = (truth // grid**2 == (torch.arange(len(truth)) % args.batch).unsqueeze(1)).double().mean(1)
    error, floor = ((guess - victims).square().mean((1, 2, 3)) for guess in (found.images, auxiliary.mean(0)))
    print(
        f"  own-image share released {own.mean():.3f}; MSE {interval(error)}, mean image {floor.mean():.3f}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("pictures", "tokens"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kicks", type=int, default=100)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", default="cifar10")
    parser.add_argument("--size", type=int, default=64, help="side to which faces are resampled")
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--cut", default="block1")
    parser.add_argument("--defense", choices=("patch_shuffle", "batch_shuffle"), default="patch_shuffle")
    parser.add_argument("--keep", type=float, default=0.4)
    parser.add_argument("--pairs", choices=("learned", "edges"), default="learned")
    parser.add_argument("--white-box", action="store_true")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--victims", type=int, default=30)
    parser.add_argument("--auxiliary", type=int, default=600)
    parser.add_argument("--batch", type=int, default=10)
    args = parser.parse_args()
    if args.part == "pictures":
        for side in (28, 16):
            pictures(side, args.kicks, args.seed)
    elif args.data is None:
        parser.error("tokens needs --data ROOT")
    else:
        tokens(args)


if __name__ == "__main__":
    main()
