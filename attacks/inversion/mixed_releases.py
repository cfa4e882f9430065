"""Releases that hold several images: one row for each image that is to be guessed."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable, QueryResult, View


def per_member(view: View) -> Tensor:
    """A row for each image in a release: the released row and, where coins are public, the image's weight in each cell.

    Args:
        view: N released rows of k images each.

    Returns:
        [N·k, T, D + 1] (tokens) or [N·k, C + 1, H, W] (maps) with the weights as the last channel; without public coins
        the release itself, each row k times: nothing then tells the k images of a row apart.

    >>> view = View(round=0, smashed=torch.ones(1, 3, 2), mixed=2, weights=torch.tensor([[[1., 0., 1.], [0., 1., 0.]]]))
    >>> per_member(view)[0].tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    rows = view.smashed if view.mixed == 1 else view.smashed.repeat_interleave(view.mixed, 0)
    if view.weights is None:
        return rows
    if rows.ndim == 2:
        raise NotApplicable(f"masks need tokens or maps, but the release is {list(rows.shape)}")
    weights = by_cell(view.weights, view.smashed).flatten(0, 1).to(rows.dtype)
    if rows.ndim == 3:
        return torch.cat([rows, weights.unsqueeze(2).expand(-1, rows.shape[1], -1)], 2)
    whole = (len(rows), 1, *rows.shape[2:])
    return torch.cat(
        [rows, weights.unflatten(1, (1, 1, -1)).expand(whole) if weights.shape[1] == 1 else weights.view(whole)], 1
    )


def by_cell(weights: Tensor, smashed: Tensor) -> Tensor:
    """Weights of positions as weights of the tokens or pixels that a release consists of.

    Args:
        weights: [N, k, T].
        smashed: [N, L, D], [N, C, H, W] with squares of pixels as positions, or [N, D].

    Returns:
        [N, k, 1] if T = 1, else [N, k, L] or [N, k, H·W].

    Raises:
        NotApplicable: if the positions are none of the release's, as of images that were mixed before they were cut.

    >>> by_cell(torch.tensor([[[0.0, 1.0]]]), torch.zeros(1, 3, 2, 4)).view(2, 4)
    tensor([[0., 0., 1., 1.],
            [0., 0., 1., 1.]])
    """
    rows, members, positions = weights.shape
    if positions == 1:
        return weights
    if smashed.ndim == 4:
        height, width = smashed.shape[2:]
        side = isqrt(height * width // positions)
        if side and positions == (height // side) * (width // side):
            grid = weights.reshape(rows * members, 1, height // side, width // side)
            return nn.functional.interpolate(grid, size=(height, width), mode="nearest").reshape(rows, members, -1)
    elif smashed.ndim == 3 and smashed.shape[1] == positions:
        return weights
    raise NotApplicable(
        f"there are weights of {positions} positions, but the release is {list(smashed.shape[1:])} a row"
    )


def exercise(answer: QueryResult, images: Tensor) -> tuple[Tensor, Tensor]:
    """What a decoder trains on: rows of `per_member` and the images that they should give; empty seats are left out.

    Args:
        answer: to a query.
        images: [N, C, H, W], what was queried.
    """
    members = answer.members.flatten()
    rows = per_member(answer.view)
    if answer.view.mixed == 1:
        return rows, images[members]
    return rows[members >= 0], images[members[members >= 0]]
