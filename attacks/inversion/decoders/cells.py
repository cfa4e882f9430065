"""A decoder of table rows: a learned query for each column attends to the released tokens."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.mae import blocks, checked_width, heads_for
from privkit.attacks.inversion.decoders.unordered import Standardized

_WIDTH = 64
_DEPTH = 1
_OUT = 64  # features of a column, from which its number or its category is read
_LEAST_SPREAD = 1e-3  # least standard deviation of a number column, so that nearly constant columns are not amplified
_UNSEEN = 0.1  # added to the count of every category, so that unseen categories stay possible


class CellDecoder(Decoder):
    """A decoder of table rows: attention blocks over the released tokens, then one query for each column.

    If there is a token for each column, the query also gets the token at the column's position; without a shuffle this
    is the column's own token. Each token gets a position embedding. The training error, averaged over columns, is the
    squared error divided by the column's variance for numbers, and the cross-entropy for categories. The initial output
    of a column is its mean, or the frequencies of its categories.

    `own` [M, C] holds records of the adversary, and `sample` the releases of some of these records. Give many records:
    most counts in a table are small, and a few rows would miss large counts. `columns` holds each column's number of
    categories, 0 for numbers. The width is a multiple of 16.

    Source: privkit's own, after patch_shuffling §V-B.1: "a transformer structure, containing a vector-wise part and an
    output MLP layer". Queries of an output: DETR (Carion et al. 2020).
    """

    rate_times_width: ClassVar[float] = 0.128
    mean: Tensor
    spread: Tensor

    def __init__(
        self,
        sample: Tensor,
        own: Tensor,
        columns: tuple[int, ...],
        *,
        width: int | None = None,
        depth: int | None = None,
    ) -> None:
        super().__init__()
        self.width = _WIDTH if width is None else checked_width(width)
        tokens = _as_tokens(sample)
        self.numbers = [place for place, size in enumerate(columns) if not size]
        self.choices = [place for place, size in enumerate(columns) if size]
        self.standardize = Standardized(tokens.flatten(1))
        self.project = nn.Linear(2 * tokens.shape[2], self.width)
        self.places = nn.Parameter(0.02 * torch.randn(tokens.shape[1], self.width))
        self.blocks = blocks(self.width, _DEPTH if depth is None else depth, heads_for(self.width))
        self.queries = nn.Parameter(torch.randn(len(columns), self.width))
        self.own_place = tokens.shape[1] == len(columns)
        self.look = nn.MultiheadAttention(self.width, heads_for(self.width), batch_first=True)
        self.think = nn.Sequential(
            nn.LayerNorm(self.width), nn.Linear(self.width, 4 * self.width), nn.GELU(), nn.Linear(4 * self.width, _OUT)
        )
        self.value = nn.Parameter(torch.zeros(len(self.numbers), _OUT))
        self.logits = nn.ModuleList(nn.Linear(_OUT, columns[place]) for place in self.choices)
        known = own.cpu().float()
        self.register_buffer("mean", known[:, self.numbers].mean(0))
        self.register_buffer("spread", known[:, self.numbers].std(0, correction=0).clamp_min(_LEAST_SPREAD))
        for layer, place in zip(self.logits, self.choices, strict=True):
            counts = torch.bincount(known[:, place].long(), minlength=columns[place])
            with torch.no_grad():
                layer.weight.zero_()  # type: ignore[operator]
                layer.bias.copy_(((counts + _UNSEEN) / len(known)).log())  # type: ignore[operator]

    def forward(self, release: Tensor) -> Tensor:
        rows = _as_tokens(release)
        both = self.standardize(rows.flatten(1)).chunk(2, 1)  # place by place
        alike, alone = (part.view(rows.shape) for part in both)
        tokens = self.blocks(self.project(torch.cat([alike, alone], 2)) + self.places)
        queries = self.queries.expand(len(tokens), -1, -1)
        seen: Tensor = self.look(queries, tokens, tokens, need_weights=False)[0]
        features: Tensor = self.think(queries + seen + tokens if self.own_place else queries + seen)
        return features

    def objective(self, release: Tensor, truth: Tensor) -> Tensor:
        numbers, choices = self._read(release)
        errors = [((numbers - truth[:, self.numbers]) / self.spread).square().mean(0)]
        errors += [
            functional.cross_entropy(logits, truth[:, place].long()).unsqueeze(0)
            for logits, place in zip(choices, self.choices, strict=True)
        ]
        return torch.cat(errors).mean()

    def guess(self, release: Tensor) -> Tensor:
        """Guess records [N, C]: numbers clamped to [0, 1], and the index of the likeliest category."""
        numbers, choices = self._read(release)
        guess = numbers.new_empty(len(numbers), len(self.numbers) + len(self.choices))
        guess[:, self.numbers] = numbers.clamp(0, 1)
        for logits, place in zip(choices, self.choices, strict=True):
            guess[:, place] = logits.argmax(1).to(guess.dtype)
        return guess

    def error_sums(self, release: Tensor, truth: Tensor) -> tuple[float, float]:
        """The training error times the number of table entries, twice, since `Decoder.error_sums` gives two sums."""
        error = self.objective(release, truth).item() * truth.numel()
        return error, error

    def _read(self, release: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = self(release).float()
        numbers = self.mean + self.spread * (features[:, self.numbers] * self.value).sum(2)
        return numbers, [layer(features[:, place]) for layer, place in zip(self.logits, self.choices, strict=True)]


def _as_tokens(release: Tensor) -> Tensor:
    return release.unsqueeze(1) if release.ndim == 2 else release
