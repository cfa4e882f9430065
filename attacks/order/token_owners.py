"""Whose patch is this? Tokens that were mixed over a batch, assigned back to images that hold T of them each."""

from __future__ import annotations

import torch
from torch import Tensor

from privkit.attacks.assign import by_capacity, sinkhorn
from privkit.attacks.order.message_network import MessageNetwork
from privkit.attacks.order.piece_network import MemberNetwork, own_prior

ROUNDS = 4
_SINKHORN_STEPS = 20


@torch.no_grad()
def assign_members(network: MemberNetwork | MessageNetwork, pieces: Tensor, keep: float) -> tuple[Tensor, Tensor]:
    """Assign a message's tokens to its images: as a whole, or with the cleaner rows again, and so on.

    Args:
        network: trained on own images.
        pieces: [B, T, F] as released; row b keeps at least a share `keep` of image b.
        keep: in [0, 1].

    Returns:
        int64 [B, T], for each image the T released tokens (counted through the message) taken to be its own, and
        log-probabilities [B·T, B] of images for tokens, their columns summing to T.
    """
    b, t, _ = pieces.shape
    prior = own_prior(b, keep).to(pieces.device)
    if isinstance(network, MessageNetwork):
        logits = sinkhorn(network(pieces, prior)[-1].T, _SINKHORN_STEPS, t).T
        return by_capacity(logits, t), logits
    tokens, rows = pieces.flatten(0, 1), pieces
    prior = prior.repeat_interleave(t, 0)
    taken = torch.arange(b * t, device=pieces.device).view(b, t)
    logits = prior
    for _ in range(ROUNDS):
        logits = sinkhorn((network(tokens, rows) + prior).T, _SINKHORN_STEPS, t).T
        taken = by_capacity(logits, t)
        rows = tokens[taken]
    return taken, logits
