"""DISCO: a learned filter prunes those channels of the smashed data that help a simulated attacker most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn

from privkit.constraints import Count
from privkit.defenses.adversarial import Adversarial
from privkit.defenses.receipts import Nothing
from privkit.torch_utils.seeded import seeded

_TEMPERATURE = 1 / 30
"""Of the sigmoid whose derivative stands in for that of the choice of channels; from the authors' code."""


@dataclass(frozen=True, kw_only=True)
class Disco(Adversarial):
    """Zeroes a share of each image's channels, chosen by a filter that is trained against a simulated attacker.

    The filter lowers the task's loss and raises the attacker's error; the attacker lowers it; the lower segment itself
    is trained for the task alone. Nothing is proven. A frozen lower segment keeps its filter untrained.

    Attributes:
        ratio: share of the channels that are pruned, in [0, 1), rounded down to whole channels.
        strength: weight of the attacker's error in the filter's loss, ≥ 0; α/(1 − α) in the authors' code.
        width: channels inside the simulated attacker, and of the filter's hidden layer, ≥ 1.
        frozen_block: append a frozen transformer block behind the filter: true or "first", as for patch_shuffle.

    Source: Singh et al. 2021, "DISCO: Dynamic and invariant sensitive channel obfuscation for deep neural networks",
    §3; the attacker and its bound are those of `adv`. The authors' filter is the rest of a ResNet; ours reads each
    channel's mean and size. All channels count as sent.
    """

    name: ClassVar[str] = "disco"
    receipt: ClassVar[Nothing] = Nothing(
        reason="the channels that the filter keeps are released as they are, and its choice follows from the image; a "
        "stronger attacker than the simulated one may invert them; no differential privacy",
        source="Singh et al. 2021 claim no bound",
    )

    ratio: Annotated[float, Ge(0), Lt(1)] = 0.5

    @property
    def remarks(self) -> tuple[str, ...]:
        """The gradient of the choice of channels."""
        return ("disco's filter learns by a sigmoid in place of its choice of channels, which has no derivative",)

    def lower_filter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module:
        """The filter, [N, *smashed_shape] to the same shape.

        >>> released = Disco(ratio=0.25).lower_filter((4, 12), seed=0)(torch.rand(5, 4, 12))
        >>> (released == 0).all(1).sum(1).tolist()
        [3, 3, 3, 3, 3]
        """
        channels = smashed_shape[0] if len(smashed_shape) == 3 else smashed_shape[-1]
        with seeded(torch.device("cpu"), seed):
            return ChannelFilter(channels, self.ratio, self.width)


class ChannelFilter(nn.Module):
    """Scores each channel of an image by its mean and its root mean square, and zeroes those of the lowest scores.

    Args:
        channels: C.
        ratio: share that is zeroed.
        width: of the hidden layer.
    """

    def __init__(self, channels: int, ratio: float, width: Count) -> None:
        super().__init__()
        self.pruned = int(ratio * channels)
        self.score = nn.Sequential(
            nn.LayerNorm(2 * channels), nn.Linear(2 * channels, width), nn.GELU(), nn.Linear(width, channels)
        )

    def forward(self, smashed: Tensor) -> Tensor:
        """[N, T, C], [N, C, H, W] or [N, C], with ⌊ratio·C⌋ channels of each image exactly 0."""
        if not self.pruned:
            return smashed
        axes = {2: (), 3: (1,), 4: (2, 3)}[smashed.ndim]
        mean, square = (values.mean(axes) if axes else values for values in (smashed, smashed.square()))
        scores = self.score(torch.cat([mean, (square + 1e-12).sqrt()], 1)).float()
        order = scores.detach().argsort(dim=1, stable=True)
        kept = order.argsort(dim=1) >= self.pruned
        threshold = scores.gather(1, order[:, self.pruned :][:, :1])
        soft = ((scores - threshold) / _TEMPERATURE).sigmoid()
        kept, straight = (self._spread(part, smashed) for part in (kept, (soft - soft.detach()).to(smashed.dtype)))
        return torch.where(kept, smashed, 0) + smashed * straight

    @staticmethod
    def _spread(values: Tensor, like: Tensor) -> Tensor:
        """[N, C], shaped to multiply smashed data."""
        return values.unsqueeze(1) if like.ndim == 3 else values.reshape(*values.shape, *[1] * (like.ndim - 2))
