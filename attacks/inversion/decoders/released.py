"""The decoder in the patch-shuffling authors' release: MLP, learned positions, blocks as wide as a patch, Tanh."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from privkit.attacks.inversion.decoders.base import Decoder
from privkit.attacks.inversion.decoders.mae import blocks, scaled_size
from privkit.attacks.patches import Geometry, as_tokens, unpatchify


class ReleasedDecoder(Decoder):
    """The released variant: no prediction head, the last block's channels are the pixels of a patch.

    At ViT-B/16 this is MLP 512→512→768 and ViT-B's twelve blocks (768 = 16·16·3); at other sizes the blocks are
    as wide as a patch has pixels, which is the release's own coupling.

    Args:
        geometry: how the tokens lie over the image.
        width: must be None or the patch's pixel count, because there is no prediction head.
        depth: number of blocks; None for 12 from ViT-B's token size on, and the MAE decoder's depth below it.

    Source: the authors' repository of Yao et al., patch shuffling (the text of §V-B.1 calls it an MAE decoder).

    >>> geometry = Geometry.of(torch.zeros(2, 16, 96), (1, 28, 28))
    >>> ReleasedDecoder(geometry)(torch.zeros(2, 16, 96)).aminmax().max <= 1
    tensor(True)
    """

    layout: ClassVar = Geometry

    def __init__(self, geometry: Geometry, *, width: int | None = None, depth: int | None = None) -> None:
        super().__init__()
        channels = geometry.patch_dim
        if width not in (None, channels):
            raise ValueError(
                f"the released decoder has no prediction head: its width is the patch's {channels} pixels, got {width}"
            )
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
        """Images [N, C, H, W] in [0, 1]: the release's Tanh range [−1, 1], moved to this project's."""
        hidden = self.norm(self.blocks(self.mlp(as_tokens(release)) + self.positions))
        patches = hidden[:, self.geometry.class_tokens :]
        return unpatchify((torch.tanh(patches) + 1) / 2, self.geometry.patch, self.geometry.image_shape)
