"""Networks for table rows: a perceptron, and DIFM."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.constraints import Count
from privkit.domains.tables.domain import Tables
from privkit.errors import UsageError
from privkit.models.base import Depth, NamedCuts, SplitModel
from privkit.torch_utils.seeded import seeded


@dataclass(frozen=True, kw_only=True)
class _TableMlp(NamedCuts):
    """A perceptron on embedded categories and scaled dense (numeric) columns, with hidden layers of equal width.

    Smashed data are vectors [N, D], so defenses that move tokens cannot be used.

    Attributes:
        width: units of each hidden layer.
        depth: number of hidden layers in both segments together.
        embedding: size of the vector into which a category is embedded.
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
        with seeded(torch.device("cpu"), seed):
            columns = Columns(len(domain.dense), domain.sizes, self.embedding)
            sizes = [columns.features, *[self.width] * self.depth]
            layers = [nn.Sequential(nn.Linear(size, following), nn.GELU()) for size, following in pairwise(sizes)]
            head = nn.Linear(self.width, classes)
        below = self.cuts.index(self.cut)
        lower, upper = nn.Sequential(columns, *layers[:below]), nn.Sequential(*layers[below:], head)
        return SplitModel(lower=lower, upper=upper, hides_places=False)


class Columns(nn.Module):
    """Scales D dense columns to [−1, 1] and embeds K categorical columns: [N, D + K] -> [N, D + K·size]."""

    offsets: Tensor

    def __init__(self, dense: int, sizes: tuple[int, ...], size: int) -> None:
        super().__init__()
        self.dense, self.features = dense, dense + len(sizes) * size
        self.embedding = nn.Embedding(sum(sizes), size) if sizes else None
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]], dtype=torch.int64).cumsum(0), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        numbers = 2 * rows[:, : self.dense] - 1
        if self.embedding is None:
            return numbers
        categories = self.embedding(rows[:, self.dense :].long() + self.offsets)
        return torch.cat([numbers, categories.flatten(1)], 1)


TABLE_MLP = _TableMlp()  # three hidden layers of width 64, cut after the first


_SPREAD = 0.1  # standard deviation of the initial vectors of fields


