"""Multi-kernel maximum mean discrepancy: how far two sets of rows are apart as samples of two distributions."""

from __future__ import annotations

import torch
from torch import Tensor

BANDWIDTHS = tuple(2.0**power for power in range(-3, 2))
"""Of the Gaussian kernels, σ² in mean squared distances of two rows."""


def mk_mmd(recorded: Tensor, simulated: Tensor) -> Tensor:
    """The unbiased estimate of the squared discrepancy by Gaussian kernels of several widths; a scalar.

    Within a set a row is not compared with itself; between the sets all pairs count. A constant 2 / (N − 1) is added,
    as in the attack's release, which keeps its values positive.

    Args:
        recorded: [N, ...], N ≥ 2.
        simulated: shaped like it.

    Source: Gretton et al. 2012, "A kernel two-sample test", Lemma 6, with the kernels of Long et al. 2015, "Learning
    transferable features with deep adaptation networks".

    >>> rows = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    >>> bool(mk_mmd(rows, rows.flip(0)) < mk_mmd(rows, rows + 1))
    True
    """
    count, rows = len(recorded), torch.cat([recorded, simulated]).flatten(1)
    squares = rows.square().sum(1)
    apart = (squares.unsqueeze(1) + squares - 2 * rows @ rows.T).clamp_min(0)
    unit = 2 * apart.detach().mean().clamp_min(1e-12)
    alike = torch.stack([torch.exp(-apart / (width * unit)) for width in BANDWIDTHS]).sum(0)
    others = 1 - torch.eye(count, device=rows.device, dtype=rows.dtype)
    within = (alike[:count, :count] * others).sum() + (alike[count:, count:] * others).sum()
    discrepancy: Tensor = within / (count * (count - 1)) - 2 * alike[:count, count:].mean() + 2 / (count - 1)
    return discrepancy
