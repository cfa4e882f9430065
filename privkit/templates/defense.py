"""Defense `template`: passes every coordinate of the smashed data through a tanh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.constraints import Positive
from privkit.defenses.base import Defense, Effect, Release
from privkit.defenses.none import require_messages
from privkit.defenses.receipts import NOT_DP, Nothing


@dataclass(frozen=True, kw_only=True)
class Template(Defense):
    """Replaces each coordinate z of the smashed data by c·tanh(z/c), so that large values look alike.

    Attributes:
        bound: c > 0, the largest magnitude that is released.

    Source: your own.
    """

    name: ClassVar[str] = "template"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps"})  # what it does to records; None forbids chains

    bound: Positive = 1.0

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Defend messages [M, B, ...]; draw noise only from `generator`. The receipt states what is proven."""
        require_messages(self.name, smashed)
        receipt = Nothing(reason=f"squashed smashed data are released {NOT_DP}")
        return Release(smashed=self.public_transform(smashed), labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """The part of `apply` that comes before any random draw. An adversary can compute this part, too."""
        return self.bound * (smashed / self.bound).tanh()
