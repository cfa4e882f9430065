"""Random CutMix: every position of a message comes from one of k clients, at places drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.constraints import Count
from privkit.defenses.base import Defense, Drawn, Effect, Level, Release
from privkit.defenses.masks import INPUT_PATCH, positions, spread
from privkit.defenses.mixing import (
    Concentration,
    check_group,
    dirichlet_counts,
    exclusive_masks,
    mix,
    mix_labels,
    ratio_coins,
)
from privkit.defenses.receipts import Mixed


@dataclass(frozen=True, kw_only=True)
class RandomCutMix(Defense):
    """Fills each message from k clients by exclusive masks of Dirichlet-multinomial sizes; nothing is proven.

    Attributes:
        group: k ≥ 1; 1 is the identity.
        concentration: α_M ≥ 1e-6 of the numbers of positions; inf for equal numbers. DP-CutMixSL uses 2, CutMixSL 6.
        level: "smashed", or "input" to mix images.
        patch: side of a position of a feature map or an image; a token is a position. At the input layer, None is 2.
        published: whether the server learns the masks; it shares the pseudo-random sequence in CutMixSL, and needs it
            to send each client its own part of the gradient.
        drawn: "every_round" for fresh numbers of positions in each round; "once" for numbers that every client keeps
            for the whole run, at fresh places, which needs groups that stay together (grouping=fixed).

    Source: CutMixSL §3.2, Eq. 2 (Smashed Patch CutMix); DP-CutMixSL §3.C and, for images, appendix C.
    """

    name: ClassVar[str] = "random_cutmix"
    effects: ClassVar[frozenset[Effect]] = frozenset({"mixes"})
    place = "mixer"
    soft_labels: ClassVar[bool] = True
    at_inference = False
    input_patch: ClassVar[int] = INPUT_PATCH

    group: Count = 2
    concentration: Concentration = 2.0
    level: Level = "smashed"
    patch: Count | None = None
    published: bool = True
    drawn: Drawn = "every_round"

    @property
    def side(self) -> int | None:
        """Side of a position, with the default of the input layer."""
        return self.input_patch if self.patch is None and self.level == "input" else self.patch

    def masks(self, smashed: Tensor, present: Tensor, generator: Generator, coins: Generator | None = None) -> Tensor:
        """Exclusive masks bool [G, k, T] of every group, which its images share; `coins` draw their sizes, if given."""
        total = positions(self.name, smashed, self.side, leading=3)
        return exclusive_masks(
            dirichlet_counts(present, total, self.concentration, coins or generator), generator, positions=total
        )

    def fill(self, smashed: Tensor, masks: Tensor, generator: Generator) -> Tensor:
        """Messages [G, B, ...] of the positions that masks [G, k, T] give to each member."""
        return mix(smashed, spread(masks, smashed, self.side, leading=3))

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, Mixed]:
        """Mix every group by masks of its own, `weights` [G, k, T]; labels are mixed with λ_i = N_i/N.

        >>> import torch
        >>> z, y = torch.rand(3, 2, 4, 16, 6), torch.eye(2).expand(3, 2, 4, 2, 2)[..., 0, :]
        >>> release, receipt = RandomCutMix().apply(z, y, torch.Generator().manual_seed(0))
        >>> release.smashed.shape, receipt.counts.sum(1).tolist()
        (torch.Size([3, 4, 16, 6]), [16, 16, 16])
        """
        smashed, labels, present = check_group(self.name, smashed, labels, self.group, present)
        masks = self.masks(smashed, present, generator, ratio_coins(self.drawn, generator, kept))
        ratios = masks.double().mean(2)
        mixed = self.fill(smashed, masks, generator)
        release = Release(smashed=mixed, labels=mix_labels(labels, ratios), weights=masks.to(smashed.dtype))
        receipt = Mixed(ratios=ratios, present=present, masks=masks, published=self.published, drawn=self.drawn)
        return release, receipt
