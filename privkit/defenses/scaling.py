"""Scaling: every coordinate of the smashed data times one factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.constraints import Positive
from privkit.defenses.base import Effect, Place
from privkit.defenses.denoising import Automatic, Denoising, Variant
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class Scaling(Denoising):
    """Multiplies the smashed data by λ; behind noise, λ < 1 makes the noise smaller, and the signal, too.

    Attributes:
        factor: λ = 1/α > 0, or "auto" for the λ of least error, estimated while the server trains.
        place: "server" denoises what arrived; "client" or "mixer" scales before it arrives.
        variant: see `privkit.defenses.denoising.Variant`. accurate_sl released "undone" for MNIST, "straight_through"
            for IMDB, and "straight_through_logits" for CIFAR-10, ImageNet and Amazon reviews.

    Source: accurate_sl §3, the scaling operator S_α.

    >>> import torch
    >>> Scaling(factor=0.5).apply(torch.ones(1, 1, 2), torch.zeros(1, 1), Generator())[0].smashed.tolist()
    [[[0.5, 0.5]]]
    """

    name: ClassVar[str] = "scaling"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps"})
    setting: ClassVar[str] = "factor"

    factor: Positive | Automatic = 0.2
    place: Place = "server"
    variant: Variant = "exact"

    def changed(self, values: Tensor, generator: Generator | None) -> Tensor:
        """The values times the factor, without randomness."""
        assert self.factor != "auto"
        return values * self.factor

    def nothing(self) -> Nothing:
        """Nothing is proven, because division undoes the scaling."""
        return Nothing(reason="scaled smashed data are divided by the factor again; no differential privacy")

    def public_transform(self, smashed: Tensor) -> Tensor:
        """The whole stage: smashed data times the factor."""
        return smashed if self.on_logits or self.automatic else self.changed(smashed, None)

    def before_backward(self, arrived: Tensor) -> None:
        """Divide by the factor behind autograd's back, as the release does, if the variant is "undone"."""
        if self.variant == "undone" and self.factor != "auto":
            arrived.data.div_(self.factor)
