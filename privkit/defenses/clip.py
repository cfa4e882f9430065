"""Stages that bound the smashed data in front of noise; the accountant knows their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.accountants.spec.sensitivity import Clamp
from privkit.constraints import Magnitude
from privkit.defenses import noise
from privkit.defenses.base import Effect, OnSmashed, Place
from privkit.defenses.receipts import NOT_DP, Nothing
from privkit.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Clip(OnSmashed[Nothing]):
    """Bounds the smashed data of each image. Alone it proves nothing; in front of noise it bounds the sensitivity.

    Attributes:
        bound: c > 0, the bound on each coordinate or on an image's L2 norm (see `clip_by`).
        clip_by: "coordinate" clamps each coordinate to [−c, c]; "image" shrinks an image's smashed data to L2 norm c.
        place: the party that clips, "client", "mixer" or "server".

    Source: privkit's own; `gaussian_noise` clips in the same two ways.

    >>> Clip(bound=0.5).apply(torch.ones(1, 1, 2), torch.zeros(1, 1), Generator())[0].smashed.tolist()
    [[[0.5, 0.5]]]
    """

    name: ClassVar[str] = "clip"
    effects: ClassVar[frozenset[Effect]] = frozenset({"clips"})

    bound: Magnitude = 1.0
    clip_by: noise.ClipBy = "coordinate"
    place: Place = "client"

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        bound = noise.clip_set(self.bound, self.clip_by, noise.require_images(self.name, smashed))
        receipt = Nothing(reason=f"clipped smashed data are released {NOT_DP}", bound=bound)
        # Not cast back to bfloat16, which would round the bound up.
        return noise.clipped(smashed, self.bound, self.clip_by), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        return noise.clipped(smashed.unsqueeze(0), self.bound, self.clip_by)[0].to(smashed.dtype)


@dataclass(frozen=True, kw_only=True)
class Bounded(OnSmashed[Nothing]):
    """Bounds smashed data to [−1, 1]. Alone it proves nothing; in front of noise it bounds the sensitivity.

    Attributes:
        bound: "tanh" passes every number through tanh. "cut" declares that the model already ends in a tanh at the cut;
            each release is checked, and a number outside [−1, 1] stops the run with a `UsageError`.
        place: the party that bounds the data, "client", "mixer" or "server". A bound at the server proves nothing, even
            with noise, because the server already holds the data.

    Source: accurate_sl §3: "To bound the magnitude of X, we use tanh as the activation function."

    >>> Bounded().apply(torch.full((1, 1, 2), 20.0), torch.zeros(1, 1), Generator())[0].smashed.tolist()
    [[[1.0, 1.0]]]
    """

    name: ClassVar[str] = "bounded"
    effects: ClassVar[frozenset[Effect]] = frozenset({"clips"})

    bound: Literal["tanh", "cut"] = "tanh"
    place: Place = "client"

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
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
        return self.public_transform(smashed), receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        return torch.tanh(smashed) if self.bound == "tanh" else smashed
