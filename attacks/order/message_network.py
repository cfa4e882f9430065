"""Whose token is this, asked of a whole message: tokens of one image attract each other, and each image has T."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privkit.attacks.assign import by_capacity, sinkhorn
from privkit.attacks.order.piece_network import MemberNetwork, own_prior

_ROUNDS = 3
_SINKHORN_STEPS = 1  # more were measured to gain nothing in the same time


class MessageNetwork(nn.Module):
    """Log-probabilities of a message's images for all of its tokens at once, round after round.

    Each pair of tokens attracts or repels, as their embeddings say. In each round, a token's score for an image is the
    prior of the row that released it and the attraction of all other tokens, each in proportion to the chance that it
    is of that image; then a step of Sinkhorn's iteration gives each image about T tokens. So a token that finds its
    image draws others after it, and the message is sorted as a whole. Any number of images may be in it.

    Args:
        features: F, numbers a token.
        width: of the embedding.

    Source: mean-field inference in a learned random field, unrolled as layers (Zheng et al. 2015, §4); in place of
    its softmax, Sinkhorn's iteration, since an image has a known number of tokens.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, width)
        self.curved = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.signs = nn.Parameter(torch.ones(width))  # what is alike may also repel
        self.trust = nn.Parameter(torch.ones(_ROUNDS))

    def forward(self, pieces: Tensor, prior: Tensor) -> Tensor:
        """[R, ..., B·T, B] for the pieces [..., B, T, F] of B rows and the prior [B, B] of images for a row's tokens.

        After each round a token's probabilities sum to one, and those of an image about to T.
        """
        t, tokens = pieces.shape[-2], pieces.flatten(-3, -2)
        embedded = self.linear(tokens) + self.curved(tokens)
        signed = self.signs * embedded / embedded.shape[-1] ** 0.5
        itself = (signed * embedded).sum(-1, keepdim=True)
        start = prior.repeat_interleave(t, 0)
        chances, rounds = start.softmax(-1), []
        for trust in self.trust:
            others = signed @ (embedded.mT @ chances) - itself * chances  # no token attracts itself
            scores = trust * others + start
            rounds.append(sinkhorn(scores.mT, _SINKHORN_STEPS, t).mT)
            chances = rounds[-1].exp()
        return torch.stack(rounds)


ROUNDS = 4
_MEMBER_STEPS = 20


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
        logits = sinkhorn(network(pieces, prior)[-1].T, _MEMBER_STEPS, t).T
        return by_capacity(logits, t), logits
    tokens, rows = pieces.flatten(0, 1), pieces
    prior = prior.repeat_interleave(t, 0)
    taken = torch.arange(b * t, device=pieces.device).view(b, t)
    logits = prior
    for _ in range(ROUNDS):
        logits = sinkhorn((network(tokens, rows) + prior).T, _MEMBER_STEPS, t).T
        taken = by_capacity(logits, t)
        rows = tokens[taken]
    return taken, logits