@dataclass(frozen=True, kw_only=True)
class _Difm(NamedCuts):
    """Dual input-aware factorization machine: each column of a table is a field, and each field a token.

    Field i has a weight w_i and a vector v_i. A categorical column learns w_i and v_i for each category; a dense
    (numeric) column learns one w_i and v_i, which its value multiplies. Two networks read all fields: attention between
    the vectors (the vector-wise part), and a perceptron on the vectors' numbers (the bit-wise part). Each network gives
    every field a factor, and w_i and v_i are multiplied by the sum of both factors. The prediction layer is a
    factorization machine, which does not depend on the order of fields. The task must have two classes.

    A shuffle hides little, since a vector reveals its field: `hides_places` is False.

    Attributes:
        embedding: size of a field's vector v_i.
        heads: number of attention heads.
        head_width: size of each head.
        width: units of each hidden layer of the bit-wise part.
        depth: number of hidden layers of the bit-wise part.
        cut: last layer of the lower segment. "embedding" sends w_i and v_i of T fields, [N, T, 1 + embedding]. "vector"
            also sends each field's bit-wise factor and attended vector; the server computes the vector-wise factors by
            a separate map for each field, or behind a shuffle by one map for all fields. "factors" sends w_i and v_i
            multiplied by the factors; the server has only the prediction layer.

    Source: Lu et al. 2020, "A dual input-aware factorization machine for CTR prediction", §3. The defaults are those of
    the DeepCTR library. patch_shuffling, Fig. 8, puts "the part preceding the prediction layer" at the edge and
    shuffles the vector-wise part.

    >>> cars = Tables(dense=("mpg",), ranges=((0.0, 1.0),), categorical=("fuel",), values=(("gas", "oil"),))
    >>> split = DIFM.build(cars, 2, positions=True, seed=0)
    >>> tokens = split.lower(cars.zeros(3))
    >>> tokens.shape, split.upper(tokens).shape
    (torch.Size([3, 2, 5]), torch.Size([3, 2]))
    """

    domain: ClassVar[str] = "tables"

    embedding: Count = 4
    heads: Count = 8
    head_width: Count = 8
    width: Count = 128
    depth: Count = 2
    cut: str = "factors"

    cuts: ClassVar[tuple[str, ...]] = ("embedding", "vector", "factors")

    def build(self, domain: Tables, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments, as in `ModelSpec.build`. Raises `UsageError` unless there are two classes, and for
        cut="embedding" without `positions`: a shuffle would scramble the fields that the server's bit-wise part reads.
        """
        if classes != 2:
            raise UsageError(
                f"difm tells two labels apart, and the dataset has {classes}; keep two by classes=[0,1] of the "
                "dataset, or use --model table_mlp"
            )
        if not positions and self.cut == "embedding":
            raise UsageError(
                "behind cut=embedding the server's bit-wise part reads every field at its place, which a shuffle takes "
                "away; use cut=vector or cut=factors, or choose a defense that does not shuffle"
            )
        fields, (attended, vector) = domain.shape[0], (self.heads * self.head_width, self.embedding)
        with seeded(torch.device("cpu"), seed):
            parts = (
                _Fields(len(domain.dense), domain.sizes, vector),
                _DualNetwork(
                    _Attention(vector, self.heads, self.head_width), _bit_wise(fields, vector, self.width, self.depth)
                ),
                _Reweighted(fields, vector, attended, by_place=positions or self.cut == "factors"),
                _FactorizationMachine(),
            )
        below = self.cuts.index(self.cut) + 1
        return SplitModel(lower=nn.Sequential(*parts[:below]), upper=nn.Sequential(*parts[below:]), hides_places=False)


class _Fields(nn.Module):
    """Gives every field a learned weight and vector. A categorical column has one such pair for each category; a dense
    column has one pair, which the column's value multiplies.
    """

    offsets: Tensor

    def __init__(self, dense: int, sizes: tuple[int, ...], vector: int) -> None:
        super().__init__()
        self.dense = nn.Parameter(_SPREAD * torch.randn(dense, 1 + vector))
        self.categories = nn.Parameter(_SPREAD * torch.randn(sum(sizes), 1 + vector))
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0)[: len(sizes)], persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows [N, D + K] -> fields [N, D + K, 1 + vector]."""
        numbers, ids = rows[:, : len(self.dense)], rows[:, len(self.dense) :]
        categories = functional.embedding(ids.long() + self.offsets, self.categories)
        return torch.cat([numbers.unsqueeze(2) * self.dense, categories], 1)


class _Attention(nn.Module):
    """Vector-wise part of DIFM: attention between fields. It has no position encoding: if the fields are permuted, the
    outputs are permuted in the same way."""

    def __init__(self, vector: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.residual = (
            nn.Linear(vector, heads * size, bias=False) for _ in range(4)
        )

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors [N, T, vector] -> attended vectors [N, T, heads·size]."""
        query, key, value = (
            layer(vectors).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return functional.relu(attended + self.residual(vectors))


def _bit_wise(fields: int, vector: int, width: int, depth: int) -> nn.Sequential:
    """Bit-wise part of DIFM: a perceptron on the numbers of all vectors, [N, T·vector], that gives factors [N, T]."""
    sizes = [fields * vector, *[width] * depth]
    layers = [nn.Sequential(nn.Linear(size, following), nn.ReLU()) for size, following in pairwise(sizes)]
    return nn.Sequential(*layers, nn.Linear(width, fields, bias=False))


class _DualNetwork(nn.Module):
    def __init__(self, attention: _Attention, bit_wise: nn.Sequential) -> None:
        super().__init__()
        self.attention, self.bit_wise = attention, bit_wise

    def forward(self, fields: Tensor) -> Tensor:
        """Append the outputs of both networks to T fields [N, T, 1 + vector]. Returns [N, T, 1 + vector + 1 +
        attended]: each field, its bit-wise factor and its attended vector.
        """
        vectors = fields[..., 1:]
        return torch.cat([fields, self.bit_wise(vectors.flatten(1)).unsqueeze(2), self.attention(vectors)], 2)


class _Reweighted(nn.Module):
    """A layer of DIFM: multiplies each of T fields, [w_i, v_i], by the sum of its bit-wise and its vector-wise factor.

    With `by_place`, as published, a field's vector-wise factor depends on the attended vectors of all T fields, in
    order. Otherwise it depends on this field's attended vector only, by a linear map that all fields share.
    """

    def __init__(self, fields: int, vector: int, attended: int, *, by_place: bool) -> None:
        super().__init__()
        self.field, self.by_place = 1 + vector, by_place
        self.vector_wise = nn.Linear(*((fields * attended, fields) if by_place else (attended, 1)), bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, 1 + vector + 1 + attended] -> fields [N, T, 1 + vector]."""
        fields, bit_wise, attended = tokens.tensor_split([self.field, self.field + 1], 2)
        vector_wise = (
            self.vector_wise(attended.flatten(1)).unsqueeze(2) if self.by_place else self.vector_wise(attended)
        )
        weighted: Tensor = fields * (bit_wise + vector_wise)
        return weighted


class _FactorizationMachine(nn.Module):
    """Prediction layer of DIFM: a bias, the sum of the weights, and the inner products of all pairs of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, fields: Tensor) -> Tensor:
        """Fields [N, T, 1 + vector] -> logits [N, 2]. The first logit is 0, so the softmax of both is a sigmoid."""
        weights, vectors = fields[..., 0], fields[..., 1:]
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        click = self.bias + weights.sum(1) + pairs
        return torch.stack([torch.zeros_like(click), click], 1)


DIFM = _Difm()  # vectors of four numbers, eight heads of width eight, cut before the prediction layer
