"""A decoder of any number of tokens: each patch of the image asks all tokens that came, wherever they lay."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.mae import blocks, checked_width, heads_for, scaled_size
from privkit.attacks.patches import Geometry, sincos_positions, unpatchify


class AnyTokensDecoder(Decoder):
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

    layout: ClassVar = Geometry
    positions: Tensor

    def __init__(self, geometry: Geometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        natural_width, natural_depth = scaled_size(geometry.token_dim)
        self.width = natural_width if width is None else checked_width(width)
        self.geometry = geometry
        rows, columns = (side // geometry.patch for side in geometry.image_shape[1:])
        side = max(rows, columns)
        grid = sincos_positions(side, self.width).view(side, side, -1)
        self.register_buffer("positions", grid[:rows, :columns].reshape(rows * columns, -1))
        self.mask = nn.Parameter(0.02 * torch.randn(self.width))
        self.project = nn.Linear(geometry.token_dim, self.width)
        self.blocks = blocks(self.width, natural_depth if depth is None else depth, heads_for(self.width))
        self.norm = nn.LayerNorm(self.width)
        self.predict = nn.Linear(self.width, geometry.patch_dim)

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
