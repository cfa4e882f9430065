"""Patch shuffling: a fresh uniform permutation of the tokens of every image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.accountants import shuffle_certificates
from privkit.accountants.base import Certificate
from privkit.defenses.base import Release, require_tokens, take_rows


def permutation_rows(n: int, t: int, generator: Generator) -> Tensor:
    """A uniform permutation of 0..t−1 for each of n images, int64 [n, t], on the generator's device.

    Sorting float64 uniforms: a tie, which would favour one order, has odds below n·t²·2⁻⁵³.
    """
    return torch.rand(n, t, generator=generator, device=generator.device, dtype=torch.float64).argsort(dim=1)


@dataclass(frozen=True, kw_only=True)
class PatchShuffleReceipt:
    """What one call really did.

    Attributes:
        permutation: int64 [N, T]; output token t of image n was token permutation[n, t].
    """

    permutation: Tensor

    def certificate(self) -> Certificate:
        """Charge the tokens that were really permuted."""
        return shuffle_certificates.patch_shuffle(tokens=self.permutation.shape[1])


@dataclass(frozen=True, kw_only=True)
class PatchShuffle:
    """σ-private by uniform likelihood of orderings; no differential privacy (the multiset of patches is revealed).

    Attributes:
        frozen_block: append the paper's frozen transformer block, which runs at the edge after the shuffle.

    Source: Yao et al., patch shuffling, Algorithm 1.
    """

    name: ClassVar[str] = "patch_shuffle"
    applied_by: ClassVar[str] = "client"
    positions: ClassVar[bool] = False
    smallest_batch: ClassVar[int] = 1

    frozen_block: bool = False

    def apply(self, smashed: Tensor, labels: Tensor, generator: Generator) -> tuple[Release, PatchShuffleReceipt]:
        """Shuffle smashed data.

        Args:
            smashed: float [N, T, D], class token excluded.
            labels: [N], passed on.
            generator: the only source of randomness, on the device of `smashed`.

        Returns:
            The release [N, T, D], differentiable in `smashed`, and its receipt.

        Raises:
            ValueError: if `smashed` holds no tokens.

        >>> z = torch.arange(6.0).view(1, 3, 2)
        >>> release, receipt = PatchShuffle().apply(z, torch.zeros(1), torch.Generator().manual_seed(0))
        >>> torch.equal(release.smashed, z[:, receipt.permutation[0]])
        True
        """
        n, t, _ = require_tokens(self.name, smashed)
        permutation = permutation_rows(n, t, generator)
        first = t * torch.arange(n, device=permutation.device).unsqueeze(1)
        return (
            Release(smashed=take_rows(smashed, permutation + first), labels=labels),
            PatchShuffleReceipt(permutation=permutation),
        )
