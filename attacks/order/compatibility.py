"""Edge compatibility: how likely one piece lies right of, or below, another, from their border pixels alone."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

_GREY_LEVEL = 1 / 255
"""Standard deviation of the gradients that a flat border is taken to have: one level of an 8-bit picture."""
_ODDS_FLOOR = -2.0
"""Log-odds below which a pair is not punished further: one impossible pair must not outweigh three good ones."""
SHARPNESS = 1.3
"""Log-odds a unit of log ratio; 1.0 to 1.3 is what a network learned beside it on CIFAR-10's 8-pixel patches."""


def gradient_distance(pieces: Tensor) -> Tensor:
    """Mahalanobis gradient distance ≥ 0 of every pair of pieces, [M, T, T]; entry (m, i, j) is of j right of i.

    The step across the border is held against the mean and covariance of the steps just inside it, over the color
    channels, from both sides. 0 is a perfect fit. Pieces are pixels [M, T, p, p, C] of M pictures, p ≥ 2.

    Source: Gallagher 2012, "Jigsaw puzzles with pieces of unknown orientation", Eqs. 1 to 5, with a prior of one grey
    level on the covariance in place of his dummy gradients.

    >>> ramp = torch.arange(8.0).repeat(4, 1).unfold(1, 4, 4).permute(1, 0, 2).reshape(1, 2, 4, 4, 1) / 255
    >>> gradient_distance(ramp)[0, 0, 1].item() < 1e-6 < gradient_distance(ramp)[0, 1, 0].item()
    True
    """
    return _one_sided(pieces) + _one_sided(pieces.flip(3)).transpose(1, 2)


def _log_ratio(distance: Tensor) -> Tensor:
    """How far a pair beats the best rival of either piece: log of the rival's distance over the pair's, in [−3, 3].

    The diagonal of the distances [M, T, T], T ≥ 3, is ignored and comes back as −3.

    Source: Gallagher 2012, Eq. 6 (division by the second best match), in logarithms.
    """
    diagonal = torch.eye(distance.shape[1], dtype=torch.bool, device=distance.device)
    distance = distance.masked_fill(diagonal, torch.inf)
    rival = torch.minimum(
        distance.topk(2, 2, largest=False).values[:, :, 1:], distance.topk(2, 1, largest=False).values[:, 1:]
    )
    tiny = 1e-3 * distance.flatten(1).median(1).values[:, None, None] + 1e-9  # equal flat pieces fit perfectly
    return ((rival + tiny) / (distance + tiny)).log().clamp(-3, 3).masked_fill(diagonal, -3)


def edge_ratios(pieces: Tensor, chunk: int = 4_000_000) -> Tensor:
    """`_log_ratio` of every pair of pieces [M, T, p, p, C] with p ≥ 2 and T ≥ 3, [M, 2, T, T].

    Entry (m, 0, i, j) is of piece j right of piece i, entry (m, 1, i, j) of piece j below it. `chunk` numbers are held
    at a time.
    """
    _, t, p, _, c = pieces.shape
    parts = pieces.split(max(1, chunk // (t * t * p * c)))
    across = [
        torch.stack([_log_ratio(gradient_distance(x)) for x in (part, part.transpose(2, 3))], 1) for part in parts
    ]
    return torch.cat(across)


def log_odds(scores: Tensor) -> Tensor:
    """Scores [M, 2, T, T] of pairs as log-odds in [−2, log T] against a random pair, by softmax over both partners.

    The diagonal is ignored and comes back as −2.
    """
    t = scores.shape[-1]
    diagonal = torch.eye(t, dtype=torch.bool, device=scores.device)
    scores = scores.masked_fill(diagonal, -1e4)
    both = (scores.log_softmax(2) + scores.log_softmax(3)) / 2 + log(t)
    return both.clamp(min=_ODDS_FLOOR).masked_fill(diagonal, _ODDS_FLOOR)


def _one_sided(pieces: Tensor) -> Tensor:
    """Distances by the statistics of the left piece alone."""
    m, t, p, _, c = pieces.shape
    steps = pieces[:, :, :, -1] - pieces[:, :, :, -2]
    mean = steps.mean(2)
    centered = (steps - mean.unsqueeze(2)).double()
    prior = _GREY_LEVEL**2 * torch.eye(c, dtype=torch.float64, device=pieces.device)
    factor = torch.linalg.cholesky(centered.transpose(2, 3) @ centered / max(1, p - 1) + prior)
    whiten = torch.linalg.solve_triangular(factor, torch.eye(c, dtype=torch.float64, device=pieces.device), upper=False)
    predicted = pieces[:, :, :, -1] + mean.unsqueeze(2)  # what the right piece's first column would be
    gap = pieces[:, None, :, :, 0] - predicted[:, :, None]
    distances: Tensor = (gap.flatten(2, 3) @ whiten.float().transpose(2, 3)).square().view(m, t, t, p * c).sum(3)
    return distances
