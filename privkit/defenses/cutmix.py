"""Mixup and CutMix: each message mixes the smashed data of k clients, without noise."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Count
from privkit.defenses.base import Defense, Drawn, Effect, Level, Release
from privkit.defenses.masks import INPUT_PATCH, box_grid, nested_boxes, positions, spread, uniform_permutations
from privkit.defenses.mixing import (
    Concentration,
    check_group,
    dirichlet_counts,
    dirichlet_ratios,
    exclusive_masks,
    mix,
    mix_labels,
    owner_masks,
    pick_rows,
    ratio_coins,
)
from privkit.defenses.receipts import Mixed
from privkit.torch_utils.patches import patchify, unpatchify


class _MixedClients(Defense):
    """Mixes the smashed data and labels of every group of clients. All images of a group get the same weights.

    Attributes:
        shuffled: whether the mixed positions are permuted, so that the release shows the ratios but not the masks.
        side: pixels per side of a position of a feature map or an image; None if tokens are positions.
    """

    effects: ClassVar[frozenset[Effect]] = frozenset({"mixes"})
    place = "mixer"
    soft_labels: ClassVar[bool] = True
    at_inference = False
    shuffled: ClassVar[bool] = False
    side: int | None = None

    concentration: float

    @abstractmethod
    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        """The weights of a round: float [G, k, 1], or exclusive masks, bool [G, k, T].

        Args:
            smashed: smashed data [G, k, B, ...].
            present: which places of a group are taken by a client, bool [G, k].
            coins: generator of ratios and sizes.
            generator: generator of all other random numbers.
        """

    def fill(self, smashed: Tensor, weights: Tensor, generator: Generator) -> Tensor:
        """Messages [G, B, ...], mixed from the smashed data of each group's clients."""
        return mix(smashed, spread(weights, smashed, self.side, leading=3))

    def apply(
        self,
        smashed: Tensor,
        labels: Tensor,
        generator: Generator,
        present: Tensor | None = None,
        kept: Generator | None = None,
    ) -> tuple[Release, Mixed]:
        smashed, labels, present = check_group(self.name, smashed, labels, self.group, present)
        weights = self.draw(smashed, present, ratio_coins(self.drawn, generator, kept), generator)
        ratios = weights.double().mean(2)
        mixed = self.fill(smashed, weights, generator)
        public = ratios.unsqueeze(2) if self.shuffled else weights
        receipt = Mixed(
            ratios=ratios,
            present=present,
            masks=weights if weights.dtype == torch.bool else None,
            published=self.published,
            shuffled=self.shuffled,
            drawn=self.drawn,
        )
        return Release(smashed=mixed, labels=mix_labels(labels, ratios), weights=public.to(smashed.dtype)), receipt


@dataclass(frozen=True, kw_only=True)
class Mixup(_MixedClients):
    """Releases a weighted sum of the smashed data of k clients, with Dirichlet weights; nothing is proven.

    Attributes:
        group: k ≥ 1.
        concentration: α_M ≥ 1e-6 of the Dirichlet distribution of the ratios; inf for 1/k each.
        level: "smashed" (Manifold Mixup), or "input" to mix images (the original Mixup).
        published: whether the server learns the ratios.
        drawn: "every_round" for fresh ratios in each round; "once" for ratios that every client keeps for the whole
            run. "once" needs a protocol with grouping=fixed.

    Source: DP-CutMixSL §3.D ("Random CutMix vs. Vanilla CutMix and Mixup") and appendix C; CutMixSL appendix B, Eq. 6
    to 8.

    >>> z, y = torch.rand(3, 2, 4, 5, 6), torch.eye(2).expand(3, 2, 4, 2, 2)[..., 0, :]
    >>> release, receipt = Mixup().apply(z, y, torch.Generator().manual_seed(0))
    >>> release.smashed.shape, release.weights.shape
    (torch.Size([3, 4, 5, 6]), torch.Size([3, 2, 1]))
    """

    name: ClassVar[str] = "mixup"

    group: Count = 2
    concentration: Concentration = 2.0
    level: Level = "smashed"
    published: bool = True
    drawn: Drawn = "every_round"

    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        # In the dtype of the smashed data at once, so that release and receipt have the same ratios.
        return dirichlet_ratios(present, self.concentration, coins).to(smashed.dtype).unsqueeze(2)


