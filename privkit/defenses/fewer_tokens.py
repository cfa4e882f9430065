"""Fewer tokens cross the cut: some tokens of each image are dropped at random, or the most similar are merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from privkit.constraints import Fraction
from privkit.defenses.base import Effect, OnSmashed, require_tokens
from privkit.defenses.masks import uniform_permutations
from privkit.defenses.receipts import NOT_DP, Nothing


def tokens_left(keep: float, tokens: int) -> int:
    """Number of tokens that an image sends: the share `keep` of all, rounded, and at least one."""
    return max(1, round(keep * tokens))


@dataclass(frozen=True, kw_only=True)
class TokenDropping(OnSmashed[Nothing]):
    """Sends a random part of each image's tokens in the original order; nothing is proven.

    The tokens are drawn anew for every image and round. Their places are not sent, since transformer blocks accept any
    number of tokens. But a token with a position embedding reveals its place.

    Attributes:
        keep: share of the tokens that are sent, in (0, 1], rounded to whole tokens and at least one; 1 drops none.
        at_inference: whether tokens of test images are dropped, too; PatchDropout drops tokens in training only.

    Source: Liu et al. 2023, "PatchDropout: Economizing vision transformers using patch dropout", §3, applied at the
    cut. The default share is privkit's.

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

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        m, b, t, d = require_tokens(self.name, smashed)
        left = tokens_left(self.keep, t)
        if left == t:
            kept = smashed.new_ones(m * b, t, dtype=torch.bool)
            released = smashed
        else:
            rank = uniform_permutations(m * b, t, generator)
            kept, places = rank < left, rank.argsort(1)[:, :left].sort(1).values.view(m, b, left, 1)
            released = smashed.gather(2, places.expand(-1, -1, -1, d))
        return released, Nothing(
            reason=f"the tokens that were not dropped are released as they are, {NOT_DP}",
            assumptions=(
                "places are not sent, but a token with a position embedding reveals its place",
                "tokens are dropped afresh every round: over the epochs the server sees more of one record",
            ),
            source="Liu et al. 2023 claim no bound",
            masks=kept,
        )


@dataclass(frozen=True, kw_only=True)
class TokenMerging(OnSmashed[Nothing]):
    """Merges the most similar tokens of each image into means, by bipartite soft matching; nothing is proven.

    Each token at an even place is matched with the most similar token at an odd place, and the most similar pairs
    merge. A merged token is the mean of all original tokens in it. A step merges at most half of the tokens, so keep <
    0.5 takes several steps. Nothing is random. The server learns neither the places of tokens nor how many were merged,
    so its attention gives merged and other tokens the same weight.

    Attributes:
        keep: share of the tokens that are left, in (0, 1], rounded to whole tokens and at least one; 1 merges none.
        at_inference: whether tokens of test images are merged, too.

    Source: Bolya et al. 2023, "Token merging: your ViT but faster" (ToMe), §3, applied at the cut only. The authors
    compare attention keys by their cosine; here the cosines of the tokens are compared, since keys are unknown at the
    cut.

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [3.0, -1.0]]).view(1, 1, 4, 2)
    >>> release, _ = TokenMerging(keep=0.75).apply(z, torch.zeros(1, 1), torch.Generator())
    >>> release.smashed[0, 0].tolist()
    [[1.0, 0.0], [0.0, 1.5], [3.0, -1.0]]
    """

    name: ClassVar[str] = "token_merging"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps", "shortens"})
    keeps_zeros: ClassVar[bool] = True
    keeps_positions: ClassVar[bool] = False

    keep: Fraction = 0.5
    at_inference: bool = True

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        """Tokens [M, B, T, D] -> [M, B, T', D]: unmerged tokens of even places, then the tokens of odd places."""
        m, b, t, _ = require_tokens(self.name, smashed)
        merged = self.public_transform(smashed.flatten(0, 1)).unflatten(0, (m, b))
        return merged, Nothing(
            reason="means of similar tokens are released as they are, and what the merged tokens have in common stays; "
            "no differential privacy (ε = ∞ for every δ < 1)",
            quantities={"tokens_left": merged.shape[2] / t},
            assumptions=("which tokens were merged is not sent, but follows from any guess at the image",),
            source="Bolya et al. 2023 claim no bound",
        )

    def public_transform(self, smashed: Tensor) -> Tensor:
        target = tokens_left(self.keep, smashed.shape[1])
        sizes = smashed.new_ones(*smashed.shape[:2], 1)
        while (pairs := min(smashed.shape[1] - target, smashed.shape[1] // 2)) > 0:
            smashed, sizes = merge_step(smashed, sizes, pairs)
        return smashed


def merge_step(tokens: Tensor, sizes: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Bipartite soft matching: merge the r = `pairs` ≤ T // 2 most similar pairs of tokens into their means.

    A pair has one token at an even place and one at an odd place. Takes tokens of N images, [N, T, D], and the number
    of original tokens in each, [N, T, 1]; returns both for T − r tokens: first the unmerged tokens of even places, then
    the tokens of odd places.
    """
    with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
        directions = normalize(tokens if tokens.dtype == torch.float64 else tokens.float(), dim=2)
        nearness, partner = (directions[:, ::2] @ directions[:, 1::2].transpose(1, 2)).max(2)
        ranked = nearness.argsort(dim=1, descending=True, stable=True)
        gone, stay = ranked[:, :pairs].unsqueeze(2), ranked[:, pairs:].sort(1).values.unsqueeze(2)
        to = partner.unsqueeze(2).gather(1, gone)

    def merged(values: Tensor) -> Tensor:
        even, odd = values[:, ::2], values[:, 1::2]
        width = (-1, -1, values.shape[2])
        sums = odd.scatter_add(1, to.expand(width), even.gather(1, gone.expand(width)))
        return torch.cat([even.gather(1, stay.expand(width)), sums], 1)

    total = merged(sizes)
    return merged(tokens * sizes) / total, total
