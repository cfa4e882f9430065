"""Releases that hold several images: one row for each image that is to be guessed."""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

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
    weights = view.weights.flatten(0, 1).to(rows.dtype)
    if rows.ndim == 3:
        return torch.cat([rows, weights.unsqueeze(2).expand(-1, rows.shape[1], -1)], 2)
    if rows.ndim == 4:
        _, _, height, width = rows.shape
        patch = isqrt(height * width // weights.shape[1])
        grid = (
            weights.view(len(rows), 1, -1, 1)
            if weights.shape[1] == 1
            else weights.view(-1, 1, height // patch, width // patch)
        )
        return torch.cat([rows, torch.nn.functional.interpolate(grid, size=(height, width), mode="nearest")], 1)
    raise NotApplicable(f"masks need tokens or maps, but the release is {list(rows.shape)}")


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
