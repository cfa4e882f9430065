"""Attack shuffled fields of table rows: recover their order and cells, on Criteo with an untrained, public DIFM.

    python benchmarks/run.py fields --data-root ROOT

ROOT contains Criteo's train.txt in the official format. The adversary has the first rows, and the last rows are
attacked. A seed draws the weights and the defense's random numbers; brackets show 95 % Student intervals over seeds.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from cells import mean_cell
from torch import Generator

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.order.field_order import FieldOrder
from privkit.attacks.scores.order import direct_accuracy, equal_tokens
from privkit.audit.order_scores import true_arrangement
from privkit.domains.tables.sets import Criteo
from privkit.models.tables import DIFM
from privkit.parts.registry import parse

DEFENSES = (
    "none",
    "patch_shuffle",
    "gaussian_noise:sigma=0.0316,clip=none",
    "gaussian_noise:sigma=1,clip=none",
    "laplace_noise:scale=0.0224,clip=none",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line flags of the benchmark `fields`."""

    data_root: Path
    rows: int = 200
    victims: int = 60
    seeds: tuple[int, ...] = (0, 1, 2)
    cut: tuple[Literal["embedding", "vector", "factors"], ...] = ("vector", "factors")
    defense: tuple[str, ...] = DEFENSES


@torch.no_grad()
def measured(options: Options, cut: str, defense: str, by: Any, seed: int) -> tuple[float | None, float, float]:
    """Share of fields in their true order (None: not measured), MSE of numeric cells, share of right categories."""
    pool = Criteo(rows=options.rows, scale="linear").open(options.data_root, download=False, train_images=1).train
    rows, domain = pool.take(np.arange(len(pool))).x, pool.domain
    own, private = rows[: -options.victims], rows[-options.victims :]
    lower = replace(DIFM, cut=cut).build(domain, 2, positions=False, seed=seed).lower
    smashed = lower(private).unsqueeze(0)
    draws = Generator().manual_seed(seed)
    release, receipt = parse("defenses", defense).spec.apply(smashed, torch.zeros(1, len(private)), draws)
    seen = release.smashed.flatten(0, 1)
    observation = ImageObservation(
        image_shape=(len(domain.column_sizes),),  # type: ignore[arg-type]
        columns=domain.column_sizes,
        batch_size=len(private),
        views=[View(round=0, smashed=seen)],
        auxiliary=own,
        lower=lower,
    )
    found = FieldOrder(by=by).run(observation, Generator())
    scores, truth = domain.scores(private, found.images), true_arrangement(receipt)
    assert found.permutation is not None
    order = (
        None
        if truth is None
        else direct_accuracy(
            found.permutation.source, truth, batch=len(private), kinds=equal_tokens(seen, len(private))
        ).mean()
    )
    return None if order is None else float(order), scores["dense_mse"].mean(), scores["categories"].mean()


def main(options: Options) -> None:
    """Print one row per cut, defense and rule of the attack."""
    print("cut,defense,by,order,dense MSE,categories")
    for cut in options.cut:
        for defense in options.defense:
            for by in ("mean", "token"):
                runs = [measured(options, cut, defense, by, seed) for seed in options.seeds]
                cells = []
                for values in zip(*runs, strict=True):
                    cells.append("—" if None in values else mean_cell(values, 4))
                print(f'{cut},"{defense}",{by},' + ",".join(f'"{cell}"' for cell in cells))
