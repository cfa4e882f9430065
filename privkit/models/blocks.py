"""Transformer blocks and the uncut ViT, with timm's names and timm's weights for a seed.

timm itself loads all of its models and torchvision, which takes a second and a half of every process.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-6
"""Of layer normalisation in timm's transformers; torch's own default is larger."""


class Mlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        mixed: Tensor = self.fc2(functional.gelu(self.fc1(tokens)))
        return mixed


class Attention(nn.Module):
    """Attention of several heads, each over an equal part of the width.

    Attributes:
        fused_attn: whether torch's fused kernel computes it, or plain products do.
    """

    def __init__(self, width: int, heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.heads, self.fused_attn = heads, True
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=qkv_bias), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        n, length, width = tokens.shape
        q, k, v = self.qkv(tokens).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused_attn:
            seen = functional.scaled_dot_product_attention(q, k, v)
        else:
            seen = ((q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)).softmax(-1) @ v
        mixed: Tensor = self.proj(seen.transpose(1, 2).reshape(n, length, width))
        return mixed


class Block(nn.Module):
    """A transformer's block, normalised before attention and before the MLP.

    Args:
        width: token size D.
        heads: a divisor of width.
        mlp_ratio: hidden layer of the MLP in units of D.
        qkv_bias: whether queries, keys and values have biases.
        epsilon: of both normalisations.

    Source: Dosovitskiy et al. 2021, "An image is worth 16x16 words", equations 2 and 3; names of weights are timm's.
    """

    def __init__(
        self, width: int, heads: int, *, mlp_ratio: float = 4.0, qkv_bias: bool = True, epsilon: float = EPSILON
    ) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, epsilon), Attention(width, heads, qkv_bias)
        self.norm2, self.mlp = nn.LayerNorm(width, epsilon), Mlp(width, int(width * mlp_ratio))

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, T, D] -> [N, T, D]."""
        tokens = tokens + self.attn(self.norm1(tokens))
        mixed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return mixed


class UncutVit(nn.Module):
    """The parts of a ViT before it is cut: what timm's `VisionTransformer` makes of the same arguments and seed."""

    def __init__(
        self,
        *,
        img_size: tuple[int, int],
        patch_size: int,
        in_chans: int,
        num_classes: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        class_token: bool,
        no_embed_class: bool,
        global_pool: Literal["avg", "token"],
        pos_embed: Literal["learn", "none"],
    ) -> None:
        super().__init__()
        patches = (img_size[0] // patch_size) * (img_size[1] // patch_size)
        places = patches if no_embed_class or not class_token else patches + 1
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)})
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if class_token else None
        self.pos_embed = nn.Parameter(torch.empty(1, places, embed_dim)) if pos_embed == "learn" else None
        self.blocks = nn.Sequential(*(Block(embed_dim, num_heads) for _ in range(depth)))
        pooled = global_pool == "avg"
        self.norm = nn.Identity() if pooled else nn.LayerNorm(embed_dim, EPSILON)
        self.fc_norm = nn.LayerNorm(embed_dim, EPSILON) if pooled else nn.Identity()
        self.head = nn.Linear(embed_dim, num_classes)
        if self.pos_embed is not None:
            draw(self.pos_embed)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)
        draw_linear(self)


def draw(weight: Tensor) -> None:
    """Draw weights from a normal law of deviation .02 in place, by timm's way from a seed to numbers.

    Source: the inverse of the error function, as in timm's `trunc_normal_`; torch's own has drawn other numbers since.
    """
    with torch.no_grad():
        weight.uniform_(-1, 1).erfinv_().mul_(0.02 * sqrt(2)).clamp_(-2, 2)  # ±1 would become infinite


def draw_linear(network: nn.Module) -> None:
    """Draw the weights of every linear layer, and set its biases to zero."""
    for part in network.modules():
        if isinstance(part, nn.Linear):
            draw(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
