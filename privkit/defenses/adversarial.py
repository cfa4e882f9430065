"""Adversarial learning: clients train against a simulated attacker, a network that is trained with the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn.functional import interpolate, pixel_shuffle

from privkit.constraints import Count, NonNegative
from privkit.defenses.base import Effect, FrozenBlock
from privkit.defenses.none import Unchanged
from privkit.defenses.receipts import Nothing
from privkit.torch_utils.seeded import seeded

_NORMALIZES_TRANSPOSED = torch.__version__ >= "2.15"
"""Whether GroupNorm takes transposed maps. In older torch, GroupNorm of such maps fails in vmap, and its backward pass
crashes if the layer is frozen."""


@dataclass(frozen=True, kw_only=True)
class Adversarial(Unchanged):
    """Trains the client against a simulated attacker who reconstructs its images; nothing is proven.

    The attacker minimizes its reconstruction error, and the client maximizes this error: the error's gradient is
    reversed at the smashed data. Two rules keep the client from raising the error by a trick. The attacker normalizes
    its input, so a larger scale of the smashed data does not help. And an image's gradient is reversed only while the
    attacker's error on this image is below the error of the batch's mean image; otherwise the gradient is set to zero.

    Attributes:
        strength: weight of the reversed gradient, ≥ 0; 1 in the paper's Eq. 9.
        width: number of channels in the simulated attacker's hidden layer, ≥ 1.

    Source: Yao et al., patch shuffling, Eq. 9, after Xiao et al. 2020, "Adversarial learning of privacy-preserving and
    task-oriented representations". Gradient reversal (Ganin and Lempitsky 2015) trains both sides in one backward pass.
    """

    name: ClassVar[str] = "adv"
    effects: ClassVar[frozenset[Effect]] = frozenset({"trains"})
    images_only: ClassVar[bool] = True
    smallest_batch: ClassVar[int] = 2
    receipt: ClassVar[Nothing] = Nothing(
        reason="the smashed data resist the simulated attacker alone, and only after the min-max problem has reached a "
        "saddle point; earlier rounds are not protected, and a stronger attacker may invert the smashed data; no "
        "differential privacy",
        source="Yao et al., patch shuffling, §V-A.2, on Eq. 9",
    )

    strength: NonNegative = 1.0
    width: Count = 64
    frozen_block: FrozenBlock = False

    def companion(self, smashed_shape: tuple[int, ...], image_shape: tuple[int, int, int], seed: int) -> nn.Module:
        with seeded(torch.device("cpu"), seed):
            return SimulatedAttacker(smashed_shape, image_shape, self.width)

    def penalty(self, images: Tensor, smashed: Tensor, companion: Callable[[Tensor], Tensor] | None) -> Tensor:
        """The simulated attacker's mean squared error on each of M batches of images, float [M].

        If the attacker's error on an image is below the error of the batch's mean image, the gradient that reaches the
        image's smashed data is multiplied by −`strength`, otherwise by 0. Raises ValueError if `companion`, the
        attacker's network, is None, or if a batch holds only one image.
        """
        if companion is None:
            raise ValueError("adv trains against a simulated attacker: pass what companion() made")
        m, b = images.shape[:2]
        if b < self.smallest_batch:
            raise ValueError(f"adv needs batches of at least 2 images, got {b}: one image is its own mean")
        seen = smashed.flatten(0, 1)  # a new autograd node, so that the hook below changes this use alone
        error = (companion(seen).float() - images.flatten(0, 1)).square().flatten(1).mean(1).view(m, b)
        if seen.requires_grad:
            floor = (images - images.mean(1, keepdim=True)).square().flatten(2).mean(2)
            reversal = -self.strength * (error.detach() < floor).flatten()
            seen.register_hook(lambda g: g * reversal.to(g.dtype).view(-1, *[1] * (g.ndim - 1)))
        return error.mean(1)


class SimulatedAttacker(nn.Module):
    """Reconstructs images [N, C, H, W] from the smashed data of N images, as the attacker of DP-CutMixSL does.

    Feature maps (C', H', W') and square grids of tokens (T, D) pass two convolutions and a pixel shuffle; vectors (D,)
    and other tokens pass two dense layers. The hidden layer has `width` channels.
    """

    def __init__(self, smashed_shape: tuple[int, ...], image_shape: tuple[int, int, int], width: Count) -> None:
        super().__init__()
        self.image_shape = channels, height, w = image_shape
        self.grid: tuple[int, int] | None = None
        if len(smashed_shape) == 3:
            dim, self.grid = smashed_shape[0], (smashed_shape[1], smashed_shape[2])
        elif len(smashed_shape) == 2 and isqrt(smashed_shape[0]) ** 2 == smashed_shape[0]:
            dim, self.grid = smashed_shape[1], (isqrt(smashed_shape[0]),) * 2
        if self.grid is None:
            size = torch.Size(smashed_shape).numel()
            layers = [nn.LayerNorm(size), nn.Linear(size, width), nn.GELU(), nn.Linear(width, channels * height * w)]
            self.layers = nn.Sequential(*layers)
            return
        self.scale = max(-(-height // self.grid[0]), -(-w // self.grid[1]))
        self.layers = nn.Sequential(
            nn.GroupNorm(1, dim),
            nn.Conv2d(dim, width, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width, channels * self.scale**2, 3, padding=1),
        )

    def forward(self, smashed: Tensor) -> Tensor:
        if self.grid is None:
            pixels: Tensor = self.layers(smashed.flatten(1)).unflatten(1, self.image_shape)
            return pixels
        maps = smashed.transpose(1, 2).unflatten(2, self.grid) if smashed.ndim == 3 else smashed
        if not _NORMALIZES_TRANSPOSED:
            maps = maps.contiguous()
        images = pixel_shuffle(self.layers(maps), self.scale)
        size = self.image_shape[1:]
        return images if images.shape[-2:] == size else interpolate(images, size, mode="bilinear")


_TEMPERATURE = 1 / 30
"""Temperature, as in the authors' code, of the sigmoid whose derivative is used for the choice of channels."""


@dataclass(frozen=True, kw_only=True)
class Disco(Adversarial):
    """Zeroes some channels of each image's smashed data; a filter, trained against an attacker, chooses them.

    The filter is trained to lower the task's loss and to raise the error of a simulated attacker, who inverts the
    smashed data; the attacker is trained to lower this error. The client's network is trained on the task's loss alone;
    if it is frozen, the filter stays untrained. Nothing is proven.

    Attributes:
        ratio: share of the channels that are pruned, in [0, 1), rounded down to whole channels.
        strength: weight of the attacker's error in the filter's loss, ≥ 0; α/(1 − α) in the authors' code.
        width: width of the hidden layers of the simulated attacker and of the filter, ≥ 1.

    Source: Singh et al. 2021, "DISCO: Dynamic and invariant sensitive channel obfuscation for deep neural networks",
    §3; the attacker is the same as in the defense `adv`. The authors' filter consists of further ResNet layers; ours
    reads each channel's mean and root mean square. Pruned channels still count as transmitted data.
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
        return ("disco's filter learns through a sigmoid, since its choice of channels has no derivative",)

    def lower_filter(self, smashed_shape: tuple[int, ...], seed: int) -> nn.Module:
        channels = smashed_shape[0] if len(smashed_shape) == 3 else smashed_shape[-1]
        with seeded(torch.device("cpu"), seed):
            return ChannelFilter(channels, self.ratio, self.width)


class ChannelFilter(nn.Module):
    """Scores each channel of an image by its mean and its root mean square, and zeroes the lowest-scored channels."""

    def __init__(self, channels: int, ratio: float, width: Count) -> None:
        super().__init__()
        self.pruned = int(ratio * channels)
        self.score = nn.Sequential(
            nn.LayerNorm(2 * channels), nn.Linear(2 * channels, width), nn.GELU(), nn.Linear(width, channels)
        )

    def forward(self, smashed: Tensor) -> Tensor:
        """Smashed data [N, T, C], [N, C, H, W] or [N, C] with ⌊ratio·C⌋ channels of each image set to 0."""
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
        return values.unsqueeze(1) if like.ndim == 3 else values.reshape(*values.shape, *[1] * (like.ndim - 2))
