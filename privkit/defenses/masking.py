"""Random masking: every coordinate of the smashed data is kept with a probability, and set to 0 otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Probability
from privkit.defenses.base import Effect, Place
from privkit.defenses.denoising import Automatic, Denoising, Variant, uniform
from privkit.defenses.receipts import NOT_DP, Nothing


@dataclass(frozen=True, kw_only=True)
class Masking(Denoising):
    """Keeps each coordinate with probability `keep`, drawn afresh for each; behind noise, it removes some of the noise.

    What is kept is not divided by `keep`, as dropout would.

    Attributes:
        keep: p in [0, 1], or "auto" for the p of least error, estimated while the server trains.
        place: "server" denoises what arrived; "client" or "mixer" masks before it arrives.
        variant: see `privkit.defenses.denoising.Variant`; all but "undone", which restores what a mask has lost.
            accurate_sl released "straight_through".
        at_inference: whether test images are masked, too. Logits of test images never are.

    Source: accurate_sl §3, the random masking operator R_p.

    >>> z = torch.ones(2, 3, 100, 10)
    >>> release, _ = Masking(keep=0.2).apply(z, torch.zeros(2, 3), Generator().manual_seed(0))
    >>> round(release.smashed.mean().item(), 2)
    0.2
    """

    name: ClassVar[str] = "masking"
    effects: ClassVar[frozenset[Effect]] = frozenset({"masks"})
    setting: ClassVar[str] = "keep"

    keep: Probability | Automatic = 0.2
    place: Place = "server"
    variant: Variant = "exact"
    at_inference: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variant == "undone":
            raise ValueError(
                "variant=undone divides by a factor again, and a mask has none; use exact, straight_through, logits or "
                "straight_through_logits"
            )

    def changed(self, values: Tensor, generator: Generator | None) -> Tensor:
        """The values with random coordinates set to 0."""
        assert self.keep != "auto"
        return torch.where(uniform(values, generator) < self.keep, values, 0)

    def nothing(self) -> Nothing:
        """Nothing is proven, because the server sees which coordinates are 0."""
        return Nothing(reason=f"the coordinates that a mask kept are released as they are, {NOT_DP}")
