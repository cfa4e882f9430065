"""Where does a released token lie? One Gaussian for each place, fitted to the adversary's own tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SHRINKAGE = 0.1  # share of the pooled covariance in each place's own: a corner that is always black has none
_PLACE_CHANNELS = 32  # principal channels that the Gaussians of places are fitted in
NUMBERS_AT_ONCE = 2**24  # 64 MiB in float32; bounds memory, changes nothing


@dataclass(frozen=True, kw_only=True)
class PlaceModel:
    """One Gaussian a place, in the principal channels of all places.

    Attributes:
        mean: [D], of all tokens.
        axes: [D, d], to channels of unit variance.
        means: [T, d].
        factors: [T, d, d], Cholesky factors of the covariances.

    Source: quadratic discriminant analysis with regularised covariances, Friedman 1989.

    >>> examples = torch.stack([torch.tensor([[0.0], [5.0]]), torch.tensor([[1.0], [6.0]])])
    >>> PlaceModel.fit(examples).costs(torch.tensor([[[5.5], [0.5]]]))[0].argmin(1).tolist()
    [1, 0]
    """

    mean: Tensor
    axes: Tensor
    means: Tensor
    factors: Tensor

    @classmethod
    def fit(cls, examples: Tensor) -> PlaceModel:
        """From tokens [M, T, D] in order, M ≥ 2, some at a time: there may be millions."""
        m, t, d = examples.shape
        parts = examples.split(max(1, NUMBERS_AT_ONCE // (t * d)))
        mean = torch.stack([part.sum((0, 1)) for part in parts]).sum(0) / (m * t)
        gram = examples.new_zeros(d, d)
        for part in parts:
            away = (part - mean).flatten(0, 1)
            gram += away.T @ away
        variances, axes = torch.linalg.eigh(gram / (m * t))
        kept = min(_PLACE_CHANNELS, d)
        axes = axes[:, -kept:] / variances[-kept:].clamp_min(1e-6 * variances[-1]).sqrt()
        known = torch.cat([(part - mean) @ axes for part in parts])
        means = known.mean(0)
        known -= means
        own = (known.permute(1, 2, 0) @ known.transpose(0, 1)) / m
        pooled = own.mean(0, keepdim=True) + 1e-3 * torch.eye(kept, device=own.device, dtype=own.dtype)
        factors = torch.linalg.cholesky((1 - _SHRINKAGE) * own + _SHRINKAGE * pooled)
        return cls(mean=mean, axes=axes, means=means, factors=factors)

    def costs(self, released: Tensor) -> Tensor:
        """Released tokens [N, T, D] -> negative log-likelihoods in nats, up to a constant a token, [N, T, T]."""
        places, kept = self.means.shape
        costs = []
        for part in released.flatten(0, 1).split(max(1, NUMBERS_AT_ONCE // (places * kept))):
            gaps = ((part - self.mean) @ self.axes - self.means.unsqueeze(1)).transpose(1, 2)
            squared = torch.linalg.solve_triangular(self.factors, gaps, upper=False).square().sum(1)
            costs.append((squared / 2 + self.factors.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)).T)
        return torch.cat(costs).view(released.shape[0], released.shape[1], -1)
