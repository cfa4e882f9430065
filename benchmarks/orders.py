"""Compare attacks that recover the order of shuffled tokens: their success and their CPU time.

    python benchmarks/run.py orders
    python benchmarks/run.py orders --data-root ROOT --set cifar10 --victims 100 --auxiliary 600 --batch 10

The default attacks patch shuffling on the digits: 4,000 images for the attack, 49 tokens of 4×4 pixels per image. Other
image sets in ROOT are those of the benchmark `jigsaw`, with 64 tokens per image. The client's segment is a frozen
random ViT without position embedding, cut after its first block; the adversary knows it. A finished run is one line of
`results/orders/joint.jsonl` and is not repeated.

    python benchmarks/run.py orders --part positions

audits a trained ViT under patch shuffling, with and without a position embedding below the shuffle: `positions.jsonl`.

    python benchmarks/run.py orders --part message

audits batch shuffling: the jigsaw assigns tokens to images in closed form, without training (`epochs=0`), and after
training its networks for 20 or 40 epochs: `message.jsonl`.

    python benchmarks/run.py orders --part peer --beside DRAG/runner/data_reconstruction/defense.py

compares `drag_reorder` with DRAG's released code, which is not part of this repository, on the same random tokens.
"""

import ast
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any, Literal

import torch
from audits import defended, timed_rows
from cells import append, read_lines
from digits import scores, shuffled_digits
from jigsaw import load
from run import machine
from scipy.optimize import linear_sum_assignment
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.order.drag_reorder import reordered
from privkit.attacks.order.piece_solver import put
from privkit.audit.order_scores import arrangement_scores, true_arrangement
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains.images.domain import Images
from privkit.models.vit import Vit
from privkit.parts.registry import parse

RESULTS = Path(__file__).parent / "results" / "orders"
RUNS, POSITIONS, MESSAGE = (RESULTS / f"{name}.jsonl" for name in ("joint", "positions", "message"))
SHARES = ("direct", "neighbor", "membership")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `orders`.

    Attributes:
        part: what to measure; see the benchmark's description.
        set: image set: "digits", "cifar10", or a folder in `data_root`.
        size: side in pixels to which faces are resampled.
        beside: path of the file with DRAG's `_reorder_tokens`.
    """

    part: Literal["joint", "positions", "message", "peer"] = "joint"
    attacks: tuple[str, ...] = (
        "jigsaw:pairs=joint,epochs=12,kicks=30",
        "jigsaw:epochs=36,kicks=30",
        "drag_reorder",
        "sara:epochs=4",
    )
    seeds: tuple[int, ...] = (0, 1, 2)
    data_root: Path | None = None
    set: str = "digits"
    size: int = 64
    victims: int = 500
    auxiliary: int = 4000
    batch: int = 50
    beside: Path | None = None


def split(given: Options) -> tuple[Tensor, Tensor]:
    """The adversary's own images, and the victims."""
    if given.set == "digits":
        x = shuffled_digits().x
    elif given.data_root is None:
        raise ValueError(f"{given.set} needs --data-root ROOT")
    else:
        x = load(given.data_root, given.set, given.size)
    return x[: given.auxiliary], x[given.auxiliary : given.auxiliary + given.victims]


def measured(attack: str, seed: int, own: Tensor, victims: Tensor, batch: int) -> dict[str, float]:
    """Attack patch-shuffled victims: CPU seconds, SSIM, MSE and, if the attack finds an order, its accuracies."""
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
    row["mse"], row["ssim"] = scores(guess.images, victims)
    truth = true_arrangement(receipt)
    if guess.permutation is not None and truth is not None:
        found = arrangement_scores(guess.permutation.source, truth, batch=batch)
        for name in SHARES:
            row |= {} if (one := getattr(found, name)) is None else {name: one.share.value}
        row |= {} if found.bits_left is None else {"bits_left": found.bits_left}
        row |= {"bits_before": found.bits_before}
    return row


def positions(given: Options) -> None:
    """Audit a trained model without position embedding, and one that keeps it."""
    budget = "smoke:private=400,auxiliary=600,test=500,victims=100,epochs=12,attack_epochs=4"
    for seed, defense in product(
        given.seeds, (f"patch_shuffle:{way}frozen_block=false" for way in ("", "positions=keep,"))
    ):
        audited(defense, ["drag_reorder", "jigsaw"], seed, budget, 20, POSITIONS)


