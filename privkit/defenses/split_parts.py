"""Splits a release into parts in several storages; an adversary holds one, some or all of the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from privkit.defenses.base import Defense, Effect, OnSmashed, PartsBy
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class SplitParts(OnSmashed[Nothing]):
    """Cuts each release into parts that different storages hold; nothing is proven for any part.

    Attributes:
        parts: number of parts, ≥ 2, named `part_1`, `part_2`, … They are contiguous; the first parts may have one
            channel or place more than the others.
        by: what a part consists of: "channels" of every place, or "places" (tokens, or rows of feature maps) with all
            channels.
        place: the party that splits: "client", or "mixer" after a stage that mixes.

    The server computes on all parts. An audit's option `--parts part_1` names the parts that the adversary holds.

    Source: privkit's own. There is no noise and no secret, so each holder sees its own part unchanged. With "places", a
    holder sees zeros at all other places.

    >>> _, receipt = SplitParts(parts=2).apply(torch.zeros(1, 2, 4, 5), torch.zeros(1, 2), Generator())
    >>> dict(receipt.quantities)
    {'coordinates_part_1': 12.0, 'coordinates_part_2': 8.0}
    >>> _, receipt = SplitParts(parts=3, by="places").apply(torch.zeros(1, 2, 4, 5), torch.zeros(1, 2), Generator())
    >>> dict(receipt.quantities)
    {'coordinates_part_1': 10.0, 'coordinates_part_2': 5.0, 'coordinates_part_3': 5.0}
    """

    name: ClassVar[str] = "split_parts"
    effects: ClassVar[frozenset[Effect]] = frozenset({"splits"})

    parts: Annotated[int, Ge(2), "one part is the whole release"] = 2
    by: PartsBy = "channels"
    place: Literal["client", "mixer"] = "client"

    @property
    def storages(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"part_{number + 1}" for number in range(self.parts))

    @property
    def parts_by(self) -> PartsBy:  # type: ignore[override]
        return self.by

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        require_messages(self.name, smashed)
        axis = _axis(smashed.ndim - 1, self.by) + 1
        if axis == 1:
            raise ValueError(f"vectors have no places, got shape {list(smashed.shape)}; use split_parts:by=channels")
        if smashed.shape[axis] < self.parts:
            raise ValueError(
                f"split_parts:parts={self.parts} needs as many {self.by}, got shape {list(smashed.shape)}; "
                "use fewer parts"
            )
        image = smashed[:1, :1].tensor_split(self.parts, axis)
        return smashed, Nothing(
            reason="each storage holds its part of the smashed data as it is; no differential privacy",
            quantities={f"coordinates_{name}": float(p.numel()) for name, p in zip(self.storages, image, strict=True)},
            assumptions=("the storages do not share what they hold, except with an adversary that holds several",),
        )


def _axis(ndim: int, by: PartsBy) -> int:
    """The axis of channels, or the axis of places (0 for vectors), in records [N, C, H, W], [N, T, D] or [N, D]."""
    return {4: 1}.get(ndim, ndim - 1) if by == "channels" else {4: 2, 3: 1}.get(ndim, 0)


def held_parts(rows: Tensor, defense: Defense, held: Sequence[str]) -> Tensor:
    """The named parts of N released records, [N, T, D], [N, C, H, W] or [N, D], that an adversary holds.

    If parts consist of channels, the result has the held channels in order. If they consist of places (tokens or rows),
    it has all places, with zeros at those that are not held. If `held` is empty or the defense splits nothing, the
    whole records are returned.
    """
    if not defense.storages or not held:
        return rows
    axis = _axis(rows.ndim, defense.parts_by)
    chunks = zip(defense.storages, rows.tensor_split(len(defense.storages), axis), strict=True)
    if defense.parts_by == "places":
        return torch.cat([chunk if name in held else torch.zeros_like(chunk) for name, chunk in chunks], axis)
    return torch.cat([chunk for name, chunk in chunks if name in held], axis)
