"""Clamp to [0, Δ] and Gaussian noise on smashed data and labels: what DP-SL, DP-MixSL and DP-CutMixSL share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED, Noise
from privkit.accountants.spec.sensitivity import Clamp, OneHot
from privkit.constraints import Checked, Positive
from privkit.defenses import mixing, noise
from privkit.defenses.base import Place
from privkit.defenses.charge import Mixing, Noised

Pair = tuple[Tensor, Tensor]

Site = Literal["client", "mixer"]
"""Who adds the noise: each client before mixing, or the mixer once."""


@dataclass(frozen=True, kw_only=True)
class BoundedNoise(Checked):
    """The Gaussian mechanism of DP-CutMixSL, before mixing (Eq. 5) or after it (Eq. 15 and 16).

    Attributes:
        sigma: σ_s > 0.
        sigma_labels: σ_y > 0; None for labels without noise.
        bound: Δ > 0.
        site: "client" or "mixer".
        place: "client", "mixer" or "server".

    >>> BoundedNoise(sigma=0, sigma_labels=None, bound=1, site="client", place="client")
    Traceback (most recent call last):
        ...
    ValueError: sigma must be a finite number > 0, got 0
    """

    sigma: Positive
    sigma_labels: Positive | None
    bound: Positive
    site: Site
    place: Place

    def before(self, smashed: Tensor, labels: Tensor, generator: Generator) -> Pair:
        """Smashed data [..., B, ...] in [0, Δ] and labels [..., B, L] in the simplex, with the clients' noise if it is
        theirs to add."""
        clipped, label = noise.clamp(smashed, 0.0, self.bound), noise.simplex(labels)
        return self._noisy(clipped, label, generator) if self.site == "client" else (clipped, label)

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Smashed data [N, ...] in [0, Δ], without noise."""
        return noise.clamp(smashed, 0.0, self.bound).to(smashed.dtype)

    def apart(self, clipped: Tensor) -> Tensor | None:
        """What `before` gave, where it is what clients send."""
        return clipped if self.site == "client" else None

    def apart_labels(self, label: Tensor) -> Tensor | None:
        """The labels that `before` gave, where clients add noise to them."""
        return None if self.sigma_labels is None else self.apart(label)

    def after(self, mixed: Tensor, labels: Tensor, generator: Generator) -> Pair:
        """The mix with the mixer's noise, if it is the mixer's to add."""
        return self._noisy(mixed, labels, generator) if self.site == "mixer" else (mixed, labels)

    def receipt(
        self,
        coordinates: int,
        *,
        at_inference: bool,
        mix: Mixing = UNMIXED,
        ratios: Tensor | None = None,
        counts: Tensor | None = None,
        present: Tensor | None = None,
    ) -> Noised:
        """For images of so many coordinates."""
        return Noised(
            clip=Clamp(low=0, high=self.bound, dimensions=coordinates),
            noise=Noise(smashed=self.sigma, labels=self.sigma_labels, site=self.site),
            labels=None if self.sigma_labels is None else OneHot(),
            mixing=mix,
            added_by="client" if self.site == "client" else self.place,
            mixed_by=self.place,
            at_inference=at_inference,
            ratios=ratios,
            counts=counts,
            present=present,
        )

    def _noisy(self, smashed: Tensor, labels: Tensor, generator: Generator) -> Pair:
        """Both with fresh noise."""
        smashed = noise.gaussian(smashed, self.sigma, generator)
        return smashed, labels if self.sigma_labels is None else noise.gaussian(labels, self.sigma_labels, generator)


def seated(name: str, smashed: Tensor, labels: Tensor, group: int, present: Tensor | None) -> tuple[Tensor, ...]:
    """Groups as [G, k, B, ...], [G, k, B, L] and [G, k].

    Raises:
        ValueError: if shapes or types are not those of groups of k with one-hot labels.

    >>> import torch
    >>> seated("dp_mixsl", torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 2), 2, None)[2].tolist()
    [[True, True]]
    """
    smashed, labels, present = mixing.check_group(name, smashed, labels, group, present)
    noise.require_one_hot(name, labels, tuple(smashed.shape[:3]))
    return smashed, labels, present
