"""Blur: the client works on images of extremely low resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor
from torch.nn.functional import interpolate

from privkit.constraints import Count
from privkit.defenses.base import Effect, OnSmashed
from privkit.defenses.receipts import Nothing


@dataclass(frozen=True, kw_only=True)
class Blur(OnSmashed[Nothing]):
    """Shrinks images by averaging and enlarges them again to the model's input size; nothing is proven.

    It simulates a client with a low-resolution camera, so test images are blurred as well.

    Attributes:
        factor: factor by which an image's side shrinks, ≥ 1; 14 leaves 16 of 224 pixels. If it does not divide the
            side, ⌊side/factor⌋ pixels are left, each the average of the pixels that it touches. 1 leaves the image
            unchanged.
        enlarge: the interpolation that enlarges the image, "bilinear" or "nearest".

    Source: Ryoo et al. 2018, "Extreme low resolution activity recognition"; factor 14 from Yao et al., patch shuffling,
    §V-A.2.

    >>> import torch
    >>> release, receipt = Blur().apply(torch.rand(1, 2, 3, 28, 28), torch.zeros(1, 2), torch.Generator())
    >>> release.smashed.shape, dict(receipt.quantities)
    (torch.Size([1, 2, 3, 28, 28]), {'height': 2.0, 'width': 2.0})
    """

    name: ClassVar[str] = "blur"
    effects: ClassVar[frozenset[Effect]] = frozenset({"maps"})
    level = "input"

    factor: Count = 14
    enlarge: Literal["bilinear", "nearest"] = "bilinear"

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Nothing]:
        if smashed.ndim != 5:
            raise ValueError(f"blur needs images [M, B, C, H, W], got shape {list(smashed.shape)}")
        images = self.public_transform(smashed.flatten(0, 1)).view_as(smashed)
        height, width = self._resolution(smashed)
        return images, Nothing(
            reason=f"images leave the client at {height}×{width} pixels; finer detail stays there, but may be "
            f"guessed; no differential privacy",
            quantities={"height": float(height), "width": float(width)},
            source="Ryoo et al. 2018 claim no bound",
        )

    def public_transform(self, smashed: Tensor) -> Tensor:
        small = interpolate(smashed, self._resolution(smashed), mode="area")
        return interpolate(small, smashed.shape[-2:], mode=self.enlarge)

    def _resolution(self, images: Tensor) -> tuple[int, int]:
        height, width = images.shape[-2:]
        if self.factor > min(height, width):
            raise ValueError(
                f"blur:factor={self.factor} leaves no pixel of images of {height}×{width}; use a factor of at most "
                f"{min(height, width)}"
            )
        return height // self.factor, width // self.factor
