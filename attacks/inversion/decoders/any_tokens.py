"""A decoder of any number of tokens: each patch of the image asks all tokens that came, wherever they lay."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.inversion.decoders.mae import MaeDecoder, scaled_size
from privkit.attacks.patches import Geometry, unpatchify


class AnyTokensDecoder(MaeDecoder):
    """Blocks of attention over the released tokens and one mask token for each patch, from which that patch is drawn.

    It is the MAE decoder for tokens that were dropped or merged: nobody knows which patch a token is of, so no token
    gets a position, and every patch has a mask token.

    Args:
        geometry: the patches to be drawn, with the size of the released tokens.
        width: channels of the blocks, a positive multiple of 16; None for a size scaled to the model.
        depth: number of blocks; None likewise.

    Source: He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", §3; leaving positions out is privkit's.

    >>> decoder = AnyTokensDecoder.of(torch.zeros(2, 7, 96), (1, 28, 28), width=None, depth=None)
    >>> decoder(torch.zeros(2, 7, 96)).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, geometry: Geometry, *, width: int | None = None, depth: int | None = None) -> None:
        mask = 0.02 * torch.randn(scaled_size(geometry.token_dim, width)[0])
        super().__init__(geometry, width=width, depth=depth)
        self.mask = nn.Parameter(mask)

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        """A decoder for releases like this one; it draws the largest square patches that are no fewer than tokens."""
        if release.ndim != 3:
            raise NotApplicable(f"this decoder reads tokens [N, T, D], got {list(release.shape)}")
        _, height, w = image_shape
        sides = [p for p in range(1, min(height, w) + 1) if height % p == 0 == w % p]
        patch = max((p for p in sides if (height // p) * (w // p) >= release.shape[1]), default=1)
        geometry = Geometry(token_dim=release.shape[2], tokens=release.shape[1], patch=patch, image_shape=image_shape)
        return cls(geometry, width=width, depth=depth)

    def forward(self, release: Tensor) -> Tensor:
        """Images [N, C, H, W], centred on 0.5 and not clamped."""
        asking = (self.mask + self.positions).expand(len(release), -1, -1)
        hidden = self.blocks(torch.cat([asking, self.project(release)], 1))[:, : len(self.positions)]
        return unpatchify(self.predict(self.norm(hidden)) + 0.5, self.geometry.patch, self.geometry.image_shape)
