"""Starting arrangements: coordinates of all pieces at once, by robust least squares on each piece's best matches."""

from __future__ import annotations

import numpy as np

from privkit.attacks.order.assembly import Frame, Places, Puzzles, assign
from privkit.shared.array import Array

_FAR = 3.0
"""Grid steps beyond which a coordinate says nothing about a place any more."""


def starts(puzzles: Puzzles) -> list[Places]:
    """Arrangements to begin a search with: from the places alone and, in one picture, from matches as well.

    Args:
        puzzles: M puzzles.

    Returns:
        Arrangements int64 [M, S]; one, or four of different trust in the matches.
    """
    first = [assign(puzzles.unary)]
    if puzzles.frame.pictures > 1:
        return first
    return first + [
        _arrange(puzzles, coordinates(puzzles.pairs, power=p, mutual=m)) for p, m in ((1, True), (2, True), (2, False))
    ]


def coordinates(pairs: Array, *, power: float, mutual: bool) -> Array:
    """Coordinates [M, S, 2] (column, row) under which as many best matches as possible lie one step apart.

    Each match is a spring, as strong as its lead over the second best match; springs that stay stretched are let go,
    more and more sharply.

    Args:
        pairs: [M, 2, S, S] log-odds.
        power: exponent on the lead.
        mutual: only matches that are the best of both pieces; else the best of either.

    Source: the linear program of Yu, Russell and Agapito 2016 ("Solving jigsaw puzzles with linear programming"), its
    L1 norm and rounds of rejection replaced by iteratively reweighted least squares, so that all puzzles are one solve.
    """
    m, _, s, _ = pairs.shape
    best_right = pairs >= pairs.max(3, keepdims=True)
    best_left = pairs >= pairs.max(2, keepdims=True)
    used = best_right & best_left if mutual else best_right | best_left
    ordered = np.sort(pairs, 3)[:, :, :, -2:-1], np.sort(pairs, 2)[:, :, -2:-1]
    lead = pairs - (np.maximum(*ordered) if mutual else np.minimum(*ordered))
    trust = np.where(used, np.maximum(lead, 1e-3) ** power, 0.0)
    step = np.array([[1.0, 0.0], [0.0, 1.0]])
    weight, slack = trust, 2.0
    coordinates = np.zeros((m, s, 2))
    while slack > 0.02:
        total = weight.sum(1)
        laplacian = -(total + total.transpose(0, 2, 1))
        laplacian[:, np.arange(s), np.arange(s)] = 1e-6 - laplacian.sum(2)
        pull = (weight.sum(2) - weight.sum(3)).transpose(0, 2, 1) @ step
        coordinates = np.linalg.solve(laplacian, pull)
        column, row = (coordinates[:, None, :, axis] - coordinates[:, :, None, axis] for axis in (0, 1))
        stretched = np.stack(
            [np.maximum(np.abs(column - across), np.abs(row - down)) for across, down in step], 1
        )  # [M, 2, S, S]
        weight = trust * (slack / (slack + stretched)) ** (1 if slack > 0.5 else 2)
        slack *= 0.8
    return coordinates


def _arrange(puzzles: Puzzles, coordinates: Array) -> Places:
    """The places nearest to the coordinates, the median piece in the middle."""
    frame: Frame = puzzles.frame
    grid = np.stack([np.arange(frame.places) % frame.columns, np.arange(frame.places) // frame.columns], 1)
    centered = coordinates - np.median(coordinates, 1, keepdims=True) + grid.mean(0)
    away = np.abs(centered[:, :, None] - grid).sum(3)
    return assign(-np.minimum(away, _FAR))
