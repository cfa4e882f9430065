"""Whose patch is this? Tokens that were mixed over a batch, assigned back to images that hold T of them each."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.attacks.order.piece_network import MemberNetwork, own_prior

ROUNDS = 4
SINKHORN_ROUNDS = 20


@torch.no_grad()
def assign_members(network: MemberNetwork, pieces: Tensor, keep: float) -> tuple[Tensor, Tensor]:
    """Assign a message's tokens to its images, score them again with the cleaner rows, and so on.

    Args:
        network: trained on own images.
        pieces: [B, T, F] as released; row b keeps at least a share `keep` of image b.
        keep: in [0, 1].

    Returns:
        int64 [B, T], for each image the T released tokens (counted through the message) taken to be its own, and
        log-probabilities [B·T, B] of images for tokens, their columns summing to T.
    """
    b, t, _ = pieces.shape
    tokens, rows = pieces.flatten(0, 1), pieces
    prior = own_prior(b, keep).to(pieces.device).repeat_interleave(t, 0)
    taken = torch.arange(b * t, device=pieces.device).view(b, t)
    logits = prior
    for _ in range(ROUNDS):
        logits = balanced(network(tokens, rows) + prior, t)
        taken = capacitated(logits, t)
        rows = tokens[taken]
    return taken, logits


def balanced(logits: Tensor, capacity: int) -> Tensor:
    """Log-probabilities [K, B] whose rows sum to one and whose columns sum to the capacity, by Sinkhorn's iteration."""
    shift = torch.tensor(float(capacity)).log().to(logits.device)
    for _ in range(SINKHORN_ROUNDS):
        logits = logits - logits.logsumexp(0, keepdim=True) + shift
        logits = logits - logits.logsumexp(1, keepdim=True)
    return logits


def capacitated(logits: Tensor, capacity: int) -> Tensor:
    """Images take their best tokens: each token asks image after image, the image keeps its `capacity` best.

    Args:
        logits: [B·T, B].
        capacity: T.

    Returns:
        int64 [B, T], ascending tokens of each image.

    Source: deferred acceptance (Gale and Shapley 1962); all tokens ask at once.

    >>> capacitated(torch.tensor([[2.0, 0.0], [1.0, 0.0], [3.0, 2.0], [0.0, 1.0]]), 2)
    tensor([[0, 2],
            [1, 3]])
    """
    k, b = logits.shape
    wish = logits.argsort(dim=1, descending=True, stable=True)
    asked = torch.zeros(k, dtype=torch.int64, device=logits.device)
    while True:
        image = wish.gather(1, asked.unsqueeze(1)).squeeze(1)
        liking = logits.gather(1, image.unsqueeze(1)).squeeze(1)
        order = (-liking).argsort(stable=True)
        order = order[image[order].argsort(stable=True)]  # by image, its best first
        count = torch.bincount(image, minlength=b)
        first = (count.cumsum(0) - count)[image[order]]
        refused = order[torch.arange(k, device=logits.device) - first >= capacity]
        if not len(refused):
            return image.argsort(stable=True).view(b, capacity)
        asked[refused] += 1
