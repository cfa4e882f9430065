"""Patch shuffling: a fresh uniform permutation of the tokens of every image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.defenses.base import Effect, FrozenBlock, OnSmashed, require_tokens, take_rows
from privkit.defenses.masks import uniform_permutations
from privkit.defenses.receipts import Permuted


def own_rows(m: int, b: int, t: int, generator: Generator) -> Tensor:
    """Draw a permutation of every image's tokens: their indices among all m·b·t tokens, int64 [m, b, t]."""
    first = t * torch.arange(m * b, device=generator.device).unsqueeze(1)
    return (uniform_permutations(m * b, t, generator) + first).view(m, b, t)


@dataclass(frozen=True, kw_only=True)
class PatchShuffle(OnSmashed[Permuted]):
    """Shuffles the tokens of each image; all orders are equally likely (σ-private); no differential privacy.

    A token is the vector of one image patch, or of one word, in the smashed data. The server still sees which tokens
    an image has.

    Attributes:
        positions: "drop" builds the model without position embedding, as the paper does, so the order is secret. "keep"
            suits a pretrained ViT: the client adds the position embedding before the shuffle. Each token then reveals
            its place, and nothing is proven.
        frozen_block: the paper's frozen transformer block t, which the clients run after the shuffle. "first" moves the
            server's first block (of a checkpoint, for example) to the clients; true adds a block with random weights,
            and false adds none. "auto" is "first" on images if the server's segment has a block, and none otherwise.

    Source: Yao et al., patch shuffling, Algorithm 1.

    >>> z = torch.arange(6.0).view(1, 1, 3, 2)
    >>> release, receipt = PatchShuffle().apply(z, torch.zeros(1, 1), torch.Generator().manual_seed(0))
    >>> torch.equal(release.smashed, z[:, :, receipt.permutation[0, 0]])
    True
    """

    name: ClassVar[str] = "patch_shuffle"
    effects: ClassVar[frozenset[Effect]] = frozenset({"permutes"})
    over_batch: ClassVar[bool] = False

    positions: Literal["drop", "keep"] = "drop"
    frozen_block: FrozenBlock = "auto"

    @property
    def position_embedding(self) -> bool:  # type: ignore[override]  # a specification decides it, and nobody writes it
        return self.positions == "keep"

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Permuted]:
        m, b, t, _ = require_tokens(self.name, smashed)
        rows = own_rows(m, b, t, generator)
        return take_rows(smashed, rows), Permuted(
            source=rows, hides_order=not self.position_embedding, tokens=smashed.detach()
        )
