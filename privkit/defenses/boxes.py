"""Boxes of positions: one for Cutout, nested ones for CutMix of k clients."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def nested_boxes(areas: Tensor, rows: int, columns: int, generator: Generator) -> Tensor:
    """Random boxes of given areas, each inside the one before it.

    A box is ⌈√a·rows⌉ high and as wide as brings it nearest to its area a, so that a single box misses it by at most
    half that height, in positions. Its place is uniform among those inside the box before it (the grid, for the first):
    Cutout's boxes may hang over the edge, which would make payloads and ratios random.

    Args:
        areas: float64 [G, J], shares of the grid in [0, 1], falling along J ≥ 1.
        rows: of the grid.
        columns: of the grid.
        generator: the only source of randomness, on the device of `areas`.

    Returns:
        bool [G, J, rows·columns], true inside.

    Source: the bounding box (r_x, r_y, r_w, r_h) of DP-CutMixSL §3.B and CutMixSL appendix B, Eq. 9 and 10.

    >>> nested_boxes(torch.tensor([[0.5, 0.25]]).double(), 8, 8, torch.Generator().manual_seed(0)).sum(2).tolist()
    [[30, 16]]
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
