"""Vision transformers, cut after the patch embedding or after a block."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from privkit.constraints import Count
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.base import Depth, EvenHeads, SplitModel, check_class_token
from privkit.models.tokens import Lower, PatchLinear, UncutVit, Upper, load_fitting, read_weights
from privkit.torch_utils.seeded import seeded


@dataclass(frozen=True, kw_only=True)
class Vit(EvenHeads):
    """A vision transformer (ViT).

    Attributes:
        width: token size D.
        depth: number of blocks in both segments together.
        heads: attention heads, a divisor of width.
        grid: desired number of patches per side. The patch size is the divisor of the image side whose number of
            patches is nearest to `grid`; an image with a prime side can become a single patch. Ignored if `patch` is
            given.
        patch: side of a patch in pixels, a divisor of the image side; None takes it from `grid`.
        cut: last layer of the lower segment: "embedding" (patches and positions), "block1", "block2", ...
        pool: what the classifier reads: "avg" for the mean over tokens, "token" for the class token.
        class_token: who owns the class token, with pool="token". "server" adds it to the smashed data, without a
            position, so blocks below the cut do not see it. "client" puts it in front of the tokens before positions
            are added, so one token more crosses the cut (DP-CutMixSL §3.A).
        checkpoint: path of a timm state dict (.safetensors, or .pth read with weights_only) for pretrained weights.

    Source: Dosovitskiy et al. 2021, "An image is worth 16x16 words"; layers and seeded initial weights equal timm's.

    >>> split = VIT_MICRO.build(Images(shape=(1, 28, 28)), 10, positions=True, seed=0)
    >>> tokens = split.lower(torch.zeros(2, 1, 28, 28))
    >>> tokens.shape, split.upper(tokens).shape
    (torch.Size([2, 16, 96]), torch.Size([2, 10]))
    >>> VIT_MICRO.cuts
    ('embedding', 'block1', 'block2', 'block3', 'block4')
    """

    domain: ClassVar[str] = "images"

    width: Count = 96
    depth: Depth = 4
    heads: Count = 4
    grid: Count = 4
    patch: Count | None = None
    cut: str = "block1"
    pool: Literal["avg", "token"] = "avg"
    class_token: Literal["server", "client"] = "server"
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_token == "client" and self.pool != "token":
            raise ValueError("class_token=client needs pool=token: with pool=avg there must be no class token")

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("embedding", *(f"block{i + 1}" for i in range(self.depth)))

    def patch_for(self, image_shape: tuple[int, int, int]) -> int:
        """Side of a patch in pixels for images of this shape; raises `UsageError` if `patch` does not divide the sides.

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

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        owner: Literal["none", "server", "client"] = self.class_token if self.pool == "token" else "none"
        if owner == "client":
            check_class_token(positions, "take class_token=server")
        channels, height, width = domain.shape
        with seeded(torch.device("cpu"), seed):
            vit: Any = (UncutVit if self.checkpoint is None else _timms())(
                img_size=(height, width),
                patch_size=self.patch_for(domain.shape),
                in_chans=channels,
                num_classes=classes,
                embed_dim=self.width,
                depth=self.depth,
                num_heads=self.heads,
                class_token=owner != "none",
                no_embed_class=owner != "client",
                global_pool=self.pool,
                pos_embed="learn" if positions else "none",
            )
        if self.checkpoint is not None:
            self._load(vit, self.checkpoint)
        below = self.cuts.index(self.cut)
        lower = Lower(
            PatchLinear(vit.patch_embed.proj),
            nn.Sequential(*vit.blocks[:below]),
            pos_embed=vit.pos_embed,
            cls_token=vit.cls_token if owner == "client" else None,
        )
        upper = Upper(
            nn.Sequential(*vit.blocks[below:]),
            norm=vit.norm,
            fc_norm=vit.fc_norm,
            head=vit.head,
            cls_token=vit.cls_token if owner == "server" else None,
            pool=self.pool,
        )
        return SplitModel(lower=lower, upper=upper, hides_places=not positions, class_token=owner)

    def _load(self, vit: Any, path: str) -> None:
        """Load a timm checkpoint; positions are resampled, and a classifier of another size is not loaded."""
        from timm.models.vision_transformer import checkpoint_filter_fn

        state = read_weights(path)
        positions = state.get("pos_embed")
        if vit.no_embed_class and positions is not None and isqrt(positions.shape[1]) ** 2 != positions.shape[1]:
            # this model's class token has no position: the checkpoint's token plus its position is loaded
            state["pos_embed"] = positions[:, 1:]
            if "cls_token" in state:
                state["cls_token"] = state["cls_token"] + positions[:, :1]
        if vit.pos_embed is None:
            state.pop("pos_embed", None)  # older timm would compare its shape with None's
        state = checkpoint_filter_fn(state, vit)
        load_fitting(vit, state, path, ("patch_embed", "blocks"), f"width={self.width}, depth={self.depth}")


def _timms() -> Any:
    """timm's class for the same architecture, whose loader knows many checkpoint formats."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer


VIT_MICRO = Vit()  # trains in seconds on two CPU cores: 96 wide, four blocks, 4×4 patches

VIT_TINY = Vit(width=192, depth=12, heads=3, grid=8)
"""ViT-Tiny: 192 wide, twelve blocks; 4-pixel patches on images of 28 or 32 pixels per side."""

VIT_TINY6 = Vit(width=192, depth=6, heads=3, grid=8, cut="embedding")
"""ViT-Tiny with six blocks, cut after the embedding (CutMixSL §4)."""

VIT_BASE = Vit(width=768, depth=12, heads=12, grid=14)  # ViT-B/16 at 224 pixels: 768 wide, twelve blocks, 14×14 patches
