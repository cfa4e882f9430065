"""Mixup of smashed data: each message is a weighted sum of k clients' smashed data and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.constraints import Count
from privkit.defenses import masks
from privkit.defenses.base import Defense, Drawn, Effect, Level, Release
from privkit.defenses.mixing import Concentration, check_group, dirichlet_ratios, mix, mix_labels, ratio_coins
from privkit.defenses.receipts import Mixed


@dataclass(frozen=True, kw_only=True)
class Mixup(Defense):
    """Superposes the smashed data of k clients with ratios of a Dirichlet law; nothing is proven.

    Attributes:
        group: k ≥ 1.
        concentration: α_M ≥ 1e-6 of the ratios; inf for 1/k each.
        level: "smashed", or "input" to mix images (Mixup itself; the first is Manifold Mixup).
        published: whether the server learns the ratios.
        drawn: "every_round" for fresh ratios in each round; "once" for ratios that every client keeps for the whole
            run. That costs more, and needs groups that stay together: a protocol with grouping=fixed.

    Source: DP-CutMixSL §3.D ("Random CutMix vs. Vanilla CutMix and Mixup") and appendix C; CutMixSL appendix B,
    Eq. 6 to 8.
    """

    name: ClassVar[str] = "mixup"
    effects: ClassVar[frozenset[Effect]] = frozenset({"mixes"})
    place = "mixer"
    soft_labels: ClassVar[bool] = True
    at_inference = False

    group: Count = 2
    concentration: Concentration = 2.0
    level: Level = "smashed"
    published: bool = True
    drawn: Drawn = "every_round"

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, Mixed]:
        """Mix every group with ratios of its own, which its images share; they are `weights` [G, k, 1].

        >>> import torch
        >>> z, y = torch.rand(3, 2, 4, 5, 6), torch.eye(2).expand(3, 2, 4, 2, 2)[..., 0, :]
        >>> release, receipt = Mixup().apply(z, y, torch.Generator().manual_seed(0))
        >>> release.smashed.shape, torch.allclose(receipt.ratios.sum(1), torch.ones(3).double())
        (torch.Size([3, 4, 5, 6]), True)
        """
        smashed, labels, present = check_group(self.name, smashed, labels, self.group, present)
        # In the dtype of the smashed data at once, so that release and receipt have the same ratios.
        coins = ratio_coins(self.drawn, generator, kept)
        weights = dirichlet_ratios(present, self.concentration, coins).to(smashed.dtype).unsqueeze(2)
        ratios = weights.squeeze(2).double()
        mixed = mix(smashed, masks.spread(weights, smashed, None, leading=3))
        receipt = Mixed(ratios=ratios, present=present, masks=None, published=self.published, drawn=self.drawn)
        return Release(smashed=mixed, labels=mix_labels(labels, ratios), weights=weights), receipt
