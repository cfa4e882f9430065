"""Membership intersection: a token that keeps coming back in one row of a batch shuffle belongs to that row's image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.assign import by_capacity
from privkit.attacks.base import NotApplicable
from privkit.attacks.inversion.recurrence import copy_distance, tracked

INTERSECTED_TOKENS = 10_240
"""Of a message: a table of all its pairs then takes 400 MiB, and two or three are held at a time."""


@dataclass(frozen=True, kw_only=True)
class Intersection:
    """Each image's own tokens, as far as the passes tell.

    Attributes:
        tokens: [M·B, T, D], averaged over the passes; their order within a row is the first pass's and says nothing.
        support: [M·B, T], the share of passes, in [0, 1], in which the token's copy lay in this row.
        taken: int64 [M·B, T], which token of the first pass each one is, counted through its message (row·T + place).
    """

    tokens: Tensor
    support: Tensor
    taken: Tensor

    def released(self, source: Tensor, messages: int) -> Tensor:
        """What is known of these tokens, [M·B, T], as known of the first pass's tokens where they were released."""
        known, taken = (x.reshape(messages, -1) for x in (source, self.taken.to(source.device)))
        return torch.zeros_like(known).scatter(1, taken, known).view_as(source)


def gathered(passes: Sequence[Tensor], size: int) -> Intersection:
    """`intersected` for the tokens of several passes, each [N, T, D] in messages of some rows.

    Args:
        passes: two or more of the same images.
        size: B, rows a message.

    Raises:
        NotApplicable: if messages are too large.
    """
    tokens = size * passes[0].shape[1]
    if tokens > INTERSECTED_TOKENS:
        raise NotApplicable(
            f"intersect compares all pairs of a message's tokens, of which there may be {INTERSECTED_TOKENS:,}, "
            f"but a message has {tokens:,}: take smaller messages, or one pass"
        )
    messages = torch.stack([x.reshape(-1, tokens, x.shape[2]) for x in passes])
    return intersected(messages, size, copy_distance(messages[0], messages[1]))


def intersected(passes: Tensor, rows: int, copies: float) -> Intersection:
    """Assign a message's tokens to its rows by how often they came back there; every row gets T.

    Each pass deals a token to its own row with probability k′ + (1 − k′)/B and to each other one with (1 − k′)/B, so
    that the row which it visits most is its own, the more surely the more passes there are. Tokens that look alike
    share their visits; rows take what is surely theirs first, and the alike fill what is left.

    Args:
        passes: [R, M, B·T, D], messages of the same images in every pass.
        rows: B.
        copies: squared distance of a token's copies, from `recurrence.copy_distance`.

    Source: the intersection attack on mixes (Berthold, Pfitzmann and Standtke 2001), with soft matches for noise; the
    law of visits is Yao et al., patch shuffling, Algorithm 2.

    >>> own = torch.tensor([1.0, 2.0, 8.0, 9.0]).view(1, 4, 1)
    >>> mixed = own[:, [0, 2, 1, 3]]
    >>> intersected(torch.stack([mixed, own, own]), 2, 0.01).tokens.flatten(1).sort(1).values.tolist()
    [[1.0, 2.0], [8.0, 9.0]]
    """
    return most_visited(*tracked(passes, copies, rows))


def most_visited(tokens: Tensor, visits: Tensor) -> Intersection:
    """The assignment of `intersected`, from how often each row was visited.

    Args:
        tokens: [M, B·T, D].
        visits: [M, B·T, B], shares of passes.
    """
    m, n, rows = visits.shape
    d = tokens.shape[2]
    taken = torch.stack([by_capacity(message, n // rows) for message in visits])  # [M, B, T]
    support = visits.transpose(1, 2).gather(2, taken)
    tokens = tokens.gather(1, taken.flatten(1).unsqueeze(2).expand(-1, -1, d))
    return Intersection(
        tokens=tokens.view(m * rows, n // rows, d), support=support.flatten(0, 1), taken=taken.flatten(0, 1)
    )
