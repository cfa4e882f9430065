"""Parts of a release: its channels lie in several storages, and an adversary holds one, some or all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from privkit.defenses.base import Effect, OnSmashed
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class SplitParts(OnSmashed[Nothing]):
    """Cuts the channels of a release into parts in different storages; nothing is proven for any part.

    Attributes:
        parts: how many, ≥ 2: `part_1`, `part_2`, …, channels as equal as possible, the first ones larger.
        place: "client", or "mixer" behind a stage that mixes.

    The server computes on all parts. `--parts part_1` names the parts that an audit's adversary holds.

    Source: privkit's. There is no noise and no secret, so each holder sees its channels as they are.

    >>> _, receipt = SplitParts(parts=2).apply(torch.zeros(1, 2, 4, 5), torch.zeros(1, 2), Generator())
    >>> dict(receipt.quantities)
    {'coordinates_part_1': 12.0, 'coordinates_part_2': 8.0}
    """

    name: ClassVar[str] = "split_parts"
    effects: ClassVar[frozenset[Effect]] = frozenset({"splits"})

    parts: Annotated[int, Ge(2), "one part is the whole release"] = 2
    place: Literal["client", "mixer"] = "client"

    @property
    def storages(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"part_{number + 1}" for number in range(self.parts))

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        require_messages(self.name, smashed)
        axis = _channel_axis(smashed.ndim - 1) + 1
        if smashed.shape[axis] < self.parts:
            raise ValueError(
                f"split_parts:parts={self.parts} needs as many channels, got shape {list(smashed.shape)}; "
                "use fewer parts"
            )
        image = smashed[:1, :1].tensor_split(self.parts, axis)
        return smashed, Nothing(
            reason="each storage holds its part of the smashed data as it is; no differential privacy",
            quantities={f"coordinates_{name}": float(p.numel()) for name, p in zip(self.storages, image, strict=True)},
            assumptions=("the storages do not share what they hold, except with an adversary that holds several",),
        )


def _channel_axis(ndim: int) -> int:
    """The channels of rows: axis 1 of feature maps [N, C, H, W], else the last."""
    return 1 if ndim == 4 else ndim - 1


def held_parts(rows: Tensor, storages: Sequence[str], held: Sequence[str]) -> Tensor:
    """The channels of rows [N, T, D], [N, C, H, W] or [N, D] that an adversary holds, in their order.

    Args:
        rows: of a release.
        storages: names of the parts of the release; empty if it was not split.
        held: names of the adversary's parts; empty for all of them.

    >>> held_parts(torch.arange(5).view(1, 5), ("part_1", "part_2"), ("part_2",))
    tensor([[3, 4]])
    """
    if not storages or not held:
        return rows
    axis = _channel_axis(rows.ndim)
    chunks = zip(storages, rows.tensor_split(len(storages), axis), strict=True)
    return torch.cat([chunk for name, chunk in chunks if name in held], axis)
