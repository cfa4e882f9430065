"""The tokens of the adversary's own table rows, by column, from queries alone: change a cell, and see which moves."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from privkit.attacks.assign import hungarian, take
from privkit.attacks.base import NotApplicable, Query

_CHANGES = 4
"""Other values of each cell that are tried: one alone may be the same, or lie close."""


def asked_fields(own: Tensor, query: Query, batch: int, draws: Generator) -> Tensor:
    """Ask for each own record again with one cell changed: the token that has gone from its release is that cell's.

    Other tokens move, too, where a model mixes fields, but less; each column gets one token of a record, at the largest
    total move.

    Args:
        own: records [M, C].
        query: the defended edge; it may give the fields of a record back in any order.
        batch: records a query takes.
        draws: of the query's defense.

    Returns:
        Tokens [M, C, D], those of column c at place c.

    Raises:
        NotApplicable: if a query does not answer with C tokens for each record.

    Source: privkit's own.

    >>> from privkit.attacks.base import QueryResult, View
    >>> def query(rows, draws):
    ...     cells = torch.stack([rows, rows + torch.arange(3.0) * 10], 2)
    ...     order = torch.rand(len(rows), 3, generator=draws).argsort(1)
    ...     smashed = cells.gather(1, order.unsqueeze(2).expand(-1, -1, 2))
    ...     return QueryResult(view=View(round=0, smashed=smashed), members=torch.arange(len(rows)).unsqueeze(1))
    >>> found = asked_fields(torch.rand(4, 3), query, 4, Generator().manual_seed(0))
    >>> (found[:, :, 1] / 10).floor().unique(dim=0)
    tensor([[0., 1., 2.]])
    """
    records, columns = own.shape
    tokens = _tokens_of_rows(own, query, batch, draws)
    moves = tokens.new_zeros(records, columns, columns)  # of a token, if a column's cell changes
    for column in range(columns):
        for shift in range(1, _CHANGES + 1):
            changed = own.clone()
            changed[:, column] = own[:, column].roll(shift)
            gone = torch.cdist(tokens, _tokens_of_rows(changed, query, batch, draws)).amin(2)
            moves[:, :, column] += gone / gone.sum(1, keepdim=True).clamp_min(1e-12)
    return take(tokens, hungarian(-moves))


def _tokens_of_rows(rows: Tensor, query: Query, batch: int, draws: Generator) -> Tensor:
    """Tokens [N, C, D] that come back for rows [N, C], row by row; the last query is filled up with the first rows."""
    whole = rows[torch.arange(len(rows) + -len(rows) % batch, device=rows.device) % len(rows)]
    released = None
    for number, part in enumerate(whole.split(batch)):
        answer = query(part, draws)
        smashed, members = answer.view.smashed.float(), answer.members.flatten()
        if (
            smashed.ndim != 3
            or smashed.shape[:2] != part.shape
            or not torch.equal(members.sort().values.cpu(), torch.arange(len(part)))
        ):
            raise NotApplicable(
                f"field_order needs a query that answers with {part.shape[1]} tokens for each record; hold the lower "
                "segment (source=lower), or attack a defense that mixes no records"
            )
        released = smashed.new_empty(len(whole), *smashed.shape[1:]) if released is None else released
        released[number * batch + members] = smashed
    assert released is not None
    return released[: len(rows)]
