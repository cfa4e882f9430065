"""Which released token came from which place? Costs of every pair, and the assignments that are cheapest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SINKHORN_ITERATIONS = 30
SHRINKAGE = 0.1  # share of the pooled covariance in each place's own: a corner that is always black has none
PLACE_CHANNELS = 32  # principal channels that the Gaussians of places are fitted in
NUMBERS_AT_ONCE = 2**24  # 64 MiB in float32; bounds memory, changes nothing


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
    return PlaceModel.fit(examples).costs(released)


@dataclass(frozen=True, kw_only=True)
class PlaceModel:
    """One Gaussian a place, in the principal channels of all places.

    Attributes:
        mean: [D], of all tokens.
        axes: [D, d], to channels of unit variance.
        means: [T, d].
        factors: [T, d, d], Cholesky factors of the covariances.
    """

    mean: Tensor
    axes: Tensor
    means: Tensor
    factors: Tensor

    @classmethod
    def fit(cls, examples: Tensor) -> PlaceModel:
        """From tokens [M, T, D] in order, some at a time: there may be millions."""
        m, t, d = examples.shape
        parts = examples.split(max(1, NUMBERS_AT_ONCE // (t * d)))
        mean = torch.stack([part.sum((0, 1)) for part in parts]).sum(0) / (m * t)
        gram = examples.new_zeros(d, d)
        for part in parts:
            away = (part - mean).flatten(0, 1)
            gram += away.T @ away
        variances, axes = torch.linalg.eigh(gram / (m * t))
        kept = min(PLACE_CHANNELS, d)
        axes = axes[:, -kept:] / variances[-kept:].clamp_min(1e-6 * variances[-1]).sqrt()
        known = torch.cat([(part - mean) @ axes for part in parts])
        means = known.mean(0)
        known -= means
        own = (known.permute(1, 2, 0) @ known.transpose(0, 1)) / m
        pooled = own.mean(0, keepdim=True) + 1e-3 * torch.eye(kept, device=own.device, dtype=own.dtype)
        factors = torch.linalg.cholesky((1 - SHRINKAGE) * own + SHRINKAGE * pooled)
        return cls(mean=mean, axes=axes, means=means, factors=factors)

    def costs(self, released: Tensor) -> Tensor:
        """Of released tokens [N, T, D] at each place, [N, T, T]; see `place_costs`."""
        places, kept = self.means.shape
        found = []
        for part in released.flatten(0, 1).split(max(1, NUMBERS_AT_ONCE // (places * kept))):
            gaps = ((part - self.mean) @ self.axes - self.means.unsqueeze(1)).transpose(1, 2)
            squared = torch.linalg.solve_triangular(self.factors, gaps, upper=False).square().sum(1)
            found.append((squared / 2 + self.factors.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)).T)
        return torch.cat(found).view(released.shape[0], released.shape[1], -1)


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
