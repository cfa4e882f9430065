"""Vision transformers of timm, cut after the patch embedding or after a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privkit.errors import UsageError
from privkit.models.base import SplitModel


class Lower(nn.Module):
    """Client: normalisation, patch embedding, position embedding (unless forbidden) and the first blocks."""

    def __init__(self, vit: Any, cut: int) -> None:
        super().__init__()
        self.patch_embed, self.blocks = vit.patch_embed, nn.Sequential(*vit.blocks[:cut])
        self.pos_embed = vit.pos_embed

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] in [0, 1] -> tokens [N, T, D]."""
        tokens = self.patch_embed((images - 0.5) / 0.5)
        if self.pos_embed is not None:
            tokens = tokens + self.pos_embed
        return self.blocks(tokens)


class Upper(nn.Module):
    """Server: class token (if the pooling uses one), the remaining blocks, norm and classifier."""

    def __init__(self, vit: Any, cut: int) -> None:
        super().__init__()
        self.cls_token, self.blocks = vit.cls_token, nn.Sequential(*vit.blocks[cut:])
        self.norm, self.fc_norm, self.head = vit.norm, vit.fc_norm, vit.head

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, D] -> logits [N, classes]."""
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], 1)
        tokens = self.norm(self.blocks(tokens))
        pooled = tokens[:, 0] if self.cls_token is not None else tokens.mean(1)
        return self.head(self.fc_norm(pooled))


@dataclass(frozen=True, kw_only=True)
class Vit:
    """A ViT split into `lower` and `upper`.

    Attributes:
        width: token size D.
        depth: blocks in both segments together.
        heads: attention heads, a divisor of width.
        grid: wished patches a side; the patch is the divisor of the image side that comes nearest. Ignored if `patch`
            is given.
        patch: side of a patch in pixels, a divisor of the image side; None takes it from `grid`.
        cut: blocks in the lower segment; 0 cuts after the patch embedding.
        pool: "avg" over tokens, or "token" for a class token, which the server adds and owns.
        checkpoint: timm state dict (.safetensors, or .pth read with weights_only) for pretrained weights.

    Source: Dosovitskiy et al. 2021, "An image is worth 16x16 words"; blocks are timm's.

    >>> split = VIT_MICRO.build((1, 28, 28), 10, positions=True, seed=0)
    >>> tokens = split.lower(torch.zeros(2, 1, 28, 28))
    >>> tokens.shape, split.upper(tokens).shape
    (torch.Size([2, 16, 96]), torch.Size([2, 10]))
    """

    width: int = 96
    depth: int = 4
    heads: int = 4
    grid: int = 4
    patch: int | None = None
    cut: int = 1
    pool: Literal["avg", "token"] = "avg"
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        for name in ("width", "depth", "heads", "grid"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"heads must divide width ({self.width}), got {self.heads}")
        if not 0 <= self.cut <= self.depth:
            raise ValueError(
                f"cut must be 0 (after the patch embedding) to {self.depth} (after that block), got {self.cut}"
            )

    def patch_for(self, image_shape: tuple[int, int, int]) -> int:
        """Side of a patch for these images.

        >>> [VIT_MICRO.patch_for((1, side, side)) for side in (8, 28, 32)]
        [2, 7, 8]
        """
        _, height, width = image_shape
        divisors = [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]
        if self.patch is None:
            return min(divisors, key=lambda p: abs(height // p - self.grid))
        if self.patch not in divisors:
            raise UsageError(f"patch={self.patch} does not divide images of {height}×{width}; allowed: {divisors}")
        return self.patch

    def build(self, image_shape: tuple[int, int, int], classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; see `ModelSpec.build`."""
        from timm.models.vision_transformer import VisionTransformer

        channels, height, width = image_shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # timm's initialisers know only the global generator
            vit = VisionTransformer(
                img_size=(height, width),
                patch_size=self.patch_for(image_shape),
                in_chans=channels,
                num_classes=classes,
                embed_dim=self.width,
                depth=self.depth,
                num_heads=self.heads,
                class_token=self.pool == "token",
                no_embed_class=True,
                global_pool=self.pool,
                pos_embed="learn" if positions else "none",
            )
        if self.checkpoint is not None:
            self._load(vit)
        return SplitModel(lower=Lower(vit, self.cut), upper=Upper(vit, self.cut), hides_places=not positions)

    def _load(self, vit: Any) -> None:
        """Load a timm checkpoint; positions are resampled, a classifier of another size is left as it is."""
        from timm.models.vision_transformer import checkpoint_filter_fn

        assert self.checkpoint is not None
        try:
            if self.checkpoint.endswith(".safetensors"):
                from safetensors.torch import load_file

                state = load_file(self.checkpoint)
            else:
                state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:
            reason = f"cannot be read as safetensors or plain tensors: {error}"
            raise UsageError(f"checkpoint {self.checkpoint} {reason}") from None
        state = checkpoint_filter_fn(state, vit)
        own = vit.state_dict()
        fitting = {k: v for k, v in state.items() if k in own and own[k].shape == v.shape}
        absent = sorted(k for k in own if k.startswith(("patch_embed", "blocks")) and k not in fitting)
        if absent:
            raise UsageError(
                f"checkpoint {self.checkpoint} does not fit width={self.width}, depth={self.depth}: "
                f"{absent[0]} is missing or has another shape"
            )
        vit.load_state_dict(fitting, strict=False)


VIT_MICRO = Vit()
"""Seconds on two CPU cores: 96 wide, four blocks, 4×4 patches."""

VIT_TINY = Vit(width=192, depth=12, heads=3, grid=8)
"""ViT-Tiny: 192 wide, twelve blocks; 4-pixel patches on 28 or 32 pixels."""

VIT_BASE = Vit(width=768, depth=12, heads=12, grid=14)
"""ViT-B/16 at 224 pixels: 768 wide, twelve blocks, 14×14 patches."""
