"""Token merging: similar tokens of an image become their mean, and the release is shorter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from privkit.constraints import Fraction
from privkit.defenses.base import Defense, Effect, Release, require_tokens
from privkit.defenses.receipts import Nothing
from privkit.defenses.token_dropping import tokens_left


@dataclass(frozen=True, kw_only=True)
class TokenMerging(Defense):
    """Merges the most similar tokens of each image into means, by bipartite soft matching; nothing is proven.

    Tokens at even places are matched with their most similar ones at odd places, and the most similar pairs merge into
    the mean over all tokens that they stand for. A step merges at most half of the tokens, so keep < 0.5 takes several
    steps. Nothing is drawn. Sizes and places are not sent: the server's attention gives every token the same weight.

    Attributes:
        keep: share of the tokens that are left, in (0, 1], rounded to whole tokens and at least one; 1 merges none.
        at_inference: whether test images are merged, too.

    Source: Bolya et al. 2023, "Token merging: your ViT but faster" (ToMe), §3, at the cut alone. They compare attention
    keys by their cosine; here only tokens are known, so tokens are compared in the same way.
    """

    name: ClassVar[str] = "token_merging"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps", "shortens"})
    keeps_positions: ClassVar[bool] = False

    keep: Fraction = 0.5
    at_inference: bool = True

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Merge tokens [M, B, T, D] -> [M, B, T', D]: even ones that were not merged, then the odd ones.

        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [3.0, -1.0]]).view(1, 1, 4, 2)
        >>> release, _ = TokenMerging(keep=0.75).apply(z, torch.zeros(1, 1), torch.Generator())
        >>> release.smashed[0, 0].tolist()
        [[1.0, 0.0], [0.0, 1.5], [3.0, -1.0]]
        """
        m, b, t, _ = require_tokens(self.name, smashed)
        merged = self.public_transform(smashed.flatten(0, 1)).unflatten(0, (m, b))
        receipt = Nothing(
            reason="means of similar tokens are released as they are, and what the merged tokens have in common stays; "
            "no differential privacy (ε = ∞ for every δ < 1)",
            quantities={"tokens_left": merged.shape[2] / t},
            assumptions=("which tokens were merged is not sent, but follows from any guess at the image",),
            source="Bolya et al. 2023 claim no bound",
        )
        return Release(smashed=merged, labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Tokens [N, T, D], merged: all that this defense does."""
        target = tokens_left(self.keep, smashed.shape[1])
        sizes = smashed.new_ones(*smashed.shape[:2], 1)
        while (pairs := min(smashed.shape[1] - target, smashed.shape[1] // 2)) > 0:
            smashed, sizes = merge_step(smashed, sizes, pairs)
        return smashed


def merge_step(tokens: Tensor, sizes: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """One step of bipartite soft matching.

    Args:
        tokens: [N, T, D].
        sizes: [N, T, 1], how many tokens each one stands for.
        pairs: r, how many tokens vanish, at most T // 2.

    Returns:
        Tokens [N, T − r, D], those at even places that stay before those at odd places, and their sizes.

    Source: Bolya et al. 2023, §3, "Bipartite soft matching" and "Tracking token size".
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
