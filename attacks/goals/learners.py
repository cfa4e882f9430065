"""Small clients in training, for controls of attacks that take over the training: some learn, others send noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from privkit.attacks.base import View
from privkit.torch_utils.seeded import seeded

_CHANNELS = 4
_RATE = 2e-3


class OneClient(ABC):
    """One client in training that learns from any gradient; satisfies `privkit.attacks.base.TrainingClients`."""

    def __init__(self, lower: nn.Module, optimizer: Optimizer) -> None:
        self.lower, self.optimizer, self.done = lower, optimizer, 0

    @abstractmethod
    def send(self) -> tuple[Tensor, Tensor]:
        """The release of round number `done`, with its autograd graph, and the labels."""

    @abstractmethod
    def views(self) -> list[View]: ...

    def learn(self) -> None:
        self.optimizer.step()

    def round(self, answer: Callable[[View], Tensor]) -> None:
        sent, labels = self.send()
        back = answer(View(round=self.done, smashed=sent.detach(), labels=labels))
        self.optimizer.zero_grad(set_to_none=True)
        sent.backward(back)
        self.learn()
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        return {"lower": self.lower.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lower.load_state_dict(state["lower"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = int(state["done"])


class Learners(OneClient):
    """A client in training for control experiments: it has two convolutions and draws random batches.

    `views` sends the attacked images (`victims`). With `noise`, the client sends pure noise, unaffected by training.
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
        self._victims, self._victim_labels = victims, victim_labels
        with seeded(torch.device("cpu"), seed):
            first = nn.Conv2d(images.shape[1], 2 * _CHANNELS, 3, 2, 1)
            lower = nn.Sequential(first, nn.ReLU(), nn.Conv2d(2 * _CHANNELS, _CHANNELS, 3, 1, 1))
        lower.to(images.device)
        super().__init__(lower, torch.optim.Adam(lower.parameters(), lr=_RATE))

    def _released(self, images: Tensor, draws: Generator) -> Tensor:
        released: Tensor = self.lower(images)
        if self._noise:
            return 0 * released + torch.randn(released.shape, generator=draws, device=released.device)
        return released

    def send(self) -> tuple[Tensor, Tensor]:
        draws = Generator(self._images.device).manual_seed(self._seed + self.done)
        rows = torch.randperm(len(self._images), generator=draws, device=self._images.device)[: self._batch]
        return self._released(self._images[rows], draws), self._labels[rows]

    @torch.no_grad()
    def views(self) -> list[View]:
        draws = Generator(self._images.device).manual_seed(self._seed)
        parts = zip(self._victims.split(self._batch), self._victim_labels.split(self._batch), strict=True)
        return [View(round=i, smashed=self._released(x, draws), labels=y) for i, (x, y) in enumerate(parts)]
