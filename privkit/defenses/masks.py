"""Positions of smashed data (tokens, or squares of a feature map or an image), which masks keep or drop."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Generator, Tensor

from privkit.constraints import whole

INPUT_PATCH = 2  # default side in pixels of a position of an image (DP-CutMixSL §3.B, "Impact of Patch Size": 2×2)


def positions(name: str, smashed: Tensor, patch: int | None, *, leading: int) -> int:
    """Number T of positions in one image's smashed data.

    Positions are tokens [..., T, D], or squares with `patch` pixels a side in feature maps or images [..., C, H, W].
    `leading` axes come before one image's smashed data: 2 for [M, B, ...], 3 for [G, k, B, ...]. Raises a ValueError,
    which names the defense, for vectors, for feature maps without `patch`, and if `patch` does not divide their sides.
    """
    rows, columns = _grid(name, smashed, patch, leading)
    return rows * columns


def box_grid(name: str, smashed: Tensor, patch: int | None, *, leading: int) -> tuple[int, int]:
    """Rows and columns of the grid of positions, for masks that are boxes.

    Arguments and errors are those of `positions`. Also raises a ValueError if tokens form no square grid.
    """
    rows, columns = _grid(name, smashed, patch, leading)
    if smashed.ndim - leading == 3:
        return rows, columns
    side = isqrt(columns)
    if side * side != columns:
        raise ValueError(
            f"{name} cuts boxes from a square grid of tokens, got {columns} tokens; leave the class token out, or use "
            "random_cutout or random_cutmix, which need no grid"
        )
    return side, side


def spread(weights: Tensor, smashed: Tensor, patch: int | None, *, leading: int) -> Tensor:
    """Turn weights of T positions into factors of the coordinates of `smashed`.

    `weights` are [M, T] or [G, k, T], as `leading` says (see `positions`); T = 1 gives all positions one weight. Masks
    stay bool; other weights get the dtype of `smashed`.
    """
    weights = weights if weights.dtype == torch.bool else weights.to(smashed.dtype)
    outer, trailing = weights.shape[:-1], smashed.shape[leading:]
    if weights.shape[-1] == 1:
        return weights.reshape(*outer, 1, *(1 for _ in trailing))
    if len(trailing) == 2:
        return weights.reshape(*outer, 1, -1, 1)
    assert patch is not None  # `positions` raises an error for None
    _, height, width = trailing
    squares = weights.reshape(*outer, 1, 1, height // patch, 1, width // patch, 1)
    return squares.expand(*squares.shape[:-3], patch, width // patch, patch).reshape(*outer, 1, 1, height, width)


def uniform_permutations(rows: int, length: int, generator: Generator) -> Tensor:
    """Independent uniform permutations of 0..length−1, int64 [rows, length]: one permutation in each row.

    Uniform float64 numbers are sorted. A tie, which would favor one order, has a probability below rows·length²·2⁻⁵³.
    """
    keys = torch.rand(rows, length, generator=generator, device=generator.device, dtype=torch.float64)
    return keys.argsort(dim=1)


def _grid(name: str, smashed: Tensor, patch: int | None, leading: int) -> tuple[int, int]:
    """Numbers of rows and columns of positions; tokens form one row."""
    trailing = tuple(smashed.shape[leading:])
    if len(trailing) == 2:
        return 1, trailing[0]
    if len(trailing) != 3 or patch is None:
        raise ValueError(
            f"{name} needs tokens [..., T, D], got shape {list(smashed.shape)}; cut the model where it holds tokens, "
            "or give patch=, the side of a position of a feature map [..., C, H, W]"
        )
    _, height, width = trailing
    if height % whole("patch", patch) or width % patch:
        common = [side for side in range(1, min(height, width) + 1) if height % side == 0 == width % side]
        raise ValueError(
            f"{name}: patch={patch} does not divide the feature map's {height}×{width} pixels; use one of {common}"
        )
    return height // patch, width // patch


def nested_boxes(areas: Tensor, rows: int, columns: int, generator: Generator) -> Tensor:
    """Draw boxes of given areas in grids of rows × columns, each inside the previous one: bool [G, J, rows·columns].

    `areas` of J ≥ 1 boxes in each of G grids are float64 [G, J], shares of the grid in [0, 1], decreasing along J. A
    box of area a is ⌈√a·rows⌉ high, and its width is chosen so that its area is nearest to a. So the first box's number
    of positions differs from a·rows·columns by at most half its height. A further box is at most as wide as the
    previous one, which may leave it smaller: on 8 × 8 positions, boxes of areas 0.7685 and 0.7656 have 48 and 42
    positions, not 49. A box's place is uniform inside the previous box (or in the grid, for the first box). The
    original Cutout lets boxes extend beyond the edge, which would make their areas random.

    Source: the bounding box (r_x, r_y, r_w, r_h) of DP-CutMixSL §3.B and CutMixSL appendix B, Eq. 9 and 10.
    """
    device = areas.device
    high = (rows * areas.sqrt() - 1e-9).ceil()  # √a may be rounded up
    wide = (areas * rows * columns / high.clamp(min=1)).round()
    size = torch.stack([high, wide], 2).cummin(1).values
    grid = torch.tensor([rows, columns], dtype=size.dtype, device=device).expand(len(size), 1, 2)
    slack = torch.cat([grid, size[:, :-1]], 1) - size
    uniform = torch.rand(size.shape, generator=generator, device=device, dtype=torch.float64)
    first = (uniform * (slack + 1)).floor().cumsum(1)
    inside = [
        (place >= first[..., axis, None]) & (place < (first + size)[..., axis, None])
        for axis, place in enumerate((torch.arange(rows, device=device), torch.arange(columns, device=device)))
    ]
    return (inside[0].unsqueeze(3) & inside[1].unsqueeze(2)).flatten(2)
