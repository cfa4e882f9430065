"""Functions that cut images into square patches, and join patches to images."""

from __future__ import annotations

from torch import Tensor


def patchify(images: Tensor, patch: int) -> Tensor:
    """Cut images or feature maps [..., C, H, W] into flattened patches, row by row: [..., (H/p)(W/p), p·p·C].

    The sides H and W must be multiples of the patch's side p ≥ 1, in pixels.

    >>> import torch
    >>> patchify(torch.arange(16.0).view(1, 1, 4, 4), 2)[0, 1]
    tensor([2., 3., 6., 7.])
    """
    *outer, c, h, w = images.shape
    grid = images.reshape(*outer, c, h // patch, patch, w // patch, patch)
    cells = grid.movedim((-4, -2, -3, -1, -5), (-5, -4, -3, -2, -1))
    return cells.reshape(*outer, (h // patch) * (w // patch), patch * patch * c)


def unpatchify(patches: Tensor, patch: int, image_shape: tuple[int, int, int]) -> Tensor:
    """Undo `patchify`: patches [..., (H/p)(W/p), p·p·C] to images [..., *image_shape] of shape (C, H, W)."""
    c, h, w = image_shape
    outer = patches.shape[:-2]
    grid = patches.reshape(*outer, h // patch, w // patch, patch, patch, c)
    return grid.movedim((-1, -5, -3, -4, -2), (-5, -4, -3, -2, -1)).reshape(*outer, c, h, w)
