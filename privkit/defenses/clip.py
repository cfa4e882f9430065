"""Clipping alone: a stage in front of noise, whose sensitivity it bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.constraints import Positive
from privkit.defenses import noise
from privkit.defenses.base import Defense, Effect, Place, Release
from privkit.defenses.receipts import NOT_DP, Nothing


@dataclass(frozen=True, kw_only=True)
class Clip(Defense):
    """Bounds the smashed data of each image; alone it proves nothing, in front of noise it bounds the sensitivity.

    Attributes:
        bound: c > 0.
        clip_by: "coordinate" clamps each coordinate to [−c, c]; "image" shrinks an image's smashed data to L2 norm c.
        place: "client", "mixer" or "server".

    Source: privkit's; the two clip sets of `gaussian_noise`.
    """

    name: ClassVar[str] = "clip"
    effects: ClassVar[frozenset[Effect]] = frozenset({"clips"})

    bound: Positive = 1.0
    clip_by: noise.ClipBy = "coordinate"
    place: Place = "client"

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Nothing]:
        """Clip smashed data, image by image.

        >>> import torch
        >>> Clip(bound=0.5).apply(torch.ones(1, 1, 2), torch.zeros(1, 1), Generator())[0].smashed.tolist()
        [[[0.5, 0.5]]]
        """
        bound = noise.clip_set(self.bound, self.clip_by, noise.require_images(self.name, smashed))
        receipt = Nothing(reason=f"clipped smashed data are released {NOT_DP}", bound=bound)
        # Not back to bfloat16, which would round a bound up.
        return Release(smashed=noise.clipped(smashed, self.bound, self.clip_by), labels=labels), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        """Clipped: all that this stage does."""
        return noise.clipped(smashed.unsqueeze(0), self.bound, self.clip_by)[0].to(smashed.dtype)
