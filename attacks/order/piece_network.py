"""Learned compatibility: where a token lies, which tokens lie side by side, and whose image a token belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn

from privkit.attacks.assign import sinkhorn
from privkit.attacks.order.compatibility import SHARPNESS

_EMBEDDING = 48
_BLOCKS = 3
_SINKHORN_STEPS = 5


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
        """As `PieceNetwork`."""
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
        return sinkhorn(self.alone(pieces) + self.leave(self.blocks(self.enter(pieces))), _SINKHORN_STEPS)


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
