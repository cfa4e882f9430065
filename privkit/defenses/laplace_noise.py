"""Laplace noise on smashed data that are clamped coordinate by coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED, Noise
from privkit.constraints import Positive
from privkit.defenses import noise
from privkit.defenses.base import Defense, Effect, Place, Release
from privkit.defenses.charge import Noised


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(Defense):
    """Laplace noise on smashed data; differentially private only with a clip. Labels are the server's.

    Attributes:
        scale: b > 0, in units of the smashed data; the standard deviation is √2·b.
        clip: each coordinate is clamped to [−c, c]; None leaves them unbounded, and then nothing is proven. There is no
            L2 clip: a ball of n coordinates is 2√n·c wide in L1, which is what Laplace noise is charged by.
        place: "client", "mixer" (trusted) or "server", whose noise proves nothing against itself.
        at_inference: whether test images get noise, too.
        noise_in_place: as in `GaussianNoise`; for reproduction only.

    Source: accurate_sl appendix B.1. Its Table 11 divides √n by b, where the L1 diameter of [−1, 1]^n is 2n.
    """

    name: ClassVar[str] = "laplace_noise"
    effects: ClassVar[frozenset[Effect]] = frozenset({"noises"})
    noise_fields: ClassVar[tuple[str, ...]] = ("scale",)

    scale: Positive = 0.7
    clip: Positive | None = 1.0
    place: Place = "client"
    at_inference: bool = True
    noise_in_place: bool = False

    @property
    def variance(self) -> float:
        """2b², of every coordinate."""
        return 2 * self.scale * self.scale

    @property
    def remarks(self) -> tuple[str, ...]:
        """That the run had the fault, if it had."""
        return (noise.IN_PLACE,) if self.noise_in_place else ()

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Noised]:
        """Clamp every coordinate and add noise to it; the release keeps the type of the smashed data.

        >>> import torch
        >>> _, receipt = LaplaceNoise(scale=4.0).apply(torch.zeros(1, 1, 2), torch.zeros(1, 1), Generator())
        >>> receipt.certificate().epsilon <= 2 * 2 / 4.0
        True
        """
        coordinates = noise.require_images(self.name, smashed)
        noisy = noise.laplace(noise.clipped(smashed, self.clip, "coordinate"), self.scale, generator).to(smashed.dtype)
        receipt = Noised(
            clip=noise.clip_set(self.clip, "coordinate", coordinates),
            noise=Noise(law="laplace", smashed=self.scale),
            mixing=UNMIXED,
            added_by=self.place,
            at_inference=self.at_inference,
        )
        released = noise.overwritten(smashed, noisy) if self.noise_in_place else noisy
        return Release(smashed=released, labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Clamped, without noise."""
        return noise.clipped(smashed, self.clip, "coordinate").to(smashed.dtype)
