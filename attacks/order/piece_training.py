"""Training of the jigsaw's networks on the adversary's own tokens, an epoch at a time, so that a killed one goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.assign import take
from privkit.attacks.fit import Learner
from privkit.attacks.order.piece_network import MemberNetwork, MessageNetwork, PieceNetwork, own_prior
from privkit.torch_utils.one_cycle import one_cycle

_IMAGES_A_STEP = 32
_IMAGES_A_JOINT_STEP = 16  # more and smaller steps learn more in the same time
_IMAGES_AN_EPOCH = 1_000  # drawn anew each time: more were measured to cost time and to win nothing
_TOKENS_OF_MESSAGES = 800  # a step has several messages, if they are small
_MESSAGES_AN_IMAGE = 2  # an epoch: a shuffle that is drawn anew shows the same images otherwise
_MESSAGE_STEPS = 100  # an epoch has at most
_TOKENS_A_STEP = 2_000  # of a message, that are asked for their image
_LEARNING_RATE = 2e-3

Rows = Callable[[Tensor], Tensor]
"""What own images of some rows show, so that not all of it need be held at once."""


class PieceTraining(Learner):
    """AdamW with one cycle; satisfies `privkit.attacks.fit.Training`, an epoch's objective being its mean loss.

    Args:
        network: to be trained in place.
        losses: gives an epoch's losses, one a step, each computed when the step before is done.
        steps: an epoch.
        epochs: of the whole training, which set the schedule.
        draws: the generator that `losses` draws from; its state is part of the training's.
        learning_rate: the peak of the cycle.
        weight_decay: as in AdamW.
    """

    def __init__(
        self,
        network: nn.Module,
        losses: Callable[[], Iterator[Tensor]],
        steps: int,
        epochs: int,
        draws: Generator,
        *,
        learning_rate: float = _LEARNING_RATE,
        weight_decay: float = 0.05,
    ) -> None:
        optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=weight_decay)
        super().__init__(network, optimizer, one_cycle(optimizer, learning_rate, epochs * steps, momentum=True))
        self._losses, self._steps, self._draws = losses, steps, draws

    def epoch(self, number: int) -> float:
        total = torch.zeros(())
        for loss in self._losses():
            self.step(loss)
            total = total + loss.detach()
        return float(total) / self._steps

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "draws": self._draws.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._draws.set_state(state["draws"])


def piece_losses(
    network: PieceNetwork,
    pieces: Rows,
    edges: Rows,
    count: int,
    draws: Generator,
    twins: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Tensor]:
    """An epoch of `piece_loss`.

    Args:
        network: to be trained.
        pieces: rows to tokens [n, T, F] of own images in order.
        edges: rows to [n, 2, T, T].
        count: N, own images.
        draws: the only source of randomness.
        twins: gives `piece_loss` its targets from tokens [n, T, F]; None if each token has its own place alone.
    """
    for rows in torch.randperm(count, generator=draws)[:_IMAGES_AN_EPOCH].split(_images_of_step(twins is not None)):
        shown = pieces(rows)
        places, pairs = network(shown, edges(rows))
        yield piece_loss(places, pairs, None if twins is None else twins(shown))


def piece_steps(count: int, joint: bool) -> int:
    """Of an epoch of `piece_losses`, with twins or without."""
    return -(-min(count, _IMAGES_AN_EPOCH) // _images_of_step(joint))


def _images_of_step(joint: bool) -> int:
    return _IMAGES_A_JOINT_STEP if joint else _IMAGES_A_STEP


def piece_loss(places: Tensor, pairs: Tensor, targets: Tensor | None = None) -> Tensor:
    """Cross-entropy of the place of each token, and of the right one among all of its image as its neighbor, both ways.

    Args:
        places: logits [n, T, P] of tokens that lie in order.
        pairs: logits [n, 2, T, T].
        targets: [n, T, P], probability of each place; None for the token's own.
    """
    n, t, _ = places.shape
    grid = torch.arange(t, device=places.device).view(isqrt(t), isqrt(t))
    pairs = pairs.masked_fill(torch.eye(t, dtype=torch.bool, device=places.device), -1e4)
    entropy = nn.functional.cross_entropy
    own = grid.flatten().repeat(n) if targets is None else targets.flatten(0, 1)
    loss = entropy(places.flatten(0, 1), own)
    for scores, one, two in (
        (pairs[:, 0], grid[:, :-1].flatten(), grid[:, 1:].flatten()),
        (pairs[:, 1], grid[:-1].flatten(), grid[1:].flatten()),
    ):
        loss = loss + entropy(scores[:, one].flatten(0, 1), two.repeat(n)) / 2
        loss = loss + entropy(scores[:, :, two].transpose(1, 2).flatten(0, 1), one.repeat(n)) / 2
    return loss


def member_losses(
    network: MemberNetwork, pieces: Rows, count: int, batch: int, keep: float, draws: Generator
) -> Iterator[Tensor]:
    """An epoch of simulated shuffles: rows that hold at least `keep` of their image, and the rest from all of them.

    Args:
        network: to be trained.
        pieces: rows to tokens [n, T, F] of own images.
        count: N ≥ `batch`, own images.
        batch: images a message, ≥ 2.
        keep: share of an image's tokens that stay for certain, in [0, 1].
        draws: the only source of randomness.
    """
    steps, prior = member_steps(count, batch), own_prior(batch, keep)
    for images in torch.randperm(count, generator=draws)[: steps * batch].view(steps, batch):
        message = pieces(images)
        t, device = message.shape[1], message.device
        purity = keep + (1 - keep) * float(torch.rand((), generator=draws))
        stays = (torch.rand(batch, t, generator=draws) < purity).to(device)
        stranger = torch.randint(batch * t, (batch, t), generator=draws).to(device)
        rows = torch.where(stays.unsqueeze(2), message, message.flatten(0, 1)[stranger])
        some = torch.randperm(batch * t, generator=draws)[:_TOKENS_A_STEP].to(device)
        at_home = (torch.rand(len(some), generator=draws) < keep).to(device)
        released = torch.where(at_home, some // t, torch.randint(batch, (len(some),), generator=draws).to(device))
        logits = network(message.flatten(0, 1)[some], rows) + prior.to(device)[released]
        yield nn.functional.cross_entropy(logits, some // t)


def member_steps(count: int, batch: int) -> int:
    """Of an epoch of `member_losses`."""
    return max(1, min(count, _IMAGES_AN_EPOCH) // batch)


def shuffled_losses(
    network: MessageNetwork, pieces: Rows, count: int, shape: tuple[int, int], keep: float, draws: Generator
) -> Iterator[Tensor]:
    """An epoch of `message_loss` on messages that are shuffled as a client shuffles them.

    Args:
        network: to be trained.
        pieces: rows to tokens [n, T, F] of own images.
        count: N ≥ B, own images.
        shape: (B, T), images a message, ≥ 2, and tokens an image.
        keep: share of an image's tokens that stay for certain, in [0, 1].
        draws: the only source of randomness.
    """
    batch, tokens = shape
    prior, messages = own_prior(batch, keep), max(1, _TOKENS_OF_MESSAGES // (batch * tokens))
    for _ in range(message_steps(count, batch)):
        images = [torch.randperm(count, generator=draws)[:batch] for _ in range(messages)]
        own = pieces(torch.cat(images)).unflatten(0, (messages, batch)).flatten(1, 2)
        source = torch.stack([dealt_out(batch, tokens, keep, draws) for _ in range(messages)]).to(own.device)
        released = take(own, source.flatten(1)).unflatten(1, shape)
        yield message_loss(network(released, prior.to(own.device)), source.flatten(1) // tokens)


def message_steps(count: int, batch: int) -> int:
    """Of an epoch of `shuffled_losses`."""
    return min(_MESSAGE_STEPS, _MESSAGES_AN_IMAGE * member_steps(count, batch))


def message_loss(chances: Tensor, images: Tensor) -> Tensor:
    """Cross-entropy [] of the images int64 [..., K] of tokens, after each round of log-probabilities [R, ..., K, B]."""
    return -chances.gather(-1, images.expand(chances.shape[:-1]).unsqueeze(-1)).mean()


def dealt_out(batch: int, tokens: int, keep: float, draws: Generator) -> Tensor:
    """A shuffle that keeps a share of each image's tokens and deals the others out again: int64 [B, T].

    Each entry is a token that a row releases, counted through the message; within a row they are in no order.

    >>> rows = dealt_out(3, 4, 0.5, Generator().manual_seed(0))
    >>> rows.flatten().sort().values.tolist() == list(range(12))
    True
    >>> [int((row // 4 == image).sum()) >= 2 for image, row in enumerate(rows)]
    [True, True, True]
    """
    kept = round(keep * tokens)
    own = torch.rand(batch, tokens, generator=draws).argsort(1) + tokens * torch.arange(batch).unsqueeze(1)
    pool = own[:, kept:].flatten()
    return torch.cat([own[:, :kept], pool[torch.randperm(len(pool), generator=draws)].view(batch, -1)], 1)
