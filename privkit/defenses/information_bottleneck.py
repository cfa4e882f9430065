"""The information bottleneck: noise on smashed data, and lower segments trained to send few bits about a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Annotated, ClassVar

from annotated_types import Ge, Le
from torch import Tensor

from privkit.constraints import Magnitude, NonNegative
from privkit.defenses.base import Effect
from privkit.defenses.noise import AddedNoise, widened


@dataclass(frozen=True, kw_only=True)
class InformationBottleneck(AddedNoise):
    """Adds noise to the lower segment's output h, and weight · KL(N(h, σ²I) ‖ N(0, I)) to the clients' loss.

    The release is z ~ N(h, σ²I). The mean KL divergence over the records is an upper bound, in nats, on the mutual
    information of records and releases. The bound holds for this lower segment and these records. Without `clip` it
    implies no differential privacy, since the h of a new record can be far from the h of all other records. The KL
    divergence is computed before clipping.

    Attributes:
        weight: weight of the KL divergence in the loss, ≥ 0; the divergence is a sum over all coordinates of a record.
        sigma: standard deviation of the noise, > 0, in units of the smashed data.
        clip: bound c > 0: each coordinate is clamped to [−c, c] before the noise, so that an ε can be proven. None
            leaves coordinates unbounded.

    Source: Alemi et al. 2017, "Deep variational information bottleneck", Eq. 17; Zou, Liu and Zhang 2023, "Mutual
    information regularization for vertical federated learning" (arXiv 2301.01142). The papers learn a σ for each
    coordinate; here all coordinates share one σ. The default weight is privkit's.

    >>> import torch
    >>> bottleneck = InformationBottleneck(weight=1.0, sigma=1.0)
    >>> bottleneck.penalty(torch.zeros(1, 2, 5), torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]), None)
    tensor([6.2500])
    """

    name: ClassVar[str] = "information_bottleneck"
    effects: ClassVar[frozenset[Effect]] = frozenset({"trains", "noises"})
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    noise_in_place = False

    weight: NonNegative = 1e-3
    sigma: Annotated[float, Ge(1e-30), Le(1e15)] = 1.0  # the divergence squares it, in float32
    clip: Magnitude | None = None

    def penalty(self, images: Tensor, smashed: Tensor, companion: Callable[[Tensor], Tensor] | None) -> Tensor:
        """The weight times the mean KL divergence over the records of each message, [M]."""
        h, variance = widened(smashed).flatten(2), self.sigma * self.sigma
        return self.weight * (h.square() + (variance - 1 - 2 * log(self.sigma))).sum(2).mean(1) / 2
