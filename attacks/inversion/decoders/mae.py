"""Transformer decoders of patches: MAE, MAE for any number of tokens, and the variant of Yao et al."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from privkit.attacks.base import NotApplicable
from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.patches import Geometry, as_tokens, sincos_positions, unpatchify
from privkit.constraints import whole


def blocks(width: int, depth: int, heads: int) -> nn.Sequential:
    """Build transformer blocks of a ViT with pre-normalization, MLP ratio 4, GELU and no dropout."""
    layers = (
        nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, gelu, batch_first=True, norm_first=True)
        for _ in range(depth)
    )
    return nn.Sequential(*layers)


def scaled_size(token_dim: int, width: int | None = None, depth: int | None = None) -> tuple[int, int]:
    """Choose a decoder's width and depth. A value of None grows with the token size, up to width 512 and depth 8
    (ViT-B).

    >>> [scaled_size(dim) for dim in (96, 192, 768)]
    [(96, 3), (192, 4), (512, 8)]
    """
    natural = min(512, max(64, 16 * round(token_dim / 16)))
    return (
        natural if width is None else checked_width(width),
        depth if depth is not None else 3 if natural < 128 else 4 if natural < 384 else 8,
    )


def checked_width(width: int) -> int:
    """Return the width; raise ValueError if it is not a positive multiple of 16, as the MAE decoder needs."""
    return whole("the MAE decoder's width", width, least=16, step=16)


def heads_for(width: int) -> int:
    """The largest number of heads that divides `width` and gives each at least 32 channels; at least 1.

    >>> [heads_for(width) for width in (16, 96, 112, 512)]
    [1, 3, 2, 16]
    """
    return max(heads for heads in range(1, max(1, width // 32) + 1) if width % heads == 0)


class MaeDecoder(Decoder):
    """The decoder of a masked autoencoder (MAE). It reads all tokens of an image: all are released, and none is masked.

    A class token passes through the blocks without a position and is left out of the image. The width is a multiple of
    16; by default, width and depth grow with the token's size.

    Source: He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", §3 and A.1 (512 wide, 8 blocks, 16
    heads); used as the black-box attacker in Yao et al., patch shuffling, §V-B.1.
    """

    layout: ClassVar = Geometry
    positions: Tensor

    def __init__(self, geometry: Geometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        self.width, depth = scaled_size(geometry.token_dim, width, depth)
        self.geometry = geometry
        self.project = nn.Linear(geometry.token_dim, self.width)
        rows, columns = (pixels // geometry.patch for pixels in geometry.image_shape[1:])
        side = max(rows, columns)
        grid = sincos_positions(side, self.width).view(side, side, -1)[:rows, :columns].flatten(0, 1)
        self.register_buffer("positions", pad(grid, (0, 0, geometry.class_tokens, 0)))
        self.blocks = blocks(self.width, depth, heads_for(self.width))
        self.norm = nn.LayerNorm(self.width)
        self.predict = nn.Linear(self.width, geometry.patch_dim)

    def forward(self, release: Tensor) -> Tensor:
        hidden = self.blocks(self.project(as_tokens(release)) + self.positions)
        patches = self.predict(self.norm(hidden[:, self.geometry.class_tokens :])) + 0.5
        return unpatchify(patches, self.geometry.patch, self.geometry.image_shape)


class AnyTokensDecoder(MaeDecoder):
    """The MAE decoder for dropped or merged tokens: a learned mask token for each patch attends to all tokens.

    The adversary does not know to which patch a received token belongs, so received tokens get no position. `of`
    chooses the largest square patches that divide the image into at least one patch per token.

    Source: He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", §3; the omission of positions is
    privkit's.
    """

    def __init__(self, geometry: Geometry, *, width: int | None = None, depth: int | None = None) -> None:
        mask = 0.02 * torch.randn(scaled_size(geometry.token_dim, width)[0])
        super().__init__(geometry, width=width, depth=depth)
        self.mask = nn.Parameter(mask)

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int], *, width: int | None, depth: int | None) -> Self:
        if release.ndim != 3:
            raise NotApplicable(f"this decoder reads tokens [N, T, D], got {list(release.shape)}")
        _, height, w = image_shape
        sides = [p for p in range(1, min(height, w) + 1) if height % p == 0 == w % p]
        patch = max((p for p in sides if (height // p) * (w // p) >= release.shape[1]), default=1)
        geometry = Geometry(token_dim=release.shape[2], tokens=release.shape[1], patch=patch, image_shape=image_shape)
        return cls(geometry, width=width, depth=depth)

    def forward(self, release: Tensor) -> Tensor:
        asking = (self.mask + self.positions).expand(len(release), -1, -1)
        hidden = self.blocks(torch.cat([asking, self.project(release)], 1))[:, : len(self.positions)]
        return unpatchify(self.predict(self.norm(hidden)) + 0.5, self.geometry.patch, self.geometry.image_shape)


class ReleasedDecoder(Decoder):
    """The decoder in the code of Yao et al. (patch shuffling): the channels of its last block are a patch's pixels.

    For ViT-B/16 it consists of an MLP 512→512→768, learned positions, the twelve blocks of ViT-B (768 = 16·16·3), and
    Tanh. The width is fixed, since there is no prediction head. For tokens of fewer than 512 numbers, the default depth
    is the same as for `MaeDecoder`.

    Source: the authors' repository of Yao et al., patch shuffling (the text of §V-B.1 calls it an MAE decoder).
    """

    layout: ClassVar = Geometry

    def __init__(self, geometry: Geometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        channels = geometry.patch_dim
        if width not in (None, channels):
            raise ValueError(f"the released decoder has no prediction head: its width must be {channels}, got {width}")
        depth = (12 if geometry.token_dim >= 512 else scaled_size(geometry.token_dim)[1]) if depth is None else depth
        heads = max(h for h in range(1, 13) if channels % h == 0)
        self.geometry, self.width = geometry, channels
        self.mlp = nn.Sequential(
            nn.Linear(geometry.token_dim, geometry.token_dim), nn.GELU(), nn.Linear(geometry.token_dim, channels)
        )
        self.positions = nn.Parameter(0.02 * torch.randn(geometry.class_tokens + geometry.tokens, channels))
        self.blocks = blocks(channels, depth, heads)
        self.norm = nn.LayerNorm(channels)

    def forward(self, release: Tensor) -> Tensor:
        """Decode images [N, C, H, W] in [0, 1]: the range [−1, 1] of Tanh is mapped to [0, 1]."""
        hidden = self.norm(self.blocks(self.mlp(as_tokens(release)) + self.positions))
        patches = hidden[:, self.geometry.class_tokens :]
        return unpatchify((torch.tanh(patches) + 1) / 2, self.geometry.patch, self.geometry.image_shape)
