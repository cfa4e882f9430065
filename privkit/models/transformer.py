"""A transformer on token sequences, cut after the embedding or after a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from privkit.constraints import Count
from privkit.domains.tokens.domain import PADDING, Tokens
from privkit.models.base import Depth, NamedCuts, SplitModel, check_heads
from privkit.models.blocks import Block
from privkit.models.tokens import Upper, stackable
from privkit.torch_utils.seeded import seeded


@dataclass(frozen=True, kw_only=True)
class Transformer(NamedCuts):
    """Token and position embedding, then blocks of attention in both segments, and the mean over tokens.

    Padding is embedded as zeros without a position, and crosses the cut like any token: the server is not told the
    mask.

    Attributes:
        width: token size D.
        depth: blocks in both segments together.
        heads: attention heads, a divisor of width.
        cut: last layer of the lower segment: "embedding", "block1", "block2", ...

    Source: Vaswani et al. 2017, "Attention is all you need"; blocks are as timm's (normalised before attention).

    >>> names = Tokens(length=8, vocabulary=("", "?", "a", "b"))
    >>> split = TRANSFORMER_MICRO.build(names, 2, positions=True, seed=0)
    >>> tokens = split.lower(names.zeros(3))
    >>> tokens.shape, split.upper(tokens).shape
    (torch.Size([3, 8, 64]), torch.Size([3, 2]))
    """

    domain: ClassVar[str] = "tokens"

    width: Count = 64
    depth: Depth = 3
    heads: Count = 4
    cut: str = "block1"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.width, self.heads)

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("embedding", *(f"block{i + 1}" for i in range(self.depth)))

    def build(self, domain: Tokens, classes: int, *, positions: bool, seed: int) -> SplitModel:
        with seeded(torch.device("cpu"), seed):
            embedding = nn.Embedding(len(domain.vocabulary), self.width, padding_idx=PADDING)
            places = nn.Parameter(0.02 * torch.randn(1, domain.length, self.width)) if positions else None
            blocks = [Block(self.width, self.heads) for _ in range(self.depth)]
            head = nn.Linear(self.width, classes)
        below = self.cuts.index(self.cut)
        upper = Upper(
            nn.Sequential(*blocks[below:]),
            norm=nn.LayerNorm(self.width),
            fc_norm=nn.Identity(),
            head=head,
            cls_token=None,
            pool="avg",
        )
        lower = _TokenLower(embedding, places, nn.Sequential(*blocks[:below]))
        return SplitModel(lower=lower, upper=upper, hides_places=not positions)


class _TokenLower(nn.Module):
    """Client: embedding of tokens and positions, and the first blocks."""

    def __init__(self, embedding: nn.Embedding, positions: nn.Parameter | None, blocks: nn.Sequential) -> None:
        super().__init__()
        self.embedding, self.positions, self.blocks = embedding, positions, stackable(blocks)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids int64 [N, T] -> tokens [N, T, D]."""
        there = (ids != PADDING).unsqueeze(-1)
        tokens = self.embedding(ids)
        if self.positions is not None:
            tokens = tokens + self.positions
        encoded: Tensor = self.blocks(tokens * there)
        return encoded


TRANSFORMER_MICRO = Transformer()
"""Three blocks of width 64, cut after the first: trains in seconds."""
