"""Patches: the geometry that maps T released tokens to a grid of image patches."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable
from privkit.torch_utils.patches import patchify, unpatchify

__all__ = ["Geometry", "as_tokens", "class_tokens", "patch_tokens", "patchify", "sincos_positions", "unpatchify"]


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The layout of a release over the image: one token for each square patch, row by row."""

    token_dim: int  # number D of values in a token
    tokens: int  # number T of patches
    patch: int  # side of a patch in pixels
    image_shape: tuple[int, int, int]  # (C, H, W)
    class_tokens: int = 0  # number of leading class tokens, 0 or 1

    @property
    def patch_dim(self) -> int:
        return self.patch * self.patch * self.image_shape[0]

    @classmethod
    def of(cls, release: Tensor, image_shape: tuple[int, int, int]) -> Geometry:
        """Read the layout from a release [N, T, D] or [N, D, h, w] and from the images' shape (C, H, W).

        If the number of tokens is a square number plus one, the first token is a class token. Raises `NotApplicable` if
        patches are not square.
        """
        _, h, w = image_shape
        front = class_tokens(release)
        if release.ndim == 4:
            rows, columns, dim = release.shape[2], release.shape[3], release.shape[1]
        elif release.ndim == 3:
            rows = columns = isqrt(release.shape[1])
            dim = release.shape[2]
        else:
            raise NotApplicable(f"a decoder needs tokens [N, T, D] or maps [N, D, h, w], got {list(release.shape)}")
        tokens = release.shape[1] - front if release.ndim == 3 else rows * columns
        if rows * columns != tokens or h % rows or w % columns or h // rows != w // columns:
            raise NotApplicable(
                f"a decoder needs one token per square patch, but {tokens} tokens are not a square grid over "
                f"{h}×{w} pixels"
            )
        return cls(token_dim=dim, tokens=tokens, patch=h // rows, image_shape=image_shape, class_tokens=front)


def class_tokens(release: Tensor) -> int:
    """Number of leading class tokens in tokens [N, T, D]: 1 if T − 1 is a square number above 1, else 0."""
    patches = release.shape[1] - 1
    return int(release.ndim == 3 and patches > 1 and isqrt(patches) ** 2 == patches)


def as_tokens(release: Tensor) -> Tensor:
    """Tokens [N, T, D] of a release; feature maps [N, D, h, w] are read row by row."""
    return release.flatten(2).transpose(1, 2) if release.ndim == 4 else release


def patch_tokens(release: Tensor) -> Tensor:
    """Tokens [N, T, D] of a release, without a class token; see `as_tokens`."""
    return as_tokens(release)[:, class_tokens(release) :]


def sincos_positions(grid: int, dim: int) -> Tensor:
    """Fixed two-dimensional sine-cosine position embedding, one vector for each place of a square grid.

    The result is float [grid·grid, dim], row by row of the grid; dim must be divisible by 4.

    Source: Vaswani et al. 2017, §3.5, with one half of the numbers for each axis as in He et al. 2022, §3.
    """
    frequency = 1.0 / 10000 ** (torch.arange(dim // 4, dtype=torch.float64) / (dim / 4))
    angle = torch.arange(grid, dtype=torch.float64)[:, None] * frequency
    axis = torch.cat([angle.sin(), angle.cos()], 1)
    return torch.cat([axis.repeat_interleave(grid, 0), axis.repeat(grid, 1)], 1).float()
