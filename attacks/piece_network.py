"""Learned compatibility: where a token lies, which tokens lie side by side, and whose image a token belongs to."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, log

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.compatibility import SHARPNESS

IMAGES_A_STEP = 32
LEARNING_RATE = 2e-3
EMBEDDING = 48
MESSAGES_A_STEP_TOKENS = 2_000


class PieceNetwork(nn.Module):
    """Scores of tokens by themselves, so that tokens of other images in a row do no harm.

    Args:
        features: F, numbers a token.
        tokens: T, places in an image.
        width: of the hidden layers.
    """

    def __init__(self, features: int, tokens: int, width: int) -> None:
        super().__init__()
        self.places = nn.Sequential(nn.Linear(features, width), nn.GELU(), nn.Linear(width, tokens))
        self.linear = nn.Linear(features, 4 * EMBEDDING)
        self.curved = nn.Sequential(nn.Linear(features, 2 * width), nn.GELU(), nn.Linear(2 * width, 4 * EMBEDDING))
        self.mix = nn.Parameter(torch.tensor([1.0, SHARPNESS]))

    def forward(self, pieces: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of places [M, T, P] and pairs [M, 2, T, T]; `edges` are the ratios [M, 2, T, T] of decoded pixels."""
        sides = (self.linear(pieces) + self.curved(pieces)).unflatten(-1, (4, EMBEDDING))
        first, second = sides[:, :, 0::2].transpose(1, 2), sides[:, :, 1::2].transpose(1, 2)
        squares = first.square().sum(-1).unsqueeze(3) + second.square().sum(-1).unsqueeze(2)
        distance = (squares - 2 * first @ second.transpose(2, 3)) / EMBEDDING**0.5
        return self.places(pieces), self.mix[1] * edges - self.mix[0] * distance


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
        return self.ask(self.tokens(pieces)) @ wanted.T / wanted.shape[1] ** 0.5


def train_pieces(
    network: PieceNetwork,
    pieces: Tensor,
    edges: Tensor,
    epochs: int,
    draws: Generator,
    report: Callable[[int, float], None],
) -> None:
    """Cross-entropy of the place of each token, and of the right one among all of its image as its neighbor, both ways.

    Args:
        network: to be trained in place.
        pieces: [N, T, F], tokens of own images in order.
        edges: [N, 2, T, T].
        epochs: passes, ≥ 0.
        draws: the only source of randomness.
        report: is told the epoch and its mean loss.
    """
    steps = [part for part in range(0, len(pieces), IMAGES_A_STEP)]
    optimizer, schedule = _optimizer(network, epochs * len(steps))
    for epoch in range(epochs):
        order, total = torch.randperm(len(pieces), generator=draws, device=draws.device).to(pieces.device), 0.0
        for rows in order.split(IMAGES_A_STEP):
            loss = piece_loss(*network(pieces[rows], edges[rows]))
            total += _step(optimizer, schedule, loss)
        report(epoch, total / len(steps))


def piece_loss(places: Tensor, pairs: Tensor) -> Tensor:
    """Sum of the cross-entropies of tokens that lie in order."""
    n, t, _ = places.shape
    grid = torch.arange(t, device=places.device).view(isqrt(t), isqrt(t))
    pairs = pairs.masked_fill(torch.eye(t, dtype=torch.bool, device=places.device), -1e4)
    entropy = nn.functional.cross_entropy
    loss = entropy(places.flatten(0, 1), grid.flatten().repeat(n))
    for scores, one, two in (
        (pairs[:, 0], grid[:, :-1].flatten(), grid[:, 1:].flatten()),
        (pairs[:, 1], grid[:-1].flatten(), grid[1:].flatten()),
    ):
        loss = loss + entropy(scores[:, one].flatten(0, 1), two.repeat(n)) / 2
        loss = loss + entropy(scores[:, :, two].transpose(1, 2).flatten(0, 1), one.repeat(n)) / 2
    return loss


def train_members(
    network: MemberNetwork, pieces: Tensor, batch: int, keep: float, epochs: int, draws: Generator
) -> None:
    """Simulate the shuffle on own images: rows that hold at least `keep` of their image, and the rest from all of them.

    Args:
        network: to be trained in place.
        pieces: [N, T, F] of own images.
        batch: images a message, ≥ 2.
        keep: share of an image's tokens that stay for certain, in [0, 1].
        epochs: passes, ≥ 0.
        draws: the only source of randomness.
    """
    n, t, _ = pieces.shape
    steps, device = n // batch, pieces.device
    optimizer, schedule = _optimizer(network, epochs * steps)
    prior = own_prior(batch, keep)
    for _ in range(epochs):
        for images in torch.randperm(n, generator=draws)[: steps * batch].view(steps, batch).to(device):
            message = pieces[images]
            purity = keep + (1 - keep) * float(torch.rand((), generator=draws))
            stays = (torch.rand(batch, t, generator=draws) < purity).to(device)
            stranger = torch.randint(batch * t, (batch, t), generator=draws).to(device)
            rows = torch.where(stays.unsqueeze(2), message, message.flatten(0, 1)[stranger])
            some = torch.randperm(batch * t, generator=draws)[:MESSAGES_A_STEP_TOKENS].to(device)
            at_home = (torch.rand(len(some), generator=draws) < keep).to(device)
            released = torch.where(at_home, some // t, torch.randint(batch, (len(some),), generator=draws).to(device))
            logits = network(message.flatten(0, 1)[some], rows) + prior.to(device)[released]
            _step(optimizer, schedule, nn.functional.cross_entropy(logits, some // t))


def own_prior(batch: int, keep: float) -> Tensor:
    """[B, B]: log-probability of each image for a token that was released in each row."""
    stranger = (1 - keep) / batch
    return torch.where(torch.eye(batch, dtype=torch.bool), log(keep + stranger + 1e-6), log(stranger + 1e-6))


def _optimizer(network: nn.Module, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW with one cycle."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0.05)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps + 1, pct_start=0.1
    )


def _step(optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler, loss: Tensor) -> float:
    """One step; gives the loss."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    schedule.step()
    return loss.item()
