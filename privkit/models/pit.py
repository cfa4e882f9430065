"""Pooling-based vision transformers of timm, cut after the embedding or after a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from privkit.constraints import Count
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.base import SMALL_IMAGE, NamedCuts, SplitModel, check_class_token
from privkit.models.tokens import PatchLinear, centered, stackable
from privkit.torch_utils.seeded import seeded

_DEPTHS, _HEADS, _BASE_WIDTH = (2, 6, 4), (2, 4, 8), 32


class _Lower(nn.Module):
    """The client's segment: normalisation, patch embedding, positions, and first stages (with the class token)."""

    def __init__(self, pit: Any, stages: int) -> None:
        super().__init__()
        self.patch_embed, self.grid = PatchLinear(pit.patch_embed.conv), pit.patch_embed.grid_size
        self.pos_embed = pit.pos_embed
        self.cls_token = pit.cls_token if stages else None
        self.transformers = stackable(pit.transformers[:stages])

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] in [0, 1] -> tokens [N, T, D], or after a stage [N, T+1, D], class token first."""
        tokens: Tensor = self.patch_embed(centered(images))
        if self.pos_embed is not None:
            tokens = tokens + self.pos_embed.flatten(2).transpose(1, 2)
        if self.cls_token is None:
            return tokens
        maps = tokens.transpose(1, 2).unflatten(2, self.grid)
        maps, class_token = self.transformers((maps, self.cls_token.expand(len(maps), -1, -1)))
        return torch.cat([class_token, maps.flatten(2).transpose(1, 2)], 1)


class _Upper(nn.Module):
    """The server's segment: class token (if the client runs no stage), the remaining stages, norm and classifier."""

    def __init__(self, pit: Any, stages: int) -> None:
        super().__init__()
        self.grid = tuple(-(-side // 2 ** max(0, stages - 1)) for side in pit.patch_embed.grid_size)
        self.cls_token = None if stages else pit.cls_token
        self.transformers, self.norm, self.head = pit.transformers[stages:], pit.norm, pit.head

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [N, T, D] (T+1 with the client's class token) -> logits [N, classes]."""
        class_token = tokens[:, :1]
        if self.cls_token is not None:
            class_token, tokens = self.cls_token.expand(len(tokens), -1, -1), tokens
        else:
            tokens = tokens[:, 1:]
        maps = tokens.transpose(1, 2).unflatten(2, self.grid)
        _, class_token = self.transformers((maps, class_token))
        logits: Tensor = self.head(self.norm(class_token)[:, 0])
        return logits


@dataclass(frozen=True, kw_only=True)
class Pit(NamedCuts):
    """PiT-Ti: three stages of transformer blocks, with a pooling of tokens between stages.

    Attributes:
        patch: side of a patch in pixels; None means 16, as published, for images of 64 pixels or more per side, and 4
            for smaller ones.
        stride: pixels from one patch to the next; None is half the patch, as published. If it is smaller than `patch`,
            patches overlap, and tokens reveal their neighbors.
        cut: last layer of the lower segment: "embedding" (tokens; the server owns the class token), or "stage1" to
            "stage3" (tokens with the client's class token in front, which a stage needs).

    Source: Heo et al. 2021, "Rethinking spatial dimensions of vision transformers", table 1; modules are timm's.

    >>> split = PIT_TINY.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0)
    >>> split.lower(torch.zeros(2, 3, 32, 32)).shape, split.class_token
    (torch.Size([2, 225, 64]), 'server')
    """

    domain: ClassVar[str] = "images"

    patch: Count | None = None
    stride: Count | None = None
    cut: str = "embedding"

    cuts: ClassVar[tuple[str, ...]] = ("embedding", *(f"stage{i + 1}" for i in range(len(_DEPTHS))))

    def patch_for(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """Side of a patch and stride, in pixels, for images of this shape; `UsageError` if a patch exceeds the image.

        >>> [PIT_TINY.patch_for((3, side, side)) for side in (28, 32, 224)]
        [(4, 2), (4, 2), (16, 8)]
        """
        smaller = min(image_shape[1:])
        patch = self.patch or (4 if smaller < SMALL_IMAGE else 16)
        if patch > smaller:
            raise UsageError(f"patch must be at most the image's smaller side ({smaller}), got {patch}")
        return patch, self.stride or max(1, patch // 2)

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        from timm.models.pit import PoolingVisionTransformer

        stages = self.cuts.index(self.cut)
        if stages:
            check_class_token(positions, "cut=embedding leaves it to the server")
        channels, height, width = domain.shape
        patch, stride = self.patch_for(domain.shape)
        with seeded(torch.device("cpu"), seed):
            pit: Any = PoolingVisionTransformer(
                img_size=(height, width),  # type: ignore[arg-type]
                patch_size=patch,
                stride=stride,
                in_chans=channels,
                num_classes=classes,
                base_dims=(_BASE_WIDTH,) * len(_DEPTHS),
                depth=_DEPTHS,
                heads=_HEADS,
                mlp_ratio=4,
            )
        if not positions:
            pit.pos_embed = None
        apart = patch == stride and not (height % patch or width % patch)
        return SplitModel(
            lower=_Lower(pit, stages),
            upper=_Upper(pit, stages),
            hides_places=apart and not positions,
            class_token="client" if stages else "server",
        )


PIT_TINY = Pit()  # PiT-Ti, cut after the embedding
