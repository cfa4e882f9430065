"""Whether the smashed data of a lower segment tell where a patch lay: a numeric test."""

from __future__ import annotations

from copy import deepcopy
from math import isqrt

import torch
from torch import Generator, Tensor, nn

NOISE = 0.1  # on every trained weight: a position embedding that starts at zero would stay unseen, and is learned later
TOLERANCE = 1e-3  # of the longest token; rounding is a hundred times smaller, a position embedding larger


@torch.no_grad()
def hides_places(lower: nn.Module, image_shape: tuple[int, int, int]) -> bool | None:
    """Whether permuting the patches of an image does nothing to its tokens but permute them.

    A shuffle hides the order of tokens only if no token tells its own place. Tokens may lie over the patches in any
    order; the test runs a copy of the segment, and may draw from the global generator if the segment does.

    Args:
        lower: the lower segment, on the CPU.
        image_shape: (C, H, W).

    Returns:
        None where it cannot be checked: the tokens are no square grid over the image, the segment draws noise of its
        own, or it cannot be copied or run (training meets that error too, and reports it).

    >>> hides_places(nn.Unflatten(2, (16, 1)), (1, 16, 16)) is None  # [N, 1, 16, 1, 16] holds no tokens
    True
    """
    draws = Generator().manual_seed(0)
    probe = torch.rand(1, *image_shape, generator=draws)
    try:
        segment = deepcopy(lower).eval()
        side = _grid_side(segment(probe), image_shape)
        if side is None:
            return None
        for weight in segment.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=draws, dtype=weight.dtype), alpha=NOISE)
        orders = [torch.arange(side**2), torch.arange(side**2).roll(1), torch.randperm(side**2, generator=draws)]
        images = torch.cat([_permuted(probe, side, order) for order in orders])
        tokens, again = segment(images), segment(images)
    except Exception:
        return None
    if not (tokens.isfinite().all() and torch.equal(tokens, again)):
        return None
    limit = TOLERANCE * tokens.norm(dim=2).max()
    distances = torch.cdist(tokens[1:], tokens[:1], compute_mode="donot_use_mm_for_euclid_dist")
    return bool((distances.amin(1) <= limit).all() and (distances.amin(2) <= limit).all())


def _grid_side(tokens: Tensor, image_shape: tuple[int, int, int]) -> int | None:
    """Tokens a side, if they are a square grid that divides the image."""
    if tokens.ndim != 3:
        return None
    side = isqrt(tokens.shape[1])
    fits = side > 0 and side**2 == tokens.shape[1] and not image_shape[1] % side and not image_shape[2] % side
    return side if fits else None


def _permuted(image: Tensor, side: int, order: Tensor) -> Tensor:
    """An image [1, C, H, W] whose side × side patches lie in another order."""
    _, c, h, w = image.shape
    cells = image.view(c, side, h // side, side, w // side).permute(1, 3, 0, 2, 4).flatten(0, 1)[order]
    return cells.unflatten(0, (side, side)).permute(2, 0, 3, 1, 4).reshape(1, c, h, w)
