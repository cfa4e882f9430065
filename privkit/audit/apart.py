"""Whether a lower segment keeps the records of a batch apart, which every claim for one record needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privkit.torch_utils.seeded import seeded
from privkit.training import Clients

_TOLD = 1e-5  # change of a number, relative to its range over the batch, from which another record is in it


@torch.no_grad()
def rows_that_meet(edge: Clients, records: Tensor, batch: int) -> int | None:
    """Rows of a batch that change when other records of the batch are replaced.

    Two batches are mixed, once for each binary digit of a row's number: the digit says from which of them a row comes.
    Any two rows differ in a digit, so each row stays while each other one is replaced, in 3 + log₂ B passes. A row is
    compared with the same row of the batch that it came from, each number on the scale of its own range.

    Args:
        edge: the clients, of which the first one's segment is measured in evaluation mode: segments that train on
            raw data have no claim for one record, and private training evaluates records one by one.
        records: some records, [N, ...]; a larger batch repeats them.
        batch: B, the records of a message.

    Returns:
        Their number, at most B; None if there are fewer than two different records, so that nothing can be told.
    """
    if batch == 1:
        return 0
    rows = torch.arange(batch, device=records.device)
    if not len(records):
        return None
    one, other = records[rows % len(records)], records[(rows + 1) % len(records)]
    if torch.equal(one, other):
        return None
    lower = edge.lowers.copy(0).eval()
    made, again, others = (_made(lower, x) for x in (one, one, other))
    both = torch.cat([made, others])
    limit = _TOLD * (both.amax(0) - both.amin(0)) + 2 * (made - again).abs().amax(0)
    met = torch.zeros(batch, dtype=torch.bool, device=records.device)
    for digit in range((batch - 1).bit_length()):
        replaced = (rows >> digit) % 2 == 1
        mixed = _made(lower, torch.where(_over(replaced, one), other, one))
        expected = torch.where(_over(replaced, made), others, made)
        met |= ~((mixed - expected).abs() <= limit).flatten(1).all(1)  # a NaN is no small change
    return int(met.sum())


def _made(lower: nn.Module, records: Tensor) -> Tensor:
    """The segment's output, with the same draws for every batch."""
    with seeded(records.device, 0):
        made: Tensor = lower(records)
    return made.double()


def _over(chosen: Tensor, values: Tensor) -> Tensor:
    return chosen.view(-1, *(1 for _ in values.shape[1:]))
