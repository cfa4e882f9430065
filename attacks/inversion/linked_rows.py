"""Rows of several passes that hold the same records: which record sits where, so that one guess fits all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.base import NotApplicable, View


def records_of_rows(view: View) -> Tensor:
    """The record on each seat of each row, int64 [N, k], as client · B + place in the batch; −1 on an empty seat.

    Raises:
        NotApplicable: if rows hold several records and the adversary does not know whose.

    >>> view = View(round=0, smashed=torch.zeros(2, 3), mixed=2, clients=torch.tensor([[1, 0], [1, 0]]))
    >>> records_of_rows(view).tolist()
    [[2, 0], [3, 1]]
    """
    batch, rows = len(view.smashed) // view.messages, torch.arange(len(view.smashed), device=view.smashed.device)
    if view.clients is not None:
        return torch.where(view.clients >= 0, view.clients * batch + (rows % batch).unsqueeze(1), -1)
    if view.mixed > 1:
        raise NotApplicable(
            f"each row holds {view.mixed} images, and the adversary does not know whose, because the coins of mixing "
            "are hidden from it; use a defense with published=true"
        )
    return rows.unsqueeze(1)


def check_public(views: Sequence[View]) -> None:
    """Refuse mixed rows whose weights are hidden.

    Raises:
        NotApplicable: it says so.
    """
    if any(view.weights is None for view in views):
        raise NotApplicable(
            f"each released row holds {views[0].mixed} images with hidden weights: its members can only be told apart "
            "where the coins of mixing are public"
        )


def by_place(passes: Sequence[Tensor], batch: int) -> Tensor:
    """Rows of several passes [M·B, ...], sorted by their place in the batch, [B·E, ...].

    >>> by_place([torch.tensor([0, 1, 10, 11]), torch.tensor([20, 21, 30, 31])], 2).tolist()
    [0, 10, 20, 30, 1, 11, 21, 31]
    """
    return torch.cat([x.unflatten(0, (-1, batch)) for x in passes]).transpose(0, 1).flatten(0, 1)


@dataclass(frozen=True, kw_only=True)
class LinkedRows:
    """Mixed rows of several passes, sorted by the place in the batch of the records that they hold.

    Rows of one place hold the same n records, one of each client, and no record of another place.

    Attributes:
        smashed: [P·E, ...], the E rows of the first of P places, then those of the next.
        weights: [P·E, k, T], as in `View`, 0 on empty seats.
        records: int64 [P·E, k], the record on each seat, client c's at place p being p·n + c. Empty seats have the
            record of the row's first seat.
        clients: n.
    """

    smashed: Tensor
    weights: Tensor
    records: Tensor
    clients: int

    @classmethod
    def of(cls, same: Sequence[View]) -> LinkedRows:
        """Link the rows of the passes of one round.

        Raises:
            NotApplicable: if groups or weights are hidden.
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

    @property
    def mixed(self) -> int:
        """k."""
        return self.records.shape[1]

    @property
    def places(self) -> int:
        """P."""
        return int(self.records.max()) // self.clients + 1

    def parts(self, images: int) -> list[LinkedRows]:
        """The same rows, as many places at a time as hold so many records at most, but one at least."""
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
        """Images [P·n, ...] of all records, as guesses at the seats of one of the views, [N·k, ...]."""
        by_client: Tensor = images.unflatten(0, (-1, self.clients)).transpose(0, 1).flatten(0, 1)
        return by_client[records_of_rows(view).flatten().clamp_min(0)]
