"""Gaussian noise on smashed data, with or without a bound on them."""

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
class GaussianNoise(Defense):
    """Gaussian noise on smashed data; differentially private only with a clip. Labels are the server's.

    Attributes:
        sigma: standard deviation, > 0, in units of the smashed data.
        clip: bound c > 0 of the smashed data; None leaves them unbounded, and then nothing is proven. 1 changes nothing
            after a Tanh.
        clip_by: "coordinate" clamps each coordinate to [−c, c]; "image" shrinks an image's smashed data to L2 norm c.
        place: "client", "mixer" (trusted) or "server", whose noise proves nothing against itself.
        at_inference: whether test images get noise, too.
        noise_in_place: write the noise through `.data` into the client's own tensor, as accurate_sl's released code
            does: the release is the same, but the gradient of a Tanh before it is wrong. For reproduction only.

    Source: accurate_sl §3 (noise on the output of the cut's Tanh); patch_shuffling Table I, "GN".
    """

    name: ClassVar[str] = "gaussian_noise"
    effects: ClassVar[frozenset[Effect]] = frozenset({"noises"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)

    sigma: Positive = 0.7
    clip: Positive | None = 1.0
    clip_by: noise.ClipBy = "coordinate"
    place: Place = "client"
    at_inference: bool = True
    noise_in_place: bool = False

    @property
    def variance(self) -> float:
        """σ², of every coordinate."""
        return self.sigma * self.sigma

    @property
    def remarks(self) -> tuple[str, ...]:
        """That the run had the fault, if it had."""
        return (noise.IN_PLACE,) if self.noise_in_place else ()

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Noised]:
        """Clip each image's smashed data and add noise to every coordinate; the release keeps their type.

        >>> import torch
        >>> z = torch.zeros(1, 2, 3, 4)
        >>> release, receipt = GaussianNoise(clip=None).apply(z, torch.zeros(1, 2), Generator().manual_seed(0))
        >>> release.smashed.shape, receipt.certificate().kind
        (torch.Size([1, 2, 3, 4]), 'nothing')
        """
        coordinates = noise.require_images(self.name, smashed)
        noisy = noise.gaussian(noise.clipped(smashed, self.clip, self.clip_by), self.sigma, generator).to(smashed.dtype)
        receipt = Noised(
            clip=noise.clip_set(self.clip, self.clip_by, coordinates),
            noise=Noise(smashed=self.sigma),
            mixing=UNMIXED,
            added_by=self.place,
            at_inference=self.at_inference,
        )
        released = noise.overwritten(smashed, noisy) if self.noise_in_place else noisy
        return Release(smashed=released, labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Clipped, without noise."""
        return noise.clipped(smashed.unsqueeze(0), self.clip, self.clip_by)[0].to(smashed.dtype)
