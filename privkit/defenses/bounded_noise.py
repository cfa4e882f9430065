"""A clamp of width Δ and Gaussian noise on smashed data and labels: what DP-SL, DP-MixSL and DP-CutMixSL share."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED, Noise
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
        bound: Δ > 0, the width of the interval of every coordinate, [0, Δ]; None leaves smashed data as they are, and
            then nothing is proven.
        signed: whether that interval is [−Δ/2, Δ/2], which keeps negative coordinates. Its width and ε are the same.

    Source: DP-CutMixSL §4 assumes [0, Δ] and gives no rule. `signed` and bound=none are privkit's: embeddings have both
    signs, and a clamp to [0, Δ] loses the negative half with its gradient.
    """

    effects: ClassVar[frozenset[Effect]] = frozenset({"noises"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    soft_labels: ClassVar[bool] = True

    sigma: float
    sigma_labels: float | None
    bound: float | None
    signed: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.signed and self.bound is None:
            raise ValueError("signed=true says where the clamp lies, and bound=none clamps nothing; drop one of them")
        if self.signed and self.level == "input":
            raise ValueError("signed=true would cut off the bright half of images in [0, 1]; drop it with level=input")

    @property
    def interval(self) -> tuple[float, float] | None:
        """To where every coordinate is clamped, or None."""
        if self.bound is None:
            return None
        return (-self.bound / 2, self.bound / 2) if self.signed else (0.0, self.bound)

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Clamped, without noise."""
        return noise.clamp(smashed, *self.interval).to(smashed.dtype) if self.interval else smashed

    def bounded(self, smashed: Tensor, labels: Tensor) -> Pair:
        """Smashed data [..., B, ...] in their interval and labels [..., B, L] in the simplex."""
        smashed = noise.clamp(smashed, *self.interval) if self.interval else noise.widened(smashed)
        return smashed, noise.simplex(labels)

    def noisy(self, smashed: Tensor, labels: Tensor, generator: Generator) -> Pair:
        """Both with fresh noise."""
        smashed = noise.gaussian(smashed, self.sigma, generator)
        return smashed, labels if self.sigma_labels is None else noise.gaussian(labels, self.sigma_labels, generator)

    def receipt(self, coordinates: int, site: Site = "client") -> Noised:
        """For images of so many coordinates."""
        low_high = self.interval
        return Noised(
            clip=None if low_high is None else Clamp(low=low_high[0], high=low_high[1], dimensions=coordinates),
            noise=Noise(smashed=self.sigma, labels=self.sigma_labels, site=site),
            mixing=UNMIXED,
            labels=None if self.sigma_labels is None else OneHot(),
            added_by=self.place,
            mixed_by=self.place,
            at_inference=self.at_inference,
        )
