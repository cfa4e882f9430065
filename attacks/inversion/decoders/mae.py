"""The true MAE decoder: projection, fixed sine-cosine positions, transformer blocks, linear prediction of pixels."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.patches import Geometry, as_tokens, sincos_positions, unpatchify
from privkit.constraints import whole


def blocks(width: int, depth: int, heads: int) -> nn.Sequential:
    """Pre-norm transformer blocks of a ViT: MLP ratio 4, GELU, no dropout."""
    layers = (
        nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation=gelu, batch_first=True, norm_first=True
        )
        for _ in range(depth)
    )
    return nn.Sequential(*layers)


def scaled_size(token_dim: int, width: int | None = None, depth: int | None = None) -> tuple[int, int]:
    """Width and depth as given, or as fit a model of this token size: 512 and 8 from ViT-B (768) on, as published.

    >>> [scaled_size(dim) for dim in (96, 192, 768)]
    [(96, 3), (192, 4), (512, 8)]
    """
    natural = min(512, max(64, 16 * round(token_dim / 16)))
    return (
        natural if width is None else checked_width(width),
        depth if depth is not None else 3 if natural < 128 else 4 if natural < 384 else 8,
    )


def checked_width(width: int) -> int:
    """A width that the MAE decoder can have; ValueError for another."""
    return whole("the MAE decoder's width", width, least=16, step=16)


def heads_for(width: int) -> int:
    """Attention heads of about 32 channels: the most that divide the width and make none narrower.

    >>> [heads_for(width) for width in (16, 96, 112, 512)]
    [1, 3, 2, 16]
    """
    return max(heads for heads in range(1, max(1, width // 32) + 1) if width % heads == 0)


class MaeDecoder(Decoder):
    """MAE decoder over all tokens (none is masked, since the server receives every token).

    A class token takes part in the blocks, at no position, and is left out of the image.

    Args:
        geometry: how the tokens lie over the image.
        width: channels of the blocks, a positive multiple of 16; None for a size scaled to the model.
        depth: number of blocks; None likewise.

    Source: He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", §3 and A.1 (512 wide, 8 blocks,
    16 heads); used as the black-box attacker in Yao et al., patch shuffling, §V-B.1.

    >>> import torch
    >>> geometry = Geometry.of(torch.zeros(2, 16, 96), (1, 28, 28))
    >>> MaeDecoder(geometry)(torch.zeros(2, 16, 96)).shape
    torch.Size([2, 1, 28, 28])
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
        """Images [N, C, H, W], centred on 0.5 and not clamped, so that the loss sees every error."""
        hidden = self.blocks(self.project(as_tokens(release)) + self.positions)
        patches = self.predict(self.norm(hidden[:, self.geometry.class_tokens :])) + 0.5
        return unpatchify(patches, self.geometry.patch, self.geometry.image_shape)
