"""Which released token came from which place? Costs of every pair, and the assignments that are cheapest."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SINKHORN_ITERATIONS = 30
SHRINKAGE = 0.1  # share of the pooled covariance in each place's own: a corner that is always black has none
PLACE_CHANNELS = 32  # principal channels that the Gaussians of places are fitted in


def pair_costs(released: Tensor, expected: Tensor) -> Tensor:
    """Squared distance of every released token to every place's expected token, over its mean in the group.

    Args:
        released: [G, S, D].
        expected: [G, S, D], what the current guess would release from each place.

    Returns:
        [G, S, S], entry (t, s) for released token t and place s, with mean 1 in each group.

    >>> tokens = torch.tensor([[[0.0], [2.0]]])
    >>> pair_costs(tokens, tokens)
    tensor([[[0., 2.],
             [2., 0.]]])
    """
    costs = torch.cdist(released, expected).square()
    return costs / costs.mean((1, 2), keepdim=True).clamp_min(torch.finfo(costs.dtype).tiny)


def place_costs(released: Tensor, examples: Tensor) -> Tensor:
    """How unlikely each released token is at each place, by one Gaussian a place, fitted to the adversary's images.

    Args:
        released: [N, T, D].
        examples: [M, T, D] with M ≥ 2, tokens in order, of the adversary's own images.

    Returns:
        [N, T, T], negative log-likelihood in nats of token t at place s, up to a constant for each token.

    Source: quadratic discriminant analysis with regularised covariances, Friedman 1989.

    >>> examples = torch.stack([torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [6.0]])])
    >>> place_costs(torch.tensor([[[5.5], [0.5]]]), examples)[0].argmin(1).tolist()
    [1, 0]
    """
    flat = examples.flatten(0, 1)
    mean = flat.mean(0)
    centred = flat - mean
    variances, axes = torch.linalg.eigh(centred.T @ centred / len(flat))
    kept = min(PLACE_CHANNELS, examples.shape[2])
    axes = axes[:, -kept:] / variances[-kept:].clamp_min(1e-6 * variances[-1]).sqrt()
    known, seen = (examples - mean) @ axes, (released - mean) @ axes
    means = known.mean(0)
    away = known - means
    own = torch.einsum("mtd,mte->tde", away, away) / len(known)
    pooled = own.mean(0, keepdim=True) + 1e-3 * torch.eye(kept, device=own.device, dtype=own.dtype)
    factors = torch.linalg.cholesky((1 - SHRINKAGE) * own + SHRINKAGE * pooled)
    gaps = (seen.flatten(0, 1).unsqueeze(0) - means.unsqueeze(1)).transpose(1, 2)
    squared = torch.linalg.solve_triangular(factors, gaps, upper=False).square().sum(1)
    costs = squared / 2 + factors.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
    return costs.T.view(released.shape[0], released.shape[1], -1)


def sinkhorn(costs: Tensor, temperature: float, iterations: int = SINKHORN_ITERATIONS) -> Tensor:
    """The doubly stochastic relaxation of the cheapest assignment.

    Args:
        costs: [G, S, S].
        temperature: > 0, in the costs' unit; towards 0 the plan is the assignment.
        iterations: pairs of normalisations.

    Returns:
        [G, S, S]; columns (places) sum to 1, rows nearly so.

    Source: Sinkhorn 1964; Cuturi 2013, in the log domain.

    >>> sinkhorn(torch.tensor([[[0.0, 2.0], [2.0, 0.0]]]), 0.1).round(decimals=3)
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    plan = -costs / temperature
    for _ in range(iterations):
        plan = plan - plan.logsumexp(2, keepdim=True)
        plan = plan - plan.logsumexp(1, keepdim=True)
    return plan.exp()


def hungarian(costs: Tensor) -> Tensor:
    """The cheapest assignment.

    Args:
        costs: [G, S, S].

    Returns:
        int64 [G, S]: the released token on each place.

    >>> hungarian(torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])).tolist()
    [[1, 0]]
    """
    from scipy.optimize import linear_sum_assignment

    # one exact solve a group, once in many steps: batched auction solvers were not needed
    tables = costs.detach().double().cpu().numpy().transpose(0, 2, 1)
    found = np.stack([linear_sum_assignment(table)[1] for table in tables])
    return torch.from_numpy(found).to(costs.device)


def take(released: Tensor, order: Tensor) -> Tensor:
    """Tokens on their places: [G, S, D] by `hungarian`'s order.

    >>> take(torch.tensor([[[7.0], [8.0]]]), torch.tensor([[1, 0]])).tolist()
    [[[8.0], [7.0]]]
    """
    return released.gather(1, order.unsqueeze(2).expand_as(released))
