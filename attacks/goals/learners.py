"""Small clients in training, for the controls of attacks that take training over: they can be led, or send noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.torch_utils.seeded import seeded

__all__ = ["Learners", "shrunk"]

CHANNELS = 4
RATE = 2e-3


def shrunk(images: Tensor, side: int) -> Tensor:
    """Images of at most `side` pixels a side, by means over areas: such controls try the attack, not the data.

    >>> shrunk(torch.ones(2, 1, 28, 28), 8).shape
    torch.Size([2, 1, 8, 8])
    """
    height, width = (min(side, pixels) for pixels in images.shape[2:])
    return nn.functional.adaptive_avg_pool2d(images, (height, width))


class Learners:
    """One client of two convolutions, in training; satisfies `privkit.attacks.base.TrainingClients`.

    Args:
        images: what it trains on.
        labels: of these images.
        victims: the attacked images.
        victim_labels: of these.
        batch_size: images a round.
        seed: of weights and batches.
        noise: whether it sends noise, which no teaching changes, in place of what it computes.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        victims: Tensor,
        victim_labels: Tensor,
        batch_size: int,
        seed: int,
        noise: bool,
    ) -> None:
        self._images, self._labels, self._batch, self._seed, self._noise = images, labels, batch_size, seed, noise
        self._victims, self._victim_labels, self._number = victims, victim_labels, 0
        with seeded(torch.device("cpu"), seed):
            first = nn.Conv2d(images.shape[1], 2 * CHANNELS, 3, 2, 1)
            self._lower = nn.Sequential(first, nn.ReLU(), nn.Conv2d(2 * CHANNELS, CHANNELS, 3, 1, 1))
        self._lower.to(images.device)
        self._optimizer = torch.optim.Adam(self._lower.parameters(), lr=RATE)

    def _released(self, images: Tensor, draws: Generator) -> Tensor:
        """[N, 4, h, w]."""
        released: Tensor = self._lower(images)
        if self._noise:
            return 0 * released + torch.randn(released.shape, generator=draws, device=released.device)
        return released

    def round(self, answer: Callable[[View], Tensor]) -> None:
        """One step on what comes back."""
        draws = Generator(self._images.device).manual_seed(self._seed + self._number)
        rows = torch.randperm(len(self._images), generator=draws, device=self._images.device)[: self._batch]
        sent = self._released(self._images[rows], draws)
        back = answer(View(round=self._number, smashed=sent.detach(), labels=self._labels[rows]))
        self._optimizer.zero_grad(set_to_none=True)
        sent.backward(back)
        self._optimizer.step()
        self._number += 1

    @torch.no_grad()
    def views(self) -> list[View]:
        """The attacked images through the client as it is now."""
        draws = Generator(self._images.device).manual_seed(self._seed)
        parts = zip(self._victims.split(self._batch), self._victim_labels.split(self._batch), strict=True)
        return [View(round=i, smashed=self._released(x, draws), labels=y) for i, (x, y) in enumerate(parts)]

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and round."""
        return {
            "lower": self._lower.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "number": self._number,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._lower.load_state_dict(state["lower"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._number = int(state["number"])
