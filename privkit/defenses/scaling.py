"""Scaling: every coordinate of the smashed data times one factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.constraints import Positive
from privkit.defenses.base import Defense, Effect, Place, Release
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class Scaling(Defense):
    """Multiplies the smashed data by λ; behind noise, λ < 1 makes the noise smaller, and the signal, too.

    Attributes:
        factor: λ = 1/α > 0.
        place: "server" denoises what arrived; "client" or "mixer" scales before it arrives.

    Source: accurate_sl §3, the scaling operator S_α.
    """

    name: ClassVar[str] = "scaling"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps"})

    factor: Positive = 0.2
    place: Place = "server"

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Scale the smashed data; division undoes it, so nothing is proven.

        >>> import torch
        >>> Scaling(factor=0.5).apply(torch.ones(1, 1, 2), torch.zeros(1, 1), Generator())[0].smashed.tolist()
        [[[0.5, 0.5]]]
        """
        require_messages(self.name, smashed)
        receipt = Nothing(reason="scaled smashed data are divided by the factor again; no differential privacy")
        return Release(smashed=self.public_transform(smashed), labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Scaled: all that this stage does."""
        return smashed * self.factor
