"""Batch shuffling: every image keeps some tokens; the others are pooled over the batch, permuted and redistributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.accountants.shuffles.permutations import kept_tokens
from privkit.accountants.shuffles.variants import Variant
from privkit.constraints import Probability
from privkit.defenses import masks
from privkit.defenses.base import Effect, FrozenBlock, OnSmashed, require_tokens, take_rows
from privkit.defenses.patch_shuffle import own_rows
from privkit.defenses.receipts import Permuted


@dataclass(frozen=True, kw_only=True)
class BatchShuffle(OnSmashed[Permuted]):
    """Exchanges tokens among the images of a batch at random; no differential privacy.

    A token is the vector of one image patch, or of one word, in the smashed data.

    Attributes:
        keep: k in [0, 1]; each image keeps ⌊k·N⌋ of its N tokens. With 1, tokens are only shuffled inside each image
            (patch shuffling).
        variant: "final_shuffle" also shuffles the tokens inside each image at the end, as in the paper's §IV-C.
            "algorithm_2" follows the printed algorithm: kept tokens come first, so the server knows their image.
            "kept_in_place" does not move kept tokens, as in §IV-C's first sentence on k, so their order is public.
        frozen_block: the paper's frozen transformer block t, which the clients run after the shuffle. "first" moves the
            server's first block (of a checkpoint, for example) to the clients; true adds a block with random weights,
            and false adds none. "auto" is "first" on images if the server's segment has a block, and none otherwise.

    Source: Yao et al., patch shuffling, Algorithm 2 and §IV-C.

    >>> z = torch.rand(1, 4, 10, 3)
    >>> release, receipt = BatchShuffle(keep=0.4).apply(z, torch.zeros(1, 4), torch.Generator().manual_seed(0))
    >>> torch.equal(release.smashed, z.flatten(0, 2)[receipt.source])
    True
    """

    name: ClassVar[str] = "batch_shuffle"
    effects: ClassVar[frozenset[Effect]] = frozenset({"permutes"})
    position_embedding: ClassVar[bool] = False
    smallest_batch: ClassVar[int] = 2

    keep: Probability = 0.4
    variant: Variant = "final_shuffle"
    frozen_block: FrozenBlock = "auto"

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Permuted]:
        m, b, t, _ = require_tokens(self.name, smashed)
        if b < self.smallest_batch:
            raise ValueError(f"batch_shuffle needs a batch of at least 2 images, got {b}: a batch of one mixes nothing")
        kept = kept_tokens(t, self.keep)
        rows = own_rows(m, b, t, generator)
        pool = rows[:, :, kept:].reshape(m, b * (t - kept))
        dealt = pool.gather(1, message_orders(m, b * (t - kept), generator)).view(m, b, t - kept)
        source = torch.cat([rows[:, :, :kept], dealt], 2)
        if self.variant == "final_shuffle":
            source = source.gather(2, masks.uniform_permutations(m * b, t, generator).view(m, b, t))
        elif self.variant == "kept_in_place":  # rows % t: the tokens' places before the shuffle
            source = source.scatter(2, rows % t, source)
        receipt = Permuted(source=source, kept=kept, variant=self.variant, tokens=smashed.detach())
        return take_rows(smashed, source), receipt


def message_orders(m: int, n: int, generator: Generator) -> Tensor:
    """Draw a uniform permutation of 0..n−1 for each of m messages, int64 [m, n].

    The permutations are read from one uniform permutation of all m·n elements, in which the order of each message's
    elements is uniform and independent of the other messages.
    """
    order = torch.randperm(m * n, generator=generator, device=generator.device)
    if m > 1:
        order = order[(order // n).argsort(stable=True)]
    return order.view(m, n) % max(1, n)
