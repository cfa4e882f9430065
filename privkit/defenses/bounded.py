"""A bound of the smashed data that the accountant knows: a tanh behind any cut, or a cut that is bounded already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.accountants.spec.sensitivity import Clamp
from privkit.defenses import noise
from privkit.defenses.base import Defense, Effect, Place, Release
from privkit.defenses.receipts import NOT_DP, Nothing
from privkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Bounded(Defense):
    """Smashed data in [−1, 1]; alone this proves nothing, in front of noise it bounds the sensitivity.

    Attributes:
        bound: "tanh" passes every number through tanh. "cut" says that the model's cut ends in a tanh already; each
            release is checked, and a number outside [−1, 1] stops the run.
        place: "client" or "mixer".

    Source: accurate_sl §3: "To bound the magnitude of X, we use tanh as the activation function."
    """

    name: ClassVar[str] = "bounded"
    effects: ClassVar[frozenset[Effect]] = frozenset({"clips"})

    bound: Literal["tanh", "cut"] = "tanh"
    place: Place = "client"

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Bound smashed data, number by number.

        Raises:
            UsageError: if the cut is called bounded and is not.

        >>> Bounded().apply(torch.full((1, 1, 2), 20.0), torch.zeros(1, 1), Generator())[0].smashed.tolist()
        [[[1.0, 1.0]]]
        """
        coordinates = noise.require_images(self.name, smashed)
        if self.bound == "cut" and (largest := smashed.detach().abs().max().item()) > 1:
            raise UsageError(
                f"bounded:bound=cut says that the smashed data lie in [-1, 1], but one number has size {largest:.4g}; "
                "use bound=tanh, or cut the model behind a tanh"
            )
        receipt = Nothing(
            reason=f"smashed data in [-1, 1] are released {NOT_DP}",
            bound=Clamp(low=-1, high=1, dimensions=coordinates),
        )
        return Release(smashed=self.public_transform(smashed), labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Behind the tanh, if there is one."""
        return torch.tanh(smashed) if self.bound == "tanh" else smashed
