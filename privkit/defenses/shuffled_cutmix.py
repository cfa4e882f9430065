"""Shuffled CutMix: Random CutMix, then a fresh permutation of the mixed positions of every image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Generator, Tensor

from privkit.defenses.base import Release
from privkit.defenses.masks import permutations
from privkit.defenses.mixing import pick_rows
from privkit.defenses.random_cutmix import RandomCutMix
from privkit.defenses.receipts import Mixed
from privkit.torch_utils.patches import patchify, unpatchify


@dataclass(frozen=True, kw_only=True)
class ShuffledCutMix(RandomCutMix):
    """Random CutMix with the positions of every mixed image shuffled; nothing is proven.

    Tokens keep the position embedding that the client added, as in the paper, whose cut layer lies behind it. Such
    tokens reveal their places, which undoes the shuffle, so no permutation is counted.

    The release's `weights` holds the ratios λ_i, not the masks: where a client's positions lie in an image is the
    shuffle's secret. The receipt has the masks, at the places before the shuffle.

    Source: CutMixSL appendix B, Eq. 12 (positions of feature maps, too) and appendix C, "Shuffling".

    >>> import torch
    >>> z, y = torch.rand(3, 2, 4, 16, 6), torch.eye(2).expand(3, 2, 4, 2, 2)[..., 0, :]
    >>> plain, _ = RandomCutMix().apply(z, y, torch.Generator().manual_seed(0))
    >>> shuffled, _ = ShuffledCutMix().apply(z, y, torch.Generator().manual_seed(0))
    >>> torch.equal(shuffled.smashed.sort(2).values, plain.smashed.sort(2).values)
    True
    """

    name: ClassVar[str] = "shuffled_cutmix"
    keeps_positions: ClassVar[bool] = False

    def fill(self, smashed: Tensor, masks: Tensor, generator: Generator) -> Tensor:
        """Messages [G, B, ...] of the members' positions, those of each image in an order of its own; one gather."""
        groups, _, length = masks.shape
        batch, image_shape = smashed.shape[2], smashed.shape[3:]
        order = permutations(groups * batch, length, generator).view(groups, batch, length)
        owner = masks.int().argmax(1)
        if len(image_shape) == 2:
            return pick_rows(smashed, owner, order)
        assert self.side is not None  # `positions` refused it
        c, h, w = image_shape
        return unpatchify(pick_rows(patchify(smashed, self.side), owner, order), self.side, (c, h, w))

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, Mixed]:
        """Mix as `RandomCutMix` does, and shuffle every image; `weights` are the ratios λ, [G, k, 1]."""
        release, receipt = super().apply(smashed, labels, generator, present, kept)
        weights = receipt.ratios.to(release.smashed.dtype).unsqueeze(2)
        return replace(release, weights=weights), replace(receipt, shuffled=True)
