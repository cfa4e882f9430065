"""How much of a guessed order of tokens is right: direct, neighbor and membership accuracy of each image.

An arrangement of the T tokens (pieces) of N images is int64 [N, T], as in `privkit.attacks.goals.order.Permutation`:
the place of each released piece among all places of its message (the rows that are shuffled together). If `kinds` are
given, equal pieces are interchangeable: swapping two equal patches is correct.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

from privkit.constraints import whole


def equal_tokens(tokens: Tensor, batch: int) -> Tensor:
    """Number the kinds of tokens [N, T, D], int64 [N, T]: in a message of `batch` rows, equal tokens share a kind."""
    parts = (tokens + 0.0).split(batch)  # −0 and 0 are equal
    return torch.cat([x.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view(x.shape[:2]) for x in parts])


def direct_accuracy(guess: Tensor, truth: Tensor, *, batch: int, kinds: Tensor | None = None) -> Tensor:
    """For each true image, the share of places at which the guess has the right piece (token), float64 [N]."""
    placed, right = _contents(guess, truth, batch, kinds)
    return (placed == right).double().mean(1)


def neighbor_accuracy(guess: Tensor, truth: Tensor, *, batch: int, kinds: Tensor | None = None) -> Tensor:
    """For each true image, the share of adjacent pairs of pieces that are also adjacent in the guess.

    A pair must have the same direction, but may be in any of the `batch` images that are shuffled together. Pairs with
    equal contents are matched one to one. An image has 2·√T·(√T − 1) pairs. T ≥ 4 must be a square number.

    Source: the measure of Cho et al. 2010 and of the puzzle solvers after them.
    """
    placed, right = _contents(guess, truth, batch, kinds)
    side = isqrt(truth.shape[1])
    if side * side != truth.shape[1] or side < 2:
        raise ValueError(f"neighbors need a square grid of at least 4 tokens, got {truth.shape[1]}")
    most = int(max(placed.max(), right.max())) + 1
    message = torch.arange(len(truth), device=truth.device).unsqueeze(1) // batch
    hits = torch.zeros(len(truth), dtype=torch.float64, device=truth.device)
    for down in (False, True):
        codes = [_adjacent_codes(contents, side, down, most) + message * most**2 for contents in (placed, right)]
        hits += _also_offered(codes[1], codes[0]).sum(1)
    return hits / (2 * side * (side - 1))


def membership_accuracy(guess: Tensor, truth: Tensor, *, batch: int, kinds: Tensor | None = None) -> Tensor:
    """For each true image, the share of its pieces (tokens) that the guess puts into this image, at any place.

    A blind guess reaches 1/batch, or the share of pieces that the shuffle leaves in their row, if this is larger.
    """
    placed, right = _contents(guess, truth, batch, kinds)
    most = int(max(placed.max(), right.max())) + 1
    picture = most * torch.arange(len(truth), device=truth.device).unsqueeze(1)
    return _also_offered(right + picture, placed + picture).double().mean(1)


def _contents(guess: Tensor, truth: Tensor, batch: int, kinds: Tensor | None) -> tuple[Tensor, Tensor]:
    """The kind of piece in each place, [N, T], in the guessed and in the true arrangement."""
    n, t = truth.shape
    if guess.shape != truth.shape or (kinds is not None and kinds.shape != truth.shape):
        shapes = [list(guess.shape), list(truth.shape)] + ([list(kinds.shape)] if kinds is not None else [])
        raise ValueError(f"guess, truth and kinds must have one shape [N, T], got {' and '.join(map(str, shapes))}")
    whole("batch", batch)
    first = (torch.arange(n, device=truth.device) // batch * batch * t).unsqueeze(1)
    labels = torch.arange(n * t, device=truth.device).view(n, t) - first if kinds is None else kinds
    contents = []
    for name, source in (("guess", guess), ("truth", truth)):
        places = (source + first).flatten()
        if not torch.equal(places.sort().values, torch.arange(n * t, device=truth.device)):
            raise ValueError(f"{name} must name every place of each message of {batch} rows exactly once")
        contents.append(torch.empty_like(places).scatter(0, places, labels.flatten()).view(n, t))
    return contents[0], contents[1]


def _adjacent_codes(contents: Tensor, side: int, down: bool, most: int) -> Tensor:
    grid = contents.view(-1, side, side)
    if down:
        grid = grid.transpose(1, 2)
    return (grid[:, :, :-1] * most + grid[:, :, 1:]).flatten(1)


def _also_offered(wanted: Tensor, offered: Tensor) -> Tensor:
    """Whether each value of `wanted` also occurs in `offered`, bool; each occurrence is used once."""
    return torch.isin(_occurrences(wanted), _occurrences(offered))


def _occurrences(codes: Tensor) -> Tensor:
    """Make equal codes distinct: the first, second, … occurrence of a code gets a code of its own."""
    flat = codes.flatten()
    order = flat.argsort(stable=True)
    ordered = flat[order]
    index = torch.arange(len(flat), device=flat.device)
    start = torch.where(ordered != ordered.roll(1), index, 0)
    start[0] = 0
    occurrence = torch.empty_like(flat).scatter(0, order, index - start.cummax(0).values)
    return (flat * len(flat) + occurrence).view(codes.shape)
