"""Clients whose training the FSHA attack can take over, and the error of its guesses at their digits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.goals.learners import OneClient
from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.hijack.fsha import FSHA
from tests.small import digits

BATCH = 32


class Small(nn.Module):
    """Two layers that are trained: convolutions to a 4×4 grid, or linear ones to a vector of 16."""

    def __init__(self, form: str = "maps") -> None:
        super().__init__()
        self.form = form
        layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 1, 1)]
        if form == "vector":
            layers = [nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        released: Tensor = self.layers(x)
        return released.flatten(2).transpose(1, 2) if self.form == "tokens" else released


class Clients(OneClient):
    """One client in training; the number of a round determines its batch, and `spoil` changes each release."""

    def __init__(
        self, case: "Hijack", lower: nn.Module, spoil: Callable[[int, Tensor], Tensor] = lambda done, x: x
    ) -> None:
        super().__init__(lower, torch.optim.Adam(lower.parameters(), lr=2e-3))
        self.case, self.spoil = case, spoil

    def send(self) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.case.private), (BATCH,), generator=Generator().manual_seed(self.done))
        return self.spoil(self.done, self.lower(self.case.private[rows])), self.case.labels[rows]

    @torch.no_grad()
    def views(self) -> list[View]:
        return [View(round=i, smashed=self.lower(x)) for i, x in enumerate(self.case.victims.split(50))]


class Hijack:
    """Digits of 8×8, clients that train on some of them, and a server with the others."""

    small, quick = Small, FSHA(epochs=3, width=8, blocks=1, learning_rate=3e-3)
    one = FSHA(epochs=1, width=2, blocks=1)

    def __init__(self) -> None:
        taken = digits(1_797)
        self.private, self.own, self.labels, self.own_labels = (
            taken.x[:1_000],
            taken.x[1_000:],
            taken.y[:1_000],
            taken.y[1_000:],
        )
        self.victims = self.private[:100]
        self.floor = (self.own.mean(0) - self.victims).square().mean().item()

    def client(self, make: Callable[[], nn.Module] = Small, **options: Any) -> Clients:
        """Make clients that start from the same weights each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return Clients(self, make(), **options)

    def known(self, clients: Any, **changes: Any) -> ImageObservation:
        """The observation with all inputs that FSHA needs."""
        own = ImageObservation(
            image_shape=(1, 8, 8),
            batch_size=BATCH,
            auxiliary=self.own,
            auxiliary_labels=self.own_labels,
            clients=clients,
        )
        return replace(own, **changes)

    def attacked(self, attack: FSHA, clients: Clients, seed: int = 0, session: Any = None, **changes: Any) -> Any:
        """Run the attack on these clients."""
        views = [replace(view, labels=torch.zeros(50, dtype=torch.int64)) for view in clients.views()]
        return attack.run(replace(self.known(clients, **changes), views=views), Generator().manual_seed(seed), session)

    def error(self, result: Reconstruction) -> float:
        """MSE of the victims."""
        return (result.images - self.victims).square().mean().item()