@dataclass(frozen=True, kw_only=True)
class RandomCutMix(_MixedClients):
    """Fills each message from k clients by exclusive masks of Dirichlet-multinomial sizes; nothing is proven.

    Attributes:
        group: k ≥ 1; 1 is the identity.
        concentration: α_M ≥ 1e-6 of the Dirichlet-multinomial law; inf for equal numbers of positions. DP-CutMixSL uses
            2, CutMixSL 6.
        level: "smashed", or "input" to mix images.
        patch: side of a position of a feature map or an image; a token is a position. At the input layer, None is 2.
        published: whether the server learns the masks. In CutMixSL the server knows their pseudo-random sequence, in
            order to send each client its own part of the gradient.
        drawn: "every_round" for fresh numbers of positions in each round; "once" for numbers that every client keeps
            for the whole run, at fresh places. "once" needs a protocol with grouping=fixed.

    Labels are mixed with λ_i = N_i/N, if client i fills N_i of N positions.

    Source: CutMixSL §3.2, Eq. 2 (Smashed Patch CutMix); DP-CutMixSL §3.C and, for images, appendix C.

    >>> z, y = torch.rand(3, 2, 4, 16, 6), torch.eye(2).expand(3, 2, 4, 2, 2)[..., 0, :]
    >>> release, receipt = RandomCutMix().apply(z, y, torch.Generator().manual_seed(0))
    >>> release.smashed.shape, receipt.counts.sum(1).tolist()
    (torch.Size([3, 4, 16, 6]), [16, 16, 16])
    """

    name: ClassVar[str] = "random_cutmix"
    input_patch: ClassVar[int] = INPUT_PATCH

    group: Count = 2
    concentration: Concentration = 2.0
    level: Level = "smashed"
    patch: Count | None = None
    published: bool = True
    drawn: Drawn = "every_round"

    @property
    def side(self) -> int | None:  # type: ignore[override]
        return self.input_patch if self.patch is None and self.level == "input" else self.patch

    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        total = positions(self.name, smashed, self.side, leading=3)
        counts = dirichlet_counts(present, total, self.concentration, coins)
        return exclusive_masks(counts, generator, positions=total)


@dataclass(frozen=True, kw_only=True)
class VanillaCutMix(RandomCutMix):
    """CutMix with boxes; nothing is proven.

    A random client fills the background, a second client a box, and each further client a box inside the box before.
    For k = 2 this is CutMix. For larger k the masks stay exclusive, and the ratios follow the Dirichlet law up to whole
    positions. Labels are mixed by the positions that were really filled.

    Attributes:
        patch: side of a position of a feature map; 1 cuts between any two pixels. Tokens are positions, and must form a
            square grid. At the input layer, None is 1.
        drawn: with "once" each client keeps its area, up to whole positions, at fresh places. The other fields are
            those of `RandomCutMix`.

    Source: CutMixSL appendix B, Eq. 10; DP-CutMixSL §3.D ("Random CutMix vs. Vanilla CutMix and Mixup"). The papers
    have two clients; boxes inside boxes are ours.
    """

    name: ClassVar[str] = "vanilla_cutmix"
    input_patch: ClassVar[int] = 1

    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        rows, columns = box_grid(self.name, smashed, self.side, leading=3)
        ratios = dirichlet_ratios(present, self.concentration, coins)
        groups, members = ratios.shape
        order = uniform_permutations(groups, members, generator)
        areas = ratios.gather(1, order).flip(1).cumsum(1).flip(1)
        areas[:, 0] = 1.0  # the background, rounding errors of the sum aside
        boxes = nested_boxes(areas.clamp(max=1), rows, columns, generator)
        return owner_masks(order.gather(1, boxes.sum(1) - 1), members)


@dataclass(frozen=True, kw_only=True)
class ShuffledCutMix(RandomCutMix):
    """Random CutMix with the positions of every mixed image shuffled; nothing is proven.

    Tokens keep the client's position embedding, as in the paper, whose cut layer lies behind it. So each token reveals
    its place, which undoes the shuffle, and the certificate counts no permutation.

    The release's `weights` holds the ratios λ_i, [G, k, 1], not the masks, because the shuffle hides the places of a
    client's positions. The receipt, which the server never gets, has the masks before the shuffle.

    Source: CutMixSL appendix B, Eq. 12 (positions of feature maps, too) and appendix C, "Shuffling".

    >>> z, y = torch.rand(3, 2, 4, 16, 6), torch.eye(2).expand(3, 2, 4, 2, 2)[..., 0, :]
    >>> plain, _ = RandomCutMix().apply(z, y, torch.Generator().manual_seed(0))
    >>> shuffled, _ = ShuffledCutMix().apply(z, y, torch.Generator().manual_seed(0))
    >>> torch.equal(shuffled.smashed.sort(2).values, plain.smashed.sort(2).values)
    True
    """

    name: ClassVar[str] = "shuffled_cutmix"
    keeps_positions: ClassVar[bool] = False
    shuffled: ClassVar[bool] = True

    def fill(self, smashed: Tensor, weights: Tensor, generator: Generator) -> Tensor:
        """Messages [G, B, ...] mixed by masks, with the positions of each image permuted separately, by one gather."""
        groups, _, length = weights.shape
        batch, image_shape = smashed.shape[2], smashed.shape[3:]
        order = uniform_permutations(groups * batch, length, generator).view(groups, batch, length)
        owner = weights.int().argmax(1)
        if len(image_shape) == 2:
            return pick_rows(smashed, owner, order)
        assert self.side is not None  # `positions` refused it
        c, h, w = image_shape
        return unpatchify(pick_rows(patchify(smashed, self.side), owner, order), self.side, (c, h, w))