def message(given: Options) -> None:
    """Audit batch shuffling by jigsaws with more or less training."""
    attacks = [f"jigsaw:epochs={epochs}" for epochs in (0, 20, 40)]
    for seed in given.seeds:
        audited("batch_shuffle:keep=0.4,frozen_block=false", attacks, seed, "small:victims=100", 50, MESSAGE)


def audited(defense: str, attacks: list[str], seed: int, budget: str, batch: int, path: Path) -> None:
    """Append a line for each attack that is not there yet, from one audit without baseline and control experiments."""
    done = [row["attack"] for row in read_lines(path) if row["seed"] == seed and row["defense"] == defense]
    missing = [attack for attack in attacks if attack not in done]
    if not missing:
        return
    asked = {"defense": defense, "attack": missing, "dataset": "digits", "budget": budget}
    asked |= {"training": {"batch_size": batch}, "threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as folder:
        rows = timed_rows(defended(asked, seed), Path(folder) / "run")
    found = []
    for name, (row, seconds) in zip(missing, rows, strict=True):
        if row.status != "done" or row.certificate is None or row.accuracy is None:
            raise ValueError(f"{row.defense} / {row.attack}, seed {row.seed}: {row.status} {row.reason}")
        told = {"defense": defense, "attack": name, "seed": seed, "proven": row.certificate.kind}
        told |= {"accuracy": row.accuracy.value, "cpu_seconds": seconds}
        told |= {score: row.recovered["unaligned"][score].value for score in ("ssim", "mse")}
        told |= {share: row.answers[share].value for share in SHARES if share in row.answers}
        found.append(told | machine(torch.get_num_threads()))
        print(f"{defense} {name} seed {seed}: SSIM {told['ssim']:.3f}, {told['cpu_seconds']:.0f} CPU s")
    append(path, *found)


def peer(given: Options) -> None:
    """Compare the orders by DRAG's function and by ours, for one predictor and 200 random images of 49 tokens."""
    if given.beside is None:
        raise ValueError("peer needs --beside PATH of DRAG's defense.py")
    parsed = ast.parse(given.beside.read_text(encoding="utf-8"))
    parsed.body = [one for one in parsed.body if getattr(one, "name", "") == "_reorder_tokens"]
    names: dict[str, Any] = {"torch": torch, "nn": nn, "Tensor": Tensor, "Callable": Callable, "Path": Path}
    names["linear_sum_assignment"] = linear_sum_assignment
    exec(compile(parsed, str(given.beside), "exec"), names)
    torch.manual_seed(0)
    predictor = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 50)).requires_grad_(False)
    same = 0
    for _ in range(200):
        tokens = torch.randn(1, 50, 96)  # the first is a class token, for which DRAG's predictor has a column
        theirs = names["_reorder_tokens"](tokens, None, predictor)[0][:, 1:]
        logits = predictor(tokens[:, 1:])[:, :, 1:]
        ours = put(tokens[:, 1:], reordered(logits, torch.zeros(1, 49, dtype=torch.bool)), 1)
        same += int(torch.equal(theirs, ours))
    print(f"the same order for {same} of 200 images")


def main(given: Options) -> None:
    """Run the chosen part; for "joint", append and print a line for each missing run."""
    if given.part != "joint":
        {"positions": positions, "message": message, "peer": peer}[given.part](given)
        return
    own, victims = split(given)
    done = read_lines(RUNS)
    options = {name: value for name, value in asdict(given).items() if name in ("set", "victims", "auxiliary", "batch")}
    for seed in given.seeds:
        for attack in given.attacks:
            key = {"attack": attack, "seed": seed, **options}
            if any(key.items() <= row.items() for row in done):
                continue
            row = key | measured(attack, seed, own, victims, given.batch) | machine(torch.get_num_threads())
            append(RUNS, row)
            print(f"{attack} seed {seed}: SSIM {row['ssim']:.3f}, MSE {row['mse']:.4f}, {row['cpu_seconds']:.0f} CPU s")
