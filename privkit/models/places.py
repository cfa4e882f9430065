"""Whether the smashed data of a lower segment tell where a patch lay: a numeric test."""

from __future__ import annotations

from copy import deepcopy
from math import isqrt

import torch
from torch import Generator, Tensor, nn

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tokens.domain import Tokens

_NOISE = (
    0.1  # on every trained weight: a position embedding that starts at zero would stay unseen, and is learned later
)
_TOLERANCE = 1e-3  # of the longest token; rounding is a hundred times smaller, a position embedding larger


@torch.no_grad()
def hides_places(lower: nn.Module, domain: Domain) -> bool | None:
    """Whether permuting the patches of an image, or the tokens of a sequence, only permutes what the segment gives.

    A shuffle hides the order of tokens only if no token tells its own place. Tokens may lie over the patches in any
    order; the test runs a copy of the segment, and may draw from the global generator if the segment does.

    Args:
        lower: the lower segment, on the CPU.
        domain: what a record is.

    Returns:
        None if it cannot be checked: the tokens are no square grid over the image, nor one for each token of a
        sequence; the record is a table row; or the segment draws noise of its own, or cannot be copied or run (training
        meets that error too, and reports it).

    >>> hides_places(nn.Unflatten(2, (16, 1)), Images(shape=(1, 16, 16))) is None  # [N, 1, 16, 1, 16] holds no tokens
    True
    """
    draws = Generator().manual_seed(0)
    probe = domain.random(1, draws)
    try:
        segment = deepcopy(lower).eval()
        places = _places(segment(probe), domain)
        if places is None:
            return None
        for weight in segment.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=draws, dtype=weight.dtype), alpha=_NOISE)
        orders = [torch.arange(places), torch.arange(places).roll(1), torch.randperm(places, generator=draws)]
        records = torch.cat([_permuted(probe, order) for order in orders])
        tokens, again = segment(records), segment(records)
    except Exception:
        return None
    if not (tokens.isfinite().all() and torch.equal(tokens, again)):
        return None
    limit = _TOLERANCE * tokens.norm(dim=2).max()
    distances = torch.cdist(tokens[1:], tokens[:1], compute_mode="donot_use_mm_for_euclid_dist")
    return bool((distances.amin(1) <= limit).all() and (distances.amin(2) <= limit).all())


def _places(tokens: Tensor, domain: Domain) -> int | None:
    """Number of tokens, if they are a square grid that divides the image, or one for each token of a sequence."""
    if tokens.ndim != 3:
        return None
    if isinstance(domain, Tokens):
        return domain.length if tokens.shape[1] == domain.length else None
    if not isinstance(domain, Images):
        return None
    side, (_, height, width) = isqrt(tokens.shape[1]), domain.shape
    fits = side > 0 and side**2 == tokens.shape[1] and not height % side and not width % side
    return side**2 if fits else None


def _permuted(record: Tensor, order: Tensor) -> Tensor:
    """A sequence [1, T] in another order, or an image [1, C, H, W] with a square grid of patches in another order."""
    if record.ndim == 2:
        return record[:, order]
    _, c, h, w = record.shape
    side = isqrt(len(order))
    patches = record.view(c, side, h // side, side, w // side).permute(1, 3, 0, 2, 4).flatten(0, 1)[order]
    moved: Tensor = patches.unflatten(0, (side, side))
    return moved.permute(2, 0, 3, 1, 4).reshape(1, c, h, w)
