"""Releases whose rows mix several images: the images in a row, their weights, and rows that share images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable, QueryResult, View


def per_member(view: View) -> Tensor:
    """Give each record in a release a row of its own: the released row and, if public, the weight at each position.

    N rows of k records give N·k rows: [N·k, T, D + 1], [N·k, C + 1, H, W] or [N·k, D + 1] (vectors, with one weight),
    with the weights as the last channel. Without public weights, rows are only repeated: k records have equal rows.

    >>> view = View(round=0, smashed=torch.ones(1, 3, 2), mixed=2, weights=torch.tensor([[[1., 0., 1.], [0., 1., 0.]]]))
    >>> per_member(view)[0].tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """
    rows = view.smashed if view.mixed == 1 else view.smashed.repeat_interleave(view.mixed, 0)
    if view.weights is None:
        return rows
    weights = by_cell(view.weights, view.smashed).flatten(0, 1).to(rows.dtype)
    if rows.ndim == 2:
        return torch.cat([rows, weights], 1)
    if rows.ndim == 3:
        return torch.cat([rows, weights.unsqueeze(2).expand(-1, rows.shape[1], -1)], 2)
    whole = (len(rows), 1, *rows.shape[2:])
    return torch.cat(
        [rows, weights.unflatten(1, (1, 1, -1)).expand(whole) if weights.shape[1] == 1 else weights.view(whole)], 1
    )


def by_cell(weights: Tensor, smashed: Tensor) -> Tensor:
    """Expand mixing weights [N, k, T] to L tokens or H·W pixels: [N, k, L] or [N, k, H·W]; [N, k, 1] if T = 1.

    The T positions of a feature map are squares of pixels. Raises `NotApplicable` if positions do not match the
    release, for example if images were mixed before the cut.

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
    raise NotApplicable(f"mixing weights are for {positions} positions, but a row is {list(smashed.shape[1:])}")


def exercise(answer: QueryResult, images: Tensor) -> tuple[Tensor, Tensor]:
    """Make a decoder's training pairs: a row for each mixed image (`per_member`), and these images, [n, C, H, W]."""
    members = answer.members.flatten()
    rows = per_member(answer.view)
    if answer.view.mixed == 1:
        return rows, images[members]
    return rows[members >= 0], images[members[members >= 0]]


def records_of_rows(view: View) -> Tensor:
    """Number the records mixed in each released row, int64 [N, k] for N rows of k records; −1 for an empty place.

    The number is client · B + (place in the client's batch of B records). Raises `NotApplicable` if rows hold several
    records and the adversary does not know their clients.

    >>> view = View(round=0, smashed=torch.zeros(2, 3), mixed=2, clients=torch.tensor([[1, 0], [1, 0]]))
    >>> records_of_rows(view).tolist()
    [[2, 0], [3, 1]]
    """
    batch, rows = len(view.smashed) // view.messages, torch.arange(len(view.smashed), device=view.smashed.device)
    if view.clients is not None:
        return torch.where(view.clients >= 0, view.clients * batch + (rows % batch).unsqueeze(1), -1)
    if view.mixed > 1:
        raise NotApplicable(
            f"each row holds {view.mixed} images, and the adversary does not know which, because the random draws of "
            f"the mixing are hidden; use a defense with published=true"
        )
    return rows.unsqueeze(1)


def check_public(views: Sequence[View]) -> None:
    """Raise `NotApplicable` if rows are mixed with hidden weights."""
    if any(view.mixed > 1 and view.weights is None for view in views):
        raise NotApplicable(
            f"each released row holds {views[0].mixed} images with hidden weights: they can only be separated if the "
            f"mixing weights are public"
        )


def by_place(passes: Sequence[Tensor], batch: int) -> Tensor:
    """Sort rows [M·B, ...] of several passes by their place in the batch of B: [B·E, ...] for E messages in all."""
    return torch.cat([x.unflatten(0, (-1, batch)) for x in passes]).transpose(0, 1).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class LinkedRows:
    """Mixed rows of several passes (the same records sent again), sorted by their records' place in the batch.

    Every row mixes records with the same batch place, from different clients. So all rows of one place mix the same n
    records, and rows of different places share no record.
    """

    smashed: Tensor  # [P·E, ...], E rows for each of P batch places, place after place
    weights: Tensor  # [P·E, k, T], weights of the k records in a row, 0 on empty seats
    # int64 [P·E, k], the record on each seat; p·n + c is client c's record at place p. An empty seat repeats the row's
    # first record.
    records: Tensor
    clients: int  # number n of clients

    @classmethod
    def of(cls, same: Sequence[View]) -> LinkedRows:
        """Link the mixed releases of several passes (one view each) by the records that they mix.

        Raises `NotApplicable` if the mixed clients or the weights are hidden.
        """
        check_public(same)
        batch = len(same[0].smashed) // same[0].messages
        held = by_place([records_of_rows(view) for view in same], batch)
        weights = by_place([view.weights for view in same if view.weights is not None], batch)
        taken, clients = held >= 0, int(held.max()) // batch + 1
        places = held % batch * clients + held // batch
        first = places.gather(1, taken.int().argmax(1, keepdim=True))
        return cls(
            smashed=by_place([view.smashed for view in same], batch),
            weights=torch.where(taken.unsqueeze(2), weights, 0),
            records=torch.where(taken, places, first),
            clients=clients,
        )

    @classmethod
    def joined(cls, several: Sequence[LinkedRows]) -> LinkedRows:
        """Join the rows of several rounds and renumber their batch places; all places have the same number of rows."""
        clients, before, records = max(one.clients for one in several), 0, []
        for one in several:
            place, client = one.records // one.clients, one.records % one.clients
            records.append((before + place) * clients + client)
            before += one.places
        return cls(
            smashed=torch.cat([one.smashed for one in several]),
            weights=torch.cat([one.weights for one in several]),
            records=torch.cat(records),
            clients=clients,
        )

    @property
    def mixed(self) -> int:
        return self.records.shape[1]

    @property
    def places(self) -> int:
        return int(self.records.max()) // self.clients + 1

    def parts(self, images: int) -> list[LinkedRows]:
        """Split the rows by batch place into chunks of at most `images` records, but of at least one place."""
        places = max(1, images // self.clients)
        rows = len(self.smashed) // self.places * places
        return [
            LinkedRows(smashed=smashed, weights=weights, records=held - first * self.clients, clients=self.clients)
            for smashed, weights, held, first in zip(
                self.smashed.split(rows),
                self.weights.split(rows),
                self.records.split(rows),
                range(0, self.places, places),
                strict=True,
            )
        ]

    def seated(self, images: Tensor, view: View) -> Tensor:
        """Arrange images [P·n, ...] of all records as guesses for one view: k for each of its N rows, [N·k, ...]."""
        by_client: Tensor = images.unflatten(0, (-1, self.clients)).transpose(0, 1).flatten(0, 1)
        return by_client[records_of_rows(view).flatten().clamp_min(0)]
