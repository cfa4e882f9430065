"""Recurring tokens: find the copies of a token in several passes of the same images, and the image they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privkit.attacks.assign import by_capacity, distances, rescale_, sinkhorn_with_slack, take
from privkit.attacks.base import NotApplicable

_EXACT = 1e-4  # least distance of copies, as a share of the mean squared distance: float32 is not more exact
_RESCALINGS = 3
_LEAST_ODDS = -60.0
PAIRS_AT_ONCE = 2**24  # most pairs of tokens that are compared at once; further groups follow
_IN_PLACE_ERRORS = 4.0  # standard errors by which tokens in the same place must be nearer than other tokens of a row
_SAME = 1.5  # largest ratio of the copy distances estimated from rows and from messages, if rows keep their tokens
_STRANGE = 4.0  # standard deviations beyond a copy's mean distance from which a token counts as new
INTERSECTED_TOKENS = 10_240
"""Most tokens of a message: a table of all its pairs then takes 400 MiB, and memory holds two or three such tables."""


def copy_distance(first: Tensor, second: Tensor) -> float:
    """Mean squared distance > 0 between two copies of a token: 2·σ²·D for D numbers with noise of variance σ².

    Both arguments, [G, n, D], hold the same n tokens in each of G groups, in any order. The squared distance between
    the two means of a group is 1/n of the distance of copies, for any order. So no matching is needed; matching would
    underestimate the distance under strong noise. The result is at least 1e-4 of all tokens' mean squared distance.
    """
    every = torch.cat([first, second]).flatten(0, 1)
    apart = 2 * float(every.var(0, correction=0).sum())
    moved = float((first.mean(1) - second.mean(1)).square().sum(1).mean())
    return max(first.shape[1] * moved, _EXACT * apart, torch.finfo(every.dtype).tiny)


def keeps_places(first: Tensor, second: Tensor) -> bool:
    """Whether tokens keep their positions: at equal positions, two releases [N, T, D] of the same images agree best."""
    if first.shape[1] < 2:
        return True
    costs = distances(first, second)
    in_place = costs.diagonal(dim1=1, dim2=2)
    elsewhere = (costs.sum(2) - in_place) / (costs.shape[2] - 1)
    nearer = (elsewhere - in_place).mean(1)
    return bool(nearer.mean() > _IN_PLACE_ERRORS * nearer.std() / len(nearer) ** 0.5)


def keeps_rows(first: Tensor, second: Tensor, copies: float) -> bool:
    """Whether two releases [N, T, D] of the same images hold the same tokens in each row, in any order.

    If they do, a row's mean has only 1/T of a token's noise variance. `copies` is the `copy_distance`.
    """
    return copy_distance(first, second) < _SAME * copies


def meetings(reference: Tensor, seen: Tensor, temperature: float) -> Tensor:
    """Compute the probability that `seen` token j is the copy of `reference` token i, [G, n, n]; both are [G, n, D].

    G groups hold n tokens each. Rows and columns of the result sum to about 1, and equal tokens share equally.
    `temperature` is twice the variance between copies in a channel.
    """
    plan = distances(reference, seen)
    # every row has a 1, so no logarithms are needed; the limit keeps exponentials from underflow, which is slow
    plan = plan.sub_(plan.amin(2, keepdim=True)).div_(-temperature).clamp_min_(_LEAST_ODDS).exp_()
    return rescale_(plan, _RESCALINGS)


def tracked(passes: Tensor, copies: float, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Average each token of the first pass with its copies in the other passes of the same images.

    `passes` [R, G, n, D] hold the same n tokens in each of G groups, in any order; `copies` is the `copy_distance`.
    Tokens are matched once: matching again with the averaged tokens as reference gave less sharp averages.

    Returns mean tokens [G, n, D], and the share of passes in which each token was in each block, [G, n, rows]: a
    group's places form `rows` equal blocks, one for each released image; None makes each place a block.
    """
    means, n = torch.zeros_like(passes[0]), passes.shape[2]
    visits = means.new_zeros(*means.shape[:2], n if rows is None else rows)
    some = max(1, PAIRS_AT_ONCE // n**2)
    for seen in passes:
        for part in torch.arange(len(means), device=means.device).split(some):
            plan = meetings(passes[0, part], seen[part], 2 * copies / passes.shape[3])
            means[part] += plan @ seen[part]
            visits[part] += plan if rows is None else plan.unflatten(2, (rows, -1)).sum(3)
    return means / len(passes), visits / len(passes)


def pooled(passes: Tensor, copies: float) -> tuple[Tensor, Tensor]:
    """Find for each image the T tokens that recur most often in its R releases [R, N, T, D], averaged over copies.

    A token joins the image's list if it is no copy of a listed token; it then counts in every pass that holds a copy.
    Batch shuffling moves tokens of other images into a row, but these soon recur less often. `copies` is the
    `copy_distance`.

    Returns tokens [N, T, D] and the share of passes in which each recurs, [N, T], in falling order.

    >>> own, other = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1.0], [7.0]]])
    >>> tokens, recurrence = pooled(torch.stack([other, own, own]).expand(-1, -1, -1, 96), 0.01)
    >>> tokens[:, :, 0].round().tolist(), (100 * recurrence).round().tolist()
    ([[1.0, 2.0]], [[100.0, 67.0]])
    """
    r, n, t, d = passes.shape
    least = copies * (1 + _STRANGE * (2 / d) ** 0.5)
    listed = passes.transpose(0, 1).reshape(n, r * t, d)
    sums, hits = torch.zeros_like(listed), listed.new_zeros(n, r * t)
    for number, seen in enumerate(passes):
        end = number * t  # a slot for every token seen so far; empty if the token was taken for a copy
        means = sums[:, :end] / hits[:, :end, None].clamp_min(1e-12)
        odds = (least - distances(means, seen)) * d / (2 * copies)
        plan = sinkhorn_with_slack(odds.masked_fill(hits[:, :end, None] == 0, -torch.inf))
        sums[:, :end] += plan @ seen
        hits[:, :end] += plan.sum(2)
        new = (plan.sum(1) < 0.5).to(hits.dtype)
        sums[:, end : end + t] = seen * new.unsqueeze(2)
        hits[:, end : end + t] = new
    best = hits.topk(t, dim=1)
    taken = sums.gather(1, best.indices.unsqueeze(2).expand(-1, -1, d))
    return taken / best.values.unsqueeze(2).clamp_min(1e-12), best.values / r


@dataclass(frozen=True, kw_only=True)
class Intersection:
    """The tokens that were assigned to each image, because their copies recur in the same row."""

    # [M·B, T, D], averaged over the passes; the order within a row has no meaning
    tokens: Tensor
    support: Tensor  # [M·B, T], the share of passes, in [0, 1], in which the token's copy lay in this row
    # int64 [M·B, T], the index of each token in its message of the first pass (row·T + place)
    taken: Tensor

    def released(self, source: Tensor, messages: int) -> Tensor:
        """Reorder `source` [M·B, T] from the order of `tokens` to the order in which the first pass released them.

        `source` holds one index for each token."""
        known, taken = (x.reshape(messages, -1) for x in (source, self.taken.to(source.device)))
        return torch.zeros_like(known).scatter(1, taken, known).view_as(source)


def gathered(passes: Sequence[Tensor], size: int) -> Intersection:
    """Assign each token to the image in whose row its copies lie most often, over two or more releases [N, T, D].

    `size` is the number of rows in a message. A message of more than 10,240 tokens raises `NotApplicable`.
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
    """Assign the tokens of each message (`passes` [R, M, B·T, D]) to the rows in which they recur most, T to each row.

    Batch shuffling moves tokens between the B rows of a message (one row for each image), but keeps a share k′ in their
    image's row. In each pass, a token lands in its own row with probability k′ + (1 − k′)/B, and in each other row with
    probability (1 − k′)/B. So it recurs most in its own row, and this becomes more certain with more passes. Equal
    tokens share their counts: rows first take their certain tokens, and then equal tokens fill the remaining places.
    `copies` is the `copy_distance`.

    Source: the intersection attack on mixes (Berthold, Pfitzmann and Standtke 2001), with soft matches for noise; the
    probabilities follow from Yao et al., patch shuffling, Algorithm 2.
    """
    return most_visited(*tracked(passes, copies, rows))


def most_visited(tokens: Tensor, visits: Tensor) -> Intersection:
    """Assign tokens [M, B·T, D] to rows as in `intersected`; `visits` [M, B·T, B] is the share of passes in which a
    token lay in a row."""
    m, n, rows = visits.shape
    taken = torch.stack([by_capacity(message, n // rows) for message in visits])  # [M, B, T]
    support = visits.transpose(1, 2).gather(2, taken)
    own = take(tokens, taken.flatten(1)).view(m * rows, n // rows, -1)
    return Intersection(tokens=own, support=support.flatten(0, 1), taken=taken.flatten(0, 1))
