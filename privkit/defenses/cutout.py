"""Cutout: each client drops positions of its smashed data, at random places or in one box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Count, Probability, Whole
from privkit.defenses.base import Defense, Effect, Level, Place, Release
from privkit.defenses.masks import INPUT_PATCH, box_grid, nested_boxes, positions, spread, uniform_permutations
from privkit.defenses.receipts import NOT_DP, Nothing


@dataclass(frozen=True, kw_only=True)
class RandomCutout(Defense):
    """Keeps a random share of each client's positions (tokens or patches) and zeroes the rest; nothing is proven.

    Attributes:
        payload: share of positions that are kept and sent, in [0, 1], rounded to whole positions.
        stationary: whether a client has the same mask in every round. At the mixer or server, all messages have one
            mask, since mixing gives a message to other clients in every round.
        mask_seed: seed of stationary masks; fresh masks come from the round's generator.
        level: what is masked: "smashed" data, or images at the "input".
        place: the party that masks: "client", "mixer" or "server". A server masks data that it has already seen.
        patch: side in pixels of one position of a feature map or an image; unused for tokens, each of which is a
            position. None means 2 at the input layer.

    The release's `weights` are the masks, [M, 1, T] for M clients and T positions: 1 for a kept position, otherwise 0.

    Source: DP-CutMixSL §3.B, Eq. 4 (patch-wise), "Impact of Mask Stationarity" and, for images, appendix C.

    >>> z = torch.ones(3, 4, 16, 6)
    >>> release, receipt = RandomCutout(payload=0.25).apply(z, torch.zeros(3, 4), torch.Generator().manual_seed(0))
    >>> receipt.masks.sum(1).tolist(), release.smashed.mean().item()
    ([4, 4, 4], 0.25)
    """

    name: ClassVar[str] = "random_cutout"
    effects: ClassVar[frozenset[Effect]] = frozenset({"masks"})
    at_inference = False
    input_patch: ClassVar[int] = INPUT_PATCH
    server_knows: ClassVar[str] = "the server sees which positions are zero, or is sent one bit per position"

    payload: Probability = 0.5
    stationary: bool = False
    mask_seed: Whole = 0
    level: Level = "smashed"
    place: Place = "client"
    patch: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level == "input" and self.place != "client":
            raise ValueError(
                f"level=input with place={self.place} would send the images to another party; use place=client"
            )

    @property
    def side(self) -> int | None:
        return self.input_patch if self.patch is None and self.level == "input" else self.patch

    def masks(self, smashed: Tensor, generator: Generator) -> Tensor:
        """Masks of kept positions, bool [M, T], one per client; all images of a client share its mask."""
        total = positions(self.name, smashed, self.side, leading=2)
        return uniform_permutations(len(smashed), total, generator) < round(self.payload * total)

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        if self.stationary:  # drawn on the CPU, so that a seed means the same masks on every device
            rows = (smashed if self.place == "client" else smashed[:1]).to("meta")
            masks = self.masks(rows, Generator().manual_seed(self.mask_seed)).to(smashed.device)
            masks = masks.expand(len(smashed), -1)
        else:
            masks = self.masks(smashed, generator)
        # Not a product: 0·x has the sign of x, and is NaN if x overflowed.
        kept = torch.where(spread(masks, smashed, self.side, leading=2), smashed, 0)
        release = Release(smashed=kept, labels=labels, weights=masks.to(smashed.dtype).unsqueeze(1))
        again = "the same in every round: what they drop is never sent"
        fresh = "fresh every round: over the epochs the server sees more positions of one record"
        receipt = Nothing(
            reason=f"the positions that masks kept are released as they are, {NOT_DP}",
            assumptions=(
                self.server_knows,
                "what a mask dropped may still be guessed from the positions around it",
                f"masks are {again if self.stationary else fresh}",
            ),
            masks=masks,
            stationary=self.stationary,
            masked_by=self.place,
        )
        return release, receipt


@dataclass(frozen=True, kw_only=True)
class CutSmashed(RandomCutout):
    """Sends a random share of each client's positions (tokens or patches) and drops the rest; nothing is proven.

    Client and server know the pseudo-random sequence of masks. So no masks are sent, and the server fills in zeros.
    Otherwise this is `random_cutout`, with the same options.

    Source: CutMixSL §3.1, Eq. 1 and Figure 2 (masks fixed for all rounds, or drawn in every round).
    """

    name: ClassVar[str] = "cutsmashed"
    server_knows: ClassVar[str] = "the server knows which positions these are: it shares the pseudo-random sequence"


@dataclass(frozen=True, kw_only=True)
class VanillaCutout(RandomCutout):
    """Zeroes one random box in the smashed data of each client; nothing is proven.

    Attributes:
        payload: share of positions outside the box, which are kept and sent, in [0, 1]. The box covers the rest, with
            an error of at most h/2 positions if it has h rows.
        patch: side in pixels of one position of a feature map or an image; 1 cuts between any two pixels. Unused for
            tokens, each of which is a position; they must form a square grid. None means 1 at the input layer.

    The other fields are documented in `RandomCutout`.

    Source: DeVries and Taylor 2017; DP-CutMixSL §3.B, Eq. 4; CutMixSL appendix B, Eq. 9.

    >>> z = torch.ones(3, 4, 16, 6)
    >>> release, receipt = VanillaCutout(payload=0.75).apply(z, torch.zeros(3, 4), torch.Generator().manual_seed(0))
    >>> receipt.masks.sum(1).tolist()
    [12, 12, 12]
    """

    name: ClassVar[str] = "vanilla_cutout"
    input_patch: ClassVar[int] = 1
    server_knows: ClassVar[str] = "the server sees which positions are zero, or is sent the box as four numbers"

    def masks(self, smashed: Tensor, generator: Generator) -> Tensor:
        rows, columns = box_grid(self.name, smashed, self.side, leading=2)
        areas = torch.full((len(smashed), 1), 1 - self.payload, dtype=torch.float64, device=generator.device)
        return ~nested_boxes(areas, rows, columns, generator).squeeze(1)
