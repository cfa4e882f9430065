"""The tokens-to-token module of T2T-ViT."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from privkit.models.blocks import Mlp
from privkit.models.tokens import patches

_TOKEN = 64  # size of a token inside the tokens-to-token module
_LONG = 512  # tokens above which attention is fused, as T² weights an image would not fit; see `tokens.stackable`


class _TokenTransformer(nn.Module):
    """One attention layer with one head that also changes the size of tokens; the values are its residual."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(_TOKEN)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(size, 3 * _TOKEN, bias=False), "proj": nn.Linear(_TOKEN, _TOKEN)})
        self.mlp = Mlp(_TOKEN, _TOKEN)
        self.scale = size**-0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, T, size] -> [N, T, 64]."""
        q, k, v = self.attn["qkv"](self.norm1(tokens)).chunk(3, -1)
        if tokens.shape[1] > _LONG:
            q, k, one_head = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
            seen = functional.scaled_dot_product_attention(q, k, one_head, scale=self.scale).squeeze(1)
        else:
            seen = ((q * self.scale) @ k.transpose(1, 2)).softmax(-1) @ v
        tokens = v + self.attn["proj"](seen)
        mixed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return mixed


class TokensToToken(nn.Module):
    """Three soft splits (overlapping patches), with a transformer layer after the first and the second."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.splits = (_soft_split(stride), _soft_split(2), _soft_split(2))
        self.attention1 = _TokenTransformer(channels * self.splits[0][0] ** 2)
        self.attention2 = _TokenTransformer(_TOKEN * self.splits[1][0] ** 2)
        self.project = nn.Linear(_TOKEN * self.splits[2][0] ** 2, width)

    def grid(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """Tokens (down, across) at the end."""
        _, height, width = image_shape
        for kernel, stride, pad in self.splits:
            height, width = ((side + 2 * pad - kernel) // stride + 1 for side in (height, width))
        return height, width

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] -> tokens [N, T, width]."""
        maps = images
        for split, layer in zip(self.splits, (self.attention1, self.attention2, self.project), strict=True):
            kernel, stride, pad = split
            tokens: Tensor = layer(patches(functional.pad(maps, (pad,) * 4), kernel, stride))
            height, width = ((side + 2 * pad - kernel) // stride + 1 for side in maps.shape[2:])
            maps = tokens.transpose(1, 2).unflatten(2, (height, width))
        return tokens


def _soft_split(stride: int) -> tuple[int, int, int]:
    """Kernel, stride and padding: 7, 4, 2 and 3, 2, 1 as published; the grid shrinks by the stride."""
    kernel = max(3, 2 * stride - 1)
    return kernel, stride, (kernel - stride + 1) // 2
