"""Counts rows of a tensor that are equal up to rounding."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

_ROUNDING = 1e-5  # largest difference of numbers that count as equal, as a share of the largest absolute value


@torch.no_grad()
def multiplicities(rows: Tensor) -> list[int]:
    """How often each distinct row of a tensor [n, ...] occurs, up to rounding; the counts sum to n ≥ 1.

    Rows are sorted along a random direction, so that equal rows are neighbors.

    >>> sorted(multiplicities(torch.tensor([[0.5, 1.0], [2.0, 1.0], [0.5, 1.0 + 1e-7]])))
    [1, 2]
    """
    flat = rows.flatten(1).double()
    direction = torch.rand(flat.shape[1], dtype=flat.dtype, generator=Generator().manual_seed(0)).to(flat.device)
    ordered = flat[(flat @ direction).argsort()]
    same = (ordered[1:] - ordered[:-1]).abs().amax(1) <= _ROUNDING * flat.abs().max()
    first = torch.cat([same.new_zeros(1), same]).logical_not()
    counts: list[int] = first.cumsum(0).unique(return_counts=True)[1].tolist()
    return counts
