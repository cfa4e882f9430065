"""Patch shuffling: a fresh uniform permutation of the tokens of every image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.accountants.base import Certificate
from privkit.accountants.shuffles import certificates
from privkit.defenses.base import ONE_RELEASE, Defense, Release, ReleaseCount, require_tokens, take_rows


def permutation_rows(n: int, t: int, generator: Generator) -> Tensor:
    """A uniform permutation of 0..t−1 for each of n images, int64 [n, t], on the generator's device.

    Sorting float64 uniforms: a tie, which would favour one order, has odds below n·t²·2⁻⁵³.
    """
    return torch.rand(n, t, generator=generator, device=generator.device, dtype=torch.float64).argsort(dim=1)


def own_rows(m: int, b: int, t: int, generator: Generator) -> Tensor:
    """The rows of every image's tokens among all m·b·t, freshly permuted inside the image, int64 [m, b, t]."""
    first = t * torch.arange(m * b, device=generator.device).unsqueeze(1)
    return (permutation_rows(m * b, t, generator) + first).view(m, b, t)


def per_release(certificate: Certificate, release_count: ReleaseCount) -> Certificate:
    """A count of one release, with a sentence where a run makes more of them: counts do not compose."""
    if release_count.epochs == 1:
        return certificate
    several = (
        f"the count is that of one release; the run makes {release_count.epochs} of every image, each freshly "
        "shuffled, and what they show together is not counted"
    )
    return replace(certificate, assumptions=(*certificate.assumptions, several))


@dataclass(frozen=True, kw_only=True)
class PatchShuffleReceipt:
    """What one call really did.

    Attributes:
        permutation: int64 [M, B, T]; output token t of image b in message m was token permutation[m, b, t].
    """

    permutation: Tensor

    def certificate(self, release_count: ReleaseCount = ONE_RELEASE) -> Certificate:
        """Charge the tokens that were really permuted."""
        return per_release(certificates.patch_shuffle(tokens=self.permutation.shape[-1]), release_count)


@dataclass(frozen=True, kw_only=True)
class PatchShuffle(Defense):
    """σ-private by uniform likelihood of orderings; no differential privacy (the multiset of patches is revealed).

    Attributes:
        frozen_block: append the paper's frozen transformer block, which runs at the edge after the shuffle.

    Source: Yao et al., patch shuffling, Algorithm 1.
    """

    name: ClassVar[str] = "patch_shuffle"
    positions: ClassVar[bool] = False

    frozen_block: bool = False

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, PatchShuffleReceipt]:
        """Shuffle smashed data with one gather.

        Args:
            smashed: float [M, B, T, D], class token excluded.
            labels: [M, B], passed on.
            generator: the only source of randomness, on the device of `smashed`.
            present: without meaning here.

        Returns:
            The release [M, B, T, D], differentiable in `smashed`, and its receipt.

        Raises:
            ValueError: if `smashed` holds no tokens.

        >>> z = torch.arange(6.0).view(1, 1, 3, 2)
        >>> release, receipt = PatchShuffle().apply(z, torch.zeros(1, 1), torch.Generator().manual_seed(0))
        >>> torch.equal(release.smashed, z[:, :, receipt.permutation[0, 0]])
        True
        """
        m, b, t, _ = require_tokens(self.name, smashed)
        rows = own_rows(m, b, t, generator)
        return Release(smashed=take_rows(smashed, rows), labels=labels), PatchShuffleReceipt(permutation=rows % t)
