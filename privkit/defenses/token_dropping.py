"""Token dropping: each image sends a random part of its tokens, and the release is shorter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Fraction
from privkit.defenses.base import Defense, Effect, Release, require_tokens
from privkit.defenses.masks import permutations
from privkit.defenses.receipts import NOT_DP, Nothing


def tokens_left(keep: float, tokens: int) -> int:
    """How many tokens an image sends: the share `keep` of them, rounded, and at least one.

    >>> tokens_left(0.5, 16), tokens_left(0.01, 16)
    (8, 1)
    """
    return max(1, round(keep * tokens))


@dataclass(frozen=True, kw_only=True)
class TokenDropping(Defense):
    """Sends a random part of each image's tokens, in their order; nothing is proven.

    Tokens are drawn for every image and round. Places are not sent: the blocks of a transformer read any number of
    tokens. A token with a position embedding reveals its place anyway.

    Attributes:
        keep: share of the tokens that are sent, in (0, 1], rounded to whole tokens and at least one; 1 drops none.
        at_inference: whether test images drop tokens, too; PatchDropout drops in training alone.

    Source: Liu et al. 2023, "PatchDropout: Economizing vision transformers using patch dropout", §3, behind the cut.
    The default share is privkit's.

    >>> z = torch.arange(8.0).view(1, 2, 4, 1)
    >>> release, receipt = TokenDropping(keep=0.5).apply(z, torch.zeros(1, 2), torch.Generator().manual_seed(0))
    >>> release.smashed.shape, receipt.payload_share
    (torch.Size([1, 2, 2, 1]), 0.5)
    """

    name: ClassVar[str] = "token_dropping"
    effects: ClassVar[frozenset[Effect]] = frozenset({"shortens"})
    keeps_positions: ClassVar[bool] = False

    keep: Fraction = 0.5
    at_inference: bool = True

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Drop tokens [M, B, T, D] -> [M, B, T', D]; the receipt's masks [M·B, T] say which stay."""
        m, b, t, d = require_tokens(self.name, smashed)
        left = tokens_left(self.keep, t)
        if left == t:
            kept = smashed.new_ones(m * b, t, dtype=torch.bool)
            released = smashed
        else:
            rank = permutations(m * b, t, generator)
            kept, places = rank < left, rank.argsort(1)[:, :left].sort(1).values.view(m, b, left, 1)
            released = smashed.gather(2, places.expand(-1, -1, -1, d))
        receipt = Nothing(
            reason=f"the tokens that were not dropped are released as they are, {NOT_DP}",
            assumptions=(
                "places are not sent, but a token with a position embedding tells its own",
                "tokens are dropped afresh every round: over the epochs the server sees more of one record",
            ),
            source="Liu et al. 2023 claim no bound",
            masks=kept,
        )
        return Release(smashed=released, labels=labels), receipt
