"""Assign tokens to places or images: softly (Sinkhorn's iteration), at the least total cost, or T tokens per image."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SLACK_STEPS = 3


def distances(tokens: Tensor, targets: Tensor) -> Tensor:
    """Squared distances [..., n, m] of vectors [..., n, d] and [..., m, d], computed by matrix products in float32."""
    with torch.autocast(tokens.device.type, enabled=False):  # differences of large numbers need float32
        tokens, targets = tokens.float(), targets.float()
        ones, others = tokens.square().sum(-1).unsqueeze(-1), targets.square().sum(-1).unsqueeze(-2)
        table = tokens @ targets.transpose(-1, -2)  # changed in place from here on: n and m can be 10,000
        return table.mul_(-2).add_(ones).add_(others).clamp_(min=0)


def pair_costs(released: Tensor, expected: Tensor) -> Tensor:
    """Compute the cost of putting token t at place s in each of G groups, [G, S, S]: squared distances of `released`
    and `expected`, both [G, S, D], divided by their mean in the group."""
    costs = torch.cdist(released, expected).square()
    return costs / costs.mean((1, 2), keepdim=True).clamp_min(torch.finfo(costs.dtype).tiny)


def sinkhorn(scores: Tensor, steps: int, capacity: int = 1) -> Tensor:
    """Rescale exp(`scores`), [..., n, m], to nearly doubly stochastic matrices, and return their logarithms.

    `scores` are negative costs divided by a temperature; as the temperature falls to 0, the result tends to the
    cheapest assignment. In the end columns sum to exactly one, and rows to about `capacity` = m/n.

    Source: Sinkhorn and Knopp 1967; Cuturi 2013, in the log domain; in networks: Mena et al. 2018, §2.

    >>> (100 * sinkhorn(torch.tensor([[9.0, 0.0], [9.0, 9.0]]), 50).exp()).round()
    tensor([[99.,  1.],
            [ 1., 99.]])
    """
    shift = None if capacity == 1 else torch.tensor(float(capacity)).log().to(scores.device)
    for _ in range(steps):
        scores = scores - scores.logsumexp(-1, keepdim=True)
        if shift is not None:
            scores = scores + shift
        scores = scores - scores.logsumexp(-2, keepdim=True)
    return scores


def rescale_(weights: Tensor, steps: int) -> Tensor:
    """Rescale weights [..., n, n] ≥ 0 in place until they are nearly doubly stochastic; rows then sum to exactly one.

    This is `sinkhorn` without logarithms, for very large matrices. Each row needs a weight that does not underflow.
    """
    for _ in range(steps):
        weights /= weights.sum(-2, keepdim=True).clamp_min(1e-12)
        weights /= weights.sum(-1, keepdim=True).clamp_min(1e-12)
    return weights


def sinkhorn_with_slack(odds: Tensor) -> Tensor:
    """Probabilities of matches between L slots and T tokens, [N, L, T], if slots and tokens can also stay unmatched.

    `odds` are the log-odds of each match against no match; L may be 0. One minus a row's or column's sum is its
    probability of having no match.

    Source: matching with slack as in SuperGlue (Sarlin et al. 2020), with slack of weight one.

    >>> sinkhorn_with_slack(torch.tensor([[[9.0, -9.0], [-9.0, -9.0]]])).round()
    tensor([[[1., 0.],
             [0., 0.]]])
    """
    n, slots, t = odds.shape
    if not slots:
        return odds
    none = odds.new_zeros(n, 1)
    columns = -odds.amax(1).clamp_min(0) / 2  # the solution for a single candidate; a start at zero takes many steps
    rows = odds.new_zeros(n, slots)
    for _ in range(_SLACK_STEPS):
        rows = -torch.cat([odds + columns.unsqueeze(1), none.unsqueeze(1).expand(-1, slots, 1)], 2).logsumexp(2)
        columns = -torch.cat([odds + rows.unsqueeze(2), none.unsqueeze(1).expand(-1, 1, t)], 1).logsumexp(1)
    return (odds + rows.unsqueeze(2) + columns.unsqueeze(1)).exp()


def cheapest(costs: NDArray[np.floating]) -> NDArray[np.int64]:
    """The column that the cheapest assignment gives to each row: int64 [G, n] for G cost matrices [G, n, m], n ≤ m.

    Source: Kuhn 1955, computed by scipy's `linear_sum_assignment`.
    """
    from scipy.optimize import linear_sum_assignment  # imported here, since most attacks need no assignment

    # Exact, group by group: attacks call this once in many steps, so a faster approximate solver was not needed.
    return np.stack([linear_sum_assignment(table)[1] for table in costs]).astype(np.int64)


def hungarian(costs: Tensor) -> Tensor:
    """The token at each place in the cheapest assignment, int64 [G, S]; costs[g, t, s] is for token t at place s."""
    tables = costs.detach().double().cpu().numpy().transpose(0, 2, 1)
    return torch.from_numpy(cheapest(tables)).to(costs.device)


def cheapest_in_order(costs: Tensor) -> Tensor:
    """The cheapest places for L tokens whose order is kept: int64 [N, L], ascending, from costs [N, L, T ≥ L].

    Source: dynamic programming over places (Bellman 1957), like Viterbi's path.
    """
    length = costs.shape[1]
    total, came = costs[:, 0], []
    for step in range(1, length):
        least, at = total.cummin(1)
        total = torch.full_like(total, torch.inf)
        total[:, 1:] = costs[:, step, 1:] + least[:, :-1]
        came.append(at)
    last = total[:, length - 1 :].argmin(1) + length - 1
    chosen = [last]
    for at in reversed(came):
        chosen.append(at.gather(1, chosen[-1].unsqueeze(1) - 1).squeeze(1))
    return torch.stack(chosen[::-1], 1)


def take(released: Tensor, order: Tensor) -> Tensor:
    """The tokens of each group at given indices: [G, n, D] from `released` [G, S, D] and `order` int64 [G, n]."""
    return released.gather(1, order.unsqueeze(2).expand(-1, -1, released.shape[2]))


def by_capacity(logits: Tensor, capacity: int) -> Tensor:
    """Assign T = `capacity` of B·T tokens to each of B images: token indices, int64 [B, T], ascending in each row.
    Tokens propose to images, and an image keeps its best T.

    `logits` [B·T, B] are the preferences of tokens for images; images prefer tokens by the same numbers.

    Source: deferred acceptance (Gale and Shapley 1962); all tokens propose at once.
    """
    k, b = logits.shape
    wish = logits.argsort(dim=1, descending=True, stable=True)
    asked = torch.zeros(k, dtype=torch.int64, device=logits.device)
    while True:
        image = wish.gather(1, asked.unsqueeze(1)).squeeze(1)
        liking = logits.gather(1, image.unsqueeze(1)).squeeze(1)
        order = (-liking).argsort(stable=True)
        order = order[image[order].argsort(stable=True)]  # sorted by image; an image's best tokens come first
        count = torch.bincount(image, minlength=b)
        first = (count.cumsum(0) - count)[image[order]]
        refused = order[torch.arange(k, device=logits.device) - first >= capacity]
        if not len(refused):
            return image.argsort(stable=True).view(b, capacity)
        asked[refused] += 1
