"""Clamp to [0, Δ] and Gaussian noise on smashed data and labels: what DP-SL, DP-MixSL and DP-CutMixSL share."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Generator, Tensor

from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from privkit.defenses import noise
from privkit.defenses.base import Defense, Effect
from privkit.defenses.charge import Noised

Pair = tuple[Tensor, Tensor]

Site = Literal["client", "mixer"]
"""Who adds the noise: each client before mixing, or the mixer once."""


class BoundedNoise(Defense):
    """The Gaussian mechanism of DP-CutMixSL: Eq. 14 alone, Eq. 5 before mixing, Eq. 15 and 16 after it.

    Attributes:
        sigma: σ_s > 0.
        sigma_labels: σ_y > 0; None for labels without noise.
        bound: Δ > 0.
    """

    effects: ClassVar[frozenset[Effect]] = frozenset({"noises"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    soft_labels: ClassVar[bool] = True

    sigma: float
    sigma_labels: float | None
    bound: float

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Clamped, without noise."""
        return noise.clamp(smashed, 0.0, self.bound).to(smashed.dtype)

    def bounded(self, smashed: Tensor, labels: Tensor) -> Pair:
        """Smashed data [..., B, ...] in [0, Δ] and labels [..., B, L] in the simplex."""
        return noise.clamp(smashed, 0.0, self.bound), noise.simplex(labels)

    def noisy(self, smashed: Tensor, labels: Tensor, generator: Generator) -> Pair:
        """Both with fresh noise."""
        smashed = noise.gaussian(smashed, self.sigma, generator)
        return smashed, labels if self.sigma_labels is None else noise.gaussian(labels, self.sigma_labels, generator)

    def receipt(self, coordinates: int, site: Site = "client") -> Noised:
        """For images of so many coordinates."""
        return Noised(
            clip=Clamp(low=0, high=self.bound, dimensions=coordinates),
            noise=Noise(smashed=self.sigma, labels=self.sigma_labels, site=site),
            labels=None if self.sigma_labels is None else OneHot(),
            added_by=self.place,
            mixed_by=self.place,
            at_inference=self.at_inference,
        )
