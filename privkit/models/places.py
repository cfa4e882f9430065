"""Whether the smashed data of a lower segment tell where a patch lay: a numeric test."""

from __future__ import annotations

from copy import deepcopy
from math import prod

import torch
from torch import Generator, Tensor, nn

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tokens.domain import Tokens

_NOISE = (
    0.1  # on every trained weight: a position embedding that starts at zero would stay unseen, and is learned later
)
_TOLERANCE = 1e-3  # of the distance of two tokens; rounding is a hundred times smaller, a position embedding larger
_OTHERS = 8
"""Tokens beside the patches, at most: a class token, one for distillation, registers."""


def hides_places(lower: nn.Module, domain: Domain) -> bool | None:
    """The first of what `told_places` gives."""
    return told_places(lower, domain)[0]


@torch.no_grad()
def told_places(lower: nn.Module, domain: Domain) -> tuple[bool | None, int]:
    """Whether permuting the patches of an image, or the tokens of a sequence, only permutes what the segment gives.

    A shuffle hides the order of tokens only if no token tells its own place. Tokens may lie over the patches in any
    order, and some may stand for no patch, such as a class token: these must stay where they are. The patches are
    those of the finest grid over the image that has at most as many as there are tokens. A position embedding fails
    the test, and so do patches that overlap: they tell their neighbors. The test cannot tell the two apart. It runs a
    copy of the segment, and may draw from the global generator if the segment does.

    Args:
        lower: the lower segment, on the CPU.
        domain: what a record is.

    Returns:
        Whether places are hidden, and the number of tokens that stand for no patch (0 unless places are hidden). None
        if it could not be shown, either way: the tokens are no grid over the image, nor one for each token of a
        sequence; other tokens lie beside them and the test fails; the record is a table row; or the segment draws
        noise of its own, or cannot be copied or run (training meets that error too, and reports it).

    >>> told_places(nn.Sequential(nn.Flatten(2), nn.ZeroPad1d((1, 0)), nn.Unflatten(2, (5, 1)), nn.Flatten(0, 1)),
    ...     Images(shape=(1, 2, 2)))  # a pixel is a token, and one of zeros is in front
    (True, 1)
    """
    draws = Generator().manual_seed(0)
    probe = domain.random(1, draws)
    try:
        segment = deepcopy(lower).eval()
        grid = _grid(segment(probe), domain)
        if grid is None:
            return None, 0
        for weight in segment.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=draws, dtype=weight.dtype), alpha=_NOISE)
        for name, moment in segment.named_buffers():
            if name.endswith(("running_mean", "running_var")):  # learned as well: of tokens, one for each place
                moment.add_(torch.rand(moment.shape, generator=draws, dtype=moment.dtype), alpha=_NOISE)
        places = prod(grid)
        orders = [torch.arange(places), torch.arange(places).roll(1), torch.randperm(places, generator=draws)]
        records = torch.cat([_permuted(probe, grid, order) for order in orders])
        tokens, again = segment(records), segment(records)
    except Exception:
        return None, 0
    if not (tokens.isfinite().all() and torch.equal(tokens, again)):
        return None, 0
    apart, sequence = torch.pdist(tokens[0]), isinstance(domain, Tokens)
    limit = _TOLERANCE * (apart.max() if sequence else apart.median())  # a sequence may repeat most of its tokens
    distances = torch.cdist(tokens[1:], tokens[:1], compute_mode="donot_use_mm_for_euclid_dist")
    same = bool((distances.amin(1) <= limit).all() and (distances.amin(2) <= limit).all())
    others = tokens.shape[1] - places
    if not same:
        return (None if others else False), 0
    stayed = (distances.diagonal(dim1=1, dim2=2) <= limit).all(0).sum()
    moved = stayed < places if sequence else stayed == others  # a word may be the same in another place
    return (True, others) if moved else (None, 0)


def _grid(tokens: Tensor, domain: Domain) -> tuple[int, ...] | None:
    """Rows and columns of the patches that tokens may stand for, or the length of a sequence; see `told_places`."""
    if tokens.ndim != 3:
        return None
    count = tokens.shape[1]
    if isinstance(domain, Tokens):
        return (count,) if count == domain.length > 1 else None
    if not isinstance(domain, Images):
        return None
    _, height, width = domain.shape
    fit = [
        (rows, columns)
        for rows in range(1, min(height, count) + 1)
        for columns in range(1, min(width, count // rows) + 1)
        if not height % rows and not width % columns and max(2, count - _OTHERS) <= rows * columns
    ]
    oblong = {grid: (abs(height / grid[0] - width / grid[1]), abs(grid[0] - grid[1])) for grid in fit}
    return min(fit, key=lambda grid: (-prod(grid), oblong[grid]), default=None)


def _permuted(record: Tensor, grid: tuple[int, ...], order: Tensor) -> Tensor:
    """A sequence [1, T] in another order, or an image [1, C, H, W] with the patches of a grid in another order."""
    if record.ndim == 2:
        return record[:, order]
    (_, c, h, w), (rows, columns) = record.shape, grid
    patches = record.view(c, rows, h // rows, columns, w // columns).permute(1, 3, 0, 2, 4).flatten(0, 1)[order]
    moved: Tensor = patches.unflatten(0, (rows, columns))
    return moved.permute(2, 0, 3, 1, 4).reshape(1, c, h, w)
