"""Learned compatibility: where a token lies, which tokens lie side by side, and whose image a token belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn

from privkit.attacks.assign import by_capacity, sinkhorn
from privkit.attacks.order.compatibility import SHARPNESS

_EMBEDDING = 48
_BLOCKS = 3
_JOINT_STEPS = 5  # of Sinkhorn's iteration
_ROUNDS = 3  # of a message's network, each with one step of Sinkhorn's iteration: more were measured to gain nothing


class PieceNetwork(nn.Module):
    """Scores of tokens for places, and of pairs of tokens for lying side by side.

    Places are scored for each token by itself, so that tokens of other images in a row do no harm, or jointly.

    Args:
        features: F, numbers a token.
        tokens: T, places in an image.
        width: of the hidden layers.
        joint: whether places are scored by `JointPlaces`.
    """

    def __init__(self, features: int, tokens: int, width: int, joint: bool = False) -> None:
        super().__init__()
        self.places = (
            JointPlaces(features, tokens, width)
            if joint
            else nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, tokens))
        )
        self.linear = nn.Linear(features, 4 * _EMBEDDING)
        self.curved = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, 4 * _EMBEDDING))
        self.mix = nn.Parameter(torch.tensor([1.0, SHARPNESS]))

    def forward(self, pieces: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of places [M, T, P] and pairs [M, 2, T, T]; `edges` are the ratios [M, 2, T, T] of decoded pixels."""
        sides = (self.linear(pieces) + self.curved(pieces)).unflatten(-1, (4, _EMBEDDING))
        first, second = sides[:, :, 0::2].transpose(1, 2), sides[:, :, 1::2].transpose(1, 2)
        squares = first.square().sum(-1).unsqueeze(3) + second.square().sum(-1).unsqueeze(2)
        distance = (squares - 2 * first @ second.transpose(2, 3)) / _EMBEDDING**0.5
        return self.places(pieces), self.mix[1] * edges - self.mix[0] * distance


class Together(nn.Module):
    """Several networks that score alike, as one: their mean log-probabilities of places, and mean scores of pairs.

    Args:
        networks: which were trained apart.
    """

    def __init__(self, networks: Sequence[PieceNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, pieces: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        places, pairs = zip(*(network(pieces, edges) for network in self.networks), strict=True)
        return torch.stack([one.log_softmax(2) for one in places]).mean(0), torch.stack(pairs).mean(0)


class JointPlaces(nn.Module):
    """Log-probabilities of places, given all tokens of an image: transformer blocks without positions, then Sinkhorn.

    What one token shows leaves many places open, which the other tokens close: two tokens cannot share a place, and a
    stroke that begins in one must go on in another. Sinkhorn's iteration makes that a soft permutation.

    Args:
        features: F, numbers a token.
        tokens: T, places in an image.
        width: of the blocks, a multiple of 4.
    """

    def __init__(self, features: int, tokens: int, width: int) -> None:
        super().__init__()
        self.alone, self.enter = nn.Linear(features, tokens), nn.Linear(features, width)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(_BLOCKS)
            )
        )
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, tokens))

    def forward(self, pieces: Tensor) -> Tensor:
        """[M, T, P] for pieces [M, T, F]: a soft permutation, each place's column of which sums to one exactly."""
        return sinkhorn(self.alone(pieces) + self.leave(self.blocks(self.enter(pieces))), _JOINT_STEPS)


class MemberNetwork(nn.Module):
    """Logits that a token belongs to each of a message's images, given for each a row of tokens, partly its own.

    Args:
        features: F, numbers a token.
        width: of the layers, a multiple of 4.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.row = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.ask, self.answer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pieces: Tensor, rows: Tensor) -> Tensor:
        """[K, B] for pieces [K, F] and rows [B, T, F]."""
        wanted = self.answer(self.row(self.tokens(rows)).mean(1))
        logits: Tensor = self.ask(self.tokens(pieces)) @ wanted.T / wanted.shape[1] ** 0.5
        return logits


def own_prior(batch: int, keep: float) -> Tensor:
    """[B, B]: log-probability of each image for a token that was released in each row."""
    stranger = (1 - keep) / batch
    return torch.where(torch.eye(batch, dtype=torch.bool), log(keep + stranger + 1e-6), log(stranger + 1e-6))


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
            rounds.append(sinkhorn(scores.mT, 1, t).mT)
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
