"""A multi-layer perceptron on table rows, cut after any of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from privkit.constraints import Count
from privkit.domains.tables.domain import Tables
from privkit.models.base import Depth, NamedCuts, SplitModel
from privkit.torch_utils.seeded import seeded


@dataclass(frozen=True, kw_only=True)
class TableMlp(NamedCuts):
    """Categories are embedded, dense columns taken as they are, and layers of one width follow.

    Smashed data are vectors [N, D]: a defense that moves tokens cannot run on them.

    Attributes:
        width: units of each hidden layer.
        depth: hidden layers in both segments together.
        embedding: size of the vector of a category.
        cut: last layer of the lower segment: "embedding", "layer1", "layer2", ...

    Source: Gorishniy et al. 2021, "Revisiting deep learning models for tabular data", §3.2 (MLP).

    >>> cars = Tables(dense=("mpg",), ranges=((0.0, 1.0),), categorical=("fuel",), values=(("gas", "oil"),))
    >>> TABLE_MLP.build(cars, 2, positions=True, seed=0).lower(cars.zeros(3)).shape
    torch.Size([3, 64])
    """

    domain: ClassVar[str] = "tables"

    width: Count = 64
    depth: Depth = 3
    embedding: Count = 8
    cut: str = "layer1"

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("embedding", *(f"layer{i + 1}" for i in range(self.depth)))

    def build(self, domain: Tables, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; `positions` changes nothing. See `ModelSpec.build`."""
        with seeded(torch.device("cpu"), seed):
            columns = _Columns(len(domain.dense), domain.sizes, self.embedding)
            sizes = [columns.features, *[self.width] * self.depth]
            layers = [nn.Sequential(nn.Linear(size, following), nn.GELU()) for size, following in pairwise(sizes)]
            head = nn.Linear(self.width, classes)
        below = self.cuts.index(self.cut)
        lower, upper = nn.Sequential(columns, *layers[:below]), nn.Sequential(*layers[below:], head)
        return SplitModel(lower=lower, upper=upper, hides_places=False)


class _Columns(nn.Module):
    """Dense columns on [−1, 1] beside one embedding for each categorical column.

    Args:
        dense: number of dense columns.
        sizes: categories of each categorical column.
        size: of the vector of a category.
    """

    offsets: Tensor

    def __init__(self, dense: int, sizes: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.dense, self.features = dense, dense + len(sizes) * size
        self.embedding = nn.Embedding(sum(sizes), size) if sizes else None
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]], dtype=torch.int64).cumsum(0), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows [N, D + K] -> features [N, D + K·size]."""
        numbers = 2 * rows[:, : self.dense] - 1
        if self.embedding is None:
            return numbers
        categories = self.embedding(rows[:, self.dense :].long() + self.offsets)
        return torch.cat([numbers, categories.flatten(1)], 1)


TABLE_MLP = TableMlp()
"""Three hidden layers of width 64, cut after the first."""
