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
    """Mixes smashed data and labels of each group of clients; in a round, all images of a client get the same weight.

    Attributes:
        shuffled: whether the mixed positions are permuted, so that the release shows each client's share but not which
            positions it fills.
        side: side in pixels of the patches that form the positions of a feature map or image; None if positions are
            tokens.
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
        """Draw the mixing weights of a round for G groups of k clients.

        The result is float [G, k, 1], or masks over T positions, bool [G, k, T], that give each position to one client.
        `smashed` is [G, k, B, ...], and `present`, bool [G, k], says which places hold a client. Ratios and sizes of
        masks come from `coins`, all other random numbers from `generator`.
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
        group: number k ≥ 1 of clients in a mixing group.
        concentration: parameter α_M ≥ 1e-6 of the Dirichlet distribution of the weights; inf gives each client 1/k.
        level: what is mixed: "smashed" data (Manifold Mixup), or images at the "input" (the original Mixup).
        published: whether the server learns the weights.
        drawn: "every_round" draws new weights in each round; "once" lets every client keep its weight for the whole
            run, and needs a protocol with grouping=fixed.

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
        # Rounded to the dtype of the smashed data here, so that release and receipt have the same ratios.
        return dirichlet_ratios(present, self.concentration, coins).to(smashed.dtype).unsqueeze(2)


@dataclass(frozen=True, kw_only=True)
class RandomCutMix(_MixedClients):
    """Fills each position (token or patch) of a release from one of k clients, at random; nothing is proven.

    Attributes:
        group: number k ≥ 1 of clients in a mixing group; 1 mixes nothing.
        concentration: parameter α_M ≥ 1e-6 of the Dirichlet-multinomial law of the clients' numbers of positions; inf
            for equal numbers. DP-CutMixSL uses 2, CutMixSL 6.
        level: what is mixed: "smashed" data, or images at the "input".
        patch: side in pixels of one position of a feature map or an image; unused for tokens, each of which is a
            position. None means 2 at the input layer.
        published: whether the server learns the masks. In CutMixSL the server knows their pseudo-random sequence, so
            that it can send each client its own part of the gradient.
        drawn: "every_round" draws new numbers of positions in each round; "once" lets every client keep its number for
            the whole run, at new places in each round, and needs a protocol with grouping=fixed.

    Labels are mixed with weight λ_i = N_i/N if client i fills N_i of N positions.

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
    """CutMix of k clients' smashed data with boxes; nothing is proven.

    A random client fills the background, a second client a box, and each further client a box inside the previous one.
    For k = 2 this is CutMix. Every position belongs to one client. For k = 2, the clients' shares follow the Dirichlet
    law up to rounding to whole positions. For k ≥ 3 they differ more, since a box is never wider than the previous one
    (see `masks.nested_boxes`). Labels are mixed by the shares of positions that each client fills.

    Attributes:
        patch: side in pixels of one position of a feature map or an image; 1 cuts between any two pixels. Unused for
            tokens, each of which is a position; they must form a square grid. None means 1 at the input layer.
        drawn: "every_round" or "once"; with "once" each client keeps its box's area for the whole run, up to rounding,
            at new places in each round.

    The other fields are documented in `RandomCutMix`.

    Source: CutMixSL appendix B, Eq. 10; DP-CutMixSL §3.D ("Random CutMix vs. Vanilla CutMix and Mixup"). The papers
    have two clients; boxes inside boxes are privkit's.
    """

    name: ClassVar[str] = "vanilla_cutmix"
    input_patch: ClassVar[int] = 1

    def draw(self, smashed: Tensor, present: Tensor, coins: Generator, generator: Generator) -> Tensor:
        rows, columns = box_grid(self.name, smashed, self.side, leading=3)
        ratios = dirichlet_ratios(present, self.concentration, coins)
        groups, members = ratios.shape
        order = uniform_permutations(groups, members, generator)
        areas = ratios.gather(1, order).flip(1).cumsum(1).flip(1)
        areas[:, 0] = 1.0  # the background: exactly 1, despite rounding errors of the sum
        boxes = nested_boxes(areas.clamp(max=1), rows, columns, generator)
        return owner_masks(order.gather(1, boxes.sum(1) - 1), members)


@dataclass(frozen=True, kw_only=True)
class ShuffledCutMix(RandomCutMix):
    """Random CutMix with the positions of every mixed image shuffled; nothing is proven.

    As in the paper, the model is cut after the position embedding, so each token reveals its position. Hence the
    shuffle adds no privacy in the certificate.

    The release's `weights` are each client's share λ_i of the positions, float [G, k, 1] for G groups of k clients.
    They are not the masks, because the shuffle moves the positions. The receipt (which the server does not get) holds
    the masks before the shuffle.

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
        groups, _, length = weights.shape
        batch, image_shape = smashed.shape[2], smashed.shape[3:]
        order = uniform_permutations(groups * batch, length, generator).view(groups, batch, length)
        owner = weights.int().argmax(1)
        if len(image_shape) == 2:
            return pick_rows(smashed, owner, order)
        assert self.side is not None  # `positions` raises an error for None
        c, h, w = image_shape
        return unpatchify(pick_rows(patchify(smashed, self.side), owner, order), self.side, (c, h, w))
