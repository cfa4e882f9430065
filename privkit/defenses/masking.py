"""Random masking: every coordinate of the smashed data is kept with a probability, and set to 0 otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from privkit.constraints import Probability
from privkit.defenses.base import Defense, Effect, Place, Release
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import NOT_DP, Nothing


@dataclass(frozen=True, kw_only=True)
class Masking(Defense):
    """Keeps each coordinate with probability `keep`, drawn afresh for each; behind noise, it removes some of the noise.

    Attributes:
        keep: p in [0, 1].
        place: "server" denoises what arrived; "client" or "mixer" masks before it arrives.
        at_inference: whether test images are masked, too.

    Source: accurate_sl §3, the random masking operator R_p.
    """

    name: ClassVar[str] = "masking"
    effects: ClassVar[frozenset[Effect]] = frozenset({"masks"})

    keep: Probability = 0.2
    place: Place = "server"
    at_inference: bool = True

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Mask coordinate by coordinate; the server sees which are 0, so nothing is proven.

        >>> z = torch.ones(2, 3, 100, 10)
        >>> release, _ = Masking(keep=0.2).apply(z, torch.zeros(2, 3), Generator().manual_seed(0))
        >>> round(release.smashed.mean().item(), 2)
        0.2
        """
        require_messages(self.name, smashed)
        kept = torch.rand(smashed.shape, generator=generator, device=smashed.device) < self.keep
        receipt = Nothing(reason=f"the coordinates that a mask kept are released as they are, {NOT_DP}")
        return Release(smashed=torch.where(kept, smashed, 0), labels=labels), receipt
