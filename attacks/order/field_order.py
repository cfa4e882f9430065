"""Restores the order of a table row's shuffled fields: tokens of one column resemble each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import hungarian, take
from privkit.attacks.base import Mounting, NotApplicable, Query, ReconstructingAttack, Session, View, given
from privkit.attacks.goals.order import Permutation
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_rows
from privkit.attacks.inversion.known_lower import check_release, frozen, quiet
from privkit.attacks.order.token_reading import rows_a_message
from privkit.constraints import Count

_COMPARED = 500  # largest number of own records whose tokens `in_columns` uses
_CHANGES = 4  # number of other values tried for each entry, since a single other value can be equal or close


@dataclass(frozen=True, kw_only=True)
class FieldOrder(ReconstructingAttack):
    """Restore the order of a table row's shuffled fields, by comparison with the adversary's tokens of each column.

    A token is the released vector of one field (one entry of the row). Each column gets one released token, such that
    the total distance to the adversary's tokens of this column is smallest. Then every entry is copied from the
    adversary's record with the nearest token in this column. The attack needs no training.

    Attributes:
        by: representation of a column: "mean", the mean of the adversary's tokens in it, or "token", the nearest of
            these tokens.
        source: how the adversary gets the tokens of its records: "lower", from the lower segment (the clients' part of
            the network) itself; or "query", by sending chosen records through the defended clients: 4·C + 1 queries for
            each record of C columns.
        records: largest number ≥ 1 of the adversary's records to use.

    Source: privkit's own; a nearest-mean classifier (Fix and Hodges 1951), with the assignment of Kuhn 1955.

    >>> from privkit.attacks.base import View
    >>> own = torch.tensor([[0.1, 5.0], [0.2, 6.0]])
    >>> cells = lambda rows: torch.stack([rows, rows.square()], 2)
    >>> lower = type("Lower", (torch.nn.Module,), {"forward": lambda self, rows: cells(rows)})()
    >>> view = View(round=0, smashed=cells(torch.tensor([[0.2, 5.0]])).flip(1))
    >>> seen = ImageObservation(views=[view], image_shape=(2,), batch_size=1, auxiliary=own, lower=lower)
    >>> found = FieldOrder().run(seen, Generator())
    >>> found.permutation.source.tolist(), found.images
    ([[1, 0]], tensor([[0.2000, 5.0000]]))
    """

    name: ClassVar[str] = "field_order"
    mounting: ClassVar[ImageMounting] = Mounting(
        domains=("tables",), returns_auxiliary=True, undoes=frozenset({"permutes"})
    )

    by: Literal["mean", "token"] = "token"
    source: Literal["lower", "query"] = "lower"
    records: Count = 2_000

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"auxiliary", self.source})

    @torch.no_grad()
    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        views = observation.views
        check_rows(self, observation)
        device = views[0].smashed.device
        own = given(observation.auxiliary)[: self.records].to(device)
        _must_have_fields(views[0], own.shape[1])
        if self.source == "query":
            draws = Generator(device).manual_seed(int(torch.randint(2**48, (1,), generator=generator)))
            tokens = asked_fields(own, given(observation.query), observation.batch_size, draws)
        else:
            lower = frozen(given(observation.lower), device)
            check_release(lower, views[0], observation.image_shape)
            lower = quiet(lower, own[: observation.batch_size])
            tokens = torch.cat([lower(part) for part in own.split(observation.batch_size)]).float()
        rows, sources = [], []
        for view in views:
            token, cells = _tokens_of_columns(view.smashed.float(), tokens, own, self.by)
            message = torch.arange(len(token), device=device) % rows_a_message(view)
            rows.append(cells)
            sources.append(message.unsqueeze(1) * own.shape[1] + token.argsort(1))
        return Reconstruction(images=torch.cat(rows), permutation=Permutation(source=torch.cat(sources)))


def in_columns(observation: ImageObservation, generator: Generator) -> ImageObservation:
    """Sort the tokens of each table row by column, in the observation's views and in answers to queries.

    Raises `NotApplicable` if a release has no token for each column.
    """
    first = observation.views[0]
    own = given(observation.auxiliary)[:_COMPARED].to(first.smashed.device)
    _must_have_fields(first, own.shape[1])
    draws = Generator(own.device).manual_seed(int(torch.randint(2**48, (1,), generator=generator)))
    tokens = asked_fields(own, given(observation.query), observation.batch_size, draws)

    def ordered(view: View) -> View:
        smashed = view.smashed.float()
        return replace(view, smashed=take(smashed, _tokens_of_columns(smashed, tokens, own, "token")[0]))

    return observation.seen_through(ordered)


def _must_have_fields(view: View, columns: int) -> None:
    shape = list(view.smashed.shape[1:])  # a vector's width differs in control experiments
    if len(shape) != 2 or shape[0] != columns:
        raise NotApplicable(
            f"fields are ordered by a token for each of the {columns} columns, but a row's release is "
            f"{shape if len(shape) > 1 else 'one vector'}: use a model such as difm, whose tokens are fields"
        )


def _tokens_of_columns(released: Tensor, tokens: Tensor, own: Tensor, by: str) -> tuple[Tensor, Tensor]:
    """Find the token of each column in released rows [N, C, D]: its index in the row, int64 [N, C].

    `tokens` [M, C, D] belong to the adversary's records `own` [M, C], in the order of columns. The assignment has the
    smallest sum of squared distances to the column's nearest token, or with `by="mean"` to the mean of its tokens. Also
    returns, for each column, the entry of the adversary's record with the nearest token, [N, C].
    """
    n, columns, _ = released.shape
    costs = released.new_empty(n, columns, columns)
    nearest = torch.empty(n, columns, columns, dtype=torch.int64, device=released.device)
    for column in range(columns):  # one column's tokens at a time: all pairs of tokens would not fit in memory
        apart, record = torch.cdist(released.flatten(0, 1), tokens[:, column]).min(1)
        if by == "mean":
            apart = (released.flatten(0, 1) - tokens[:, column].mean(0)).norm(dim=1)
        costs[:, :, column], nearest[:, :, column] = apart.view(n, -1).square(), record.view(n, -1)
    token = hungarian(costs)
    found = nearest.gather(1, token.unsqueeze(1)).squeeze(1)
    return token, own.gather(0, found)


def asked_fields(own: Tensor, query: Query, batch: int, draws: Generator) -> Tensor:
    """Find which token encodes which column, by queries with the adversary's M records [M, C].

    Each record is sent again with another value in one column, for each column in turn; the token that disappears from
    its release encodes this column. If a model mixes columns, other tokens also change, but less, so the assignment of
    tokens to columns with the largest total change is taken. Returns the tokens in the order of columns, [M, C, D].
    """
    records, columns = own.shape
    tokens = _tokens_of_rows(own, query, batch, draws)
    moves = tokens.new_zeros(records, columns, columns)  # how far a token moves if the entry of a column changes
    for column in range(columns):
        for shift in range(1, _CHANGES + 1):
            changed = own.clone()
            changed[:, column] = own[:, column].roll(shift)
            gone = torch.cdist(tokens, _tokens_of_rows(changed, query, batch, draws)).amin(2)
            moves[:, :, column] += gone / gone.sum(1, keepdim=True).clamp_min(1e-12)
    return take(tokens, hungarian(-moves))


def _tokens_of_rows(rows: Tensor, query: Query, batch: int, draws: Generator) -> Tensor:
    """Query the tokens [N, C, D] of table rows [N, C]; repeated first rows fill up the last query."""
    whole = rows[torch.arange(len(rows) + -len(rows) % batch, device=rows.device) % len(rows)]
    released = []
    for part in whole.split(batch):
        answer = query(part, draws)
        smashed = answer.view.smashed.float()
        if smashed.ndim != 3 or smashed.shape[:2] != part.shape:
            raise NotApplicable(
                f"field_order needs a query that answers with {part.shape[1]} tokens for each record; use the lower "
                f"segment (source=lower), or attack a defense that mixes no records"
            )
        released.append(smashed[answer.row_of_each(len(part), "field_order")])
    return torch.cat(released)[: len(rows)]
