"""Batch shuffling: every image keeps some tokens, the rest are pooled over the batch, permuted and dealt out again."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.accountants import permutations, shuffle_certificates
from privkit.accountants.base import Certificate
from privkit.defenses.base import Release, require_tokens, take_rows
from privkit.defenses.patch_shuffle import permutation_rows


@dataclass(frozen=True, kw_only=True)
class BatchShuffleReceipt:
    """What one call really did.

    Attributes:
        source: int64 [N, T]; output token (n, t) was token `source[n, t] % T` of image `source[n, t] // T`.
        kept: tokens that each image kept for certain.
    """

    source: Tensor
    kept: int

    @property
    def own_image_share(self) -> float:
        """Share of output tokens that come from their own image, in [0, 1]."""
        n, t = self.source.shape
        own = torch.arange(n, device=self.source.device).unsqueeze(1)
        return (self.source // t == own).double().mean().item()

    def certificate(self) -> Certificate:
        """Charge the batch that was really mixed, not the one that was asked for."""
        n, t = self.source.shape
        return shuffle_certificates.batch_shuffle(tokens=t, batch=n, kept=self.kept)


@dataclass(frozen=True, kw_only=True)
class BatchShuffle:
    """Shuffling, occlusion and mixture over a batch; no differential privacy.

    Attributes:
        keep: k in [0, 1]; each image keeps ⌊k·N⌋ of its N tokens. 1 is patch shuffling.
        frozen_block: append the paper's frozen transformer block, which runs at the edge after the shuffle.

    Source: Yao et al., patch shuffling, Algorithm 2 with the final shuffle inside each image that §IV-C adds.
    """

    name: ClassVar[str] = "batch_shuffle"
    applied_by: ClassVar[str] = "client"
    positions: ClassVar[bool] = False
    smallest_batch: ClassVar[int] = 2

    keep: float = 0.4
    frozen_block: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.keep) and 0 <= self.keep <= 1):
            raise ValueError(f"keep must lie in [0, 1], got {self.keep}")

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator) -> tuple[Release, BatchShuffleReceipt]:
        """Shuffle a batch of smashed data with one gather.

        Args:
            smashed: float [N, T, D], class token excluded, N ≥ 2.
            labels: [N], passed on: image n keeps its place and its label.
            generator: the only source of randomness, on the device of `smashed`.

        Returns:
            The release [N, T, D], differentiable in `smashed`, and its receipt.

        Raises:
            ValueError: if `smashed` holds no tokens, or a batch of one image, which would mix nothing.

        >>> z = torch.rand(4, 10, 3)
        >>> release, receipt = BatchShuffle(keep=0.4).apply(z, torch.zeros(4), torch.Generator().manual_seed(0))
        >>> torch.equal(release.smashed, z.flatten(0, 1)[receipt.source])
        True
        """
        n, t, _ = require_tokens(self.name, smashed)
        if n < self.smallest_batch:
            raise ValueError("batch_shuffle needs a batch of at least 2 images, got 1: a batch of one mixes nothing")
        kept = permutations.kept_tokens(t, self.keep)
        device = generator.device
        rows = permutation_rows(n, t, generator) + t * torch.arange(n, device=device).unsqueeze(1)
        pool = rows[:, kept:].flatten()
        dealt = pool[torch.randperm(len(pool), generator=generator, device=device)].view(n, t - kept)
        source = torch.cat([rows[:, :kept], dealt], 1).gather(1, permutation_rows(n, t, generator))
        return Release(smashed=take_rows(smashed, source), labels=labels), BatchShuffleReceipt(source=source, kept=kept)
