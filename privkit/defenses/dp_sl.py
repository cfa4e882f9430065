"""DP-SL: clamped smashed data and one-hot labels, each with Gaussian noise, without mixing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from privkit.constraints import Positive
from privkit.defenses import noise
from privkit.defenses.base import Place, Release
from privkit.defenses.bounded_noise import BoundedNoise
from privkit.defenses.charge import Noised


@dataclass(frozen=True, kw_only=True)
class DpSl(BoundedNoise):
    """Differentially private split learning: clamp and add Gaussian noise to smashed data and labels.

    Attributes:
        sigma: standard deviation σ_s > 0 on smashed data.
        sigma_labels: standard deviation σ_y > 0 on one-hot labels; None sends them as they are, which is then said.
        bound: Δ > 0. Every coordinate is clamped to [0, Δ] after the position embedding. The paper assumes such a range
            and gives no rule; a model's negative coordinates are lost, and so is their gradient. None clamps nothing,
            and then nothing is proven.
        signed: clamp to [−Δ/2, Δ/2] instead: negative coordinates stay, and ε is the same.
        place: "client", "mixer" (trusted) or "server", whose noise proves nothing against itself.
        at_inference: whether test images get noise, too.

    Source: DP-CutMixSL Eq. 14, Table 1 (whose "variance" 16/255 is a standard deviation).
    """

    name: ClassVar[str] = "dp_sl"

    sigma: Positive = 16 / 255
    sigma_labels: Positive | None = 16 / 255
    bound: Positive | None = 0.15
    signed: bool = False
    place: Place = "client"
    at_inference: bool = True

    def apply(
        self, smashed: Tensor, labels: Tensor, generator: Generator, present: Tensor | None = None
    ) -> tuple[Release, Noised]:
        """Clamp, and add noise to every coordinate of smashed data and labels, which may become negative.

        >>> import torch
        >>> z, y = torch.zeros(1, 1, 5, 2), torch.eye(2)[:1].view(1, 1, 2)
        >>> _, receipt = DpSl().apply(z, y, Generator().manual_seed(0))
        >>> round(receipt.certificate().epsilon, 1)
        383.0
        """
        coordinates = noise.require_images(self.name, smashed)
        noise.require_one_hot(self.name, labels, tuple(smashed.shape[:2]))
        noisy, label = self.noisy(*self.bounded(smashed, labels), generator)
        return Release(smashed=noisy.to(smashed.dtype), labels=label), self.receipt(coordinates)
