"""Changed copies of the adversary's images, from which an attack learns more than from the images alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor, nn

Augment = Literal["none", "crop", "crop_flip"]

_TURN, _SCALE, _SHEAR, _MOVE = 0.15, 0.1, 0.15, 0.035  # the largest changes that `deformed` makes


def augmented(images: Tensor, augment: Augment, draws: Generator) -> Tensor:
    """Shift each image at random by up to an eighth of its side; "crop_flip" also flips half of the images."""
    if augment == "none":
        return images
    n, _, h, w = images.shape
    pad = max(1, h // 8)
    padded = nn.functional.pad(images, (pad, pad, pad, pad))
    top, left = torch.randint(0, 2 * pad + 1, (2, n, 1), generator=draws, device=images.device)
    rows = top + torch.arange(h, device=images.device)
    columns = left + torch.arange(w, device=images.device)
    if augment == "crop_flip":
        flip = torch.rand(n, 1, generator=draws, device=images.device) < 0.5
        columns = torch.where(flip, columns.flip(1), columns)
    index = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def deformed(images: Tensor, draws: Generator) -> Tensor:
    """Rotate, scale, shear and shift each image [N, C, H, W] a little, at random; its edge fills new places.

    All numbers are uniform: the angle in ±0.15 radians, the scale of each axis in 1 ± 0.1, the shear in ±0.15, and each
    shift in ±3.5 % of the side.
    """
    drawn = 2 * torch.rand(6, len(images), generator=draws, device=images.device) - 1
    turn, shear, (wide, high) = _TURN * drawn[0], _SHEAR * drawn[1], 1 + _SCALE * drawn[2:4]
    across = (wide * turn.cos(), shear - wide * turn.sin(), 2 * _MOVE * drawn[4])  # affine_grid's side has length 2
    down = (high * turn.sin(), high * turn.cos(), 2 * _MOVE * drawn[5])
    maps = torch.stack([torch.stack(across, 1), torch.stack(down, 1)], 1)
    grid = nn.functional.affine_grid(maps, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
