"""Digits, trained clients and trained servers, for attacks by a passive server that sends no queries."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation, Reconstruction
from privkit.attacks.inversion.simulator_training import SimulatorTraining
from tests.small import digits


@cache
def split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """900 private digits of 8×8 with their labels, 897 auxiliary ones."""
    batch = digits(1_797)
    return batch.x[:900], batch.y[:900], batch.x[900:], batch.y[900:]


class Tokens(nn.Module):
    """A patch embedding with a layer for each token: 16 tokens of 12."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Conv2d(1, 12, 2, 2), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(self.embed(x).flatten(2).transpose(1, 2)))


@cache
def trained(kind: str) -> tuple[nn.Module, nn.Module]:
    """A client and its server after honest training."""
    images, labels, _, _ = split()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "maps":
            lower: nn.Module = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            upper = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(128, 32), nn.ReLU())
        elif kind == "tokens":
            lower, upper = Tokens(), nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU())
        else:
            lower = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())
            upper = nn.Sequential(nn.Linear(48, 32), nn.ReLU())
        upper.append(nn.Linear(32, 10))
        optimizer = torch.optim.Adam([*lower.parameters(), *upper.parameters()], 3e-3)
        for _ in range(15):
            for rows in torch.randperm(len(images)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(upper(lower(images[rows])), labels[rows]).backward()
                optimizer.step()
    return lower.eval(), upper.eval()


def case(kind: str = "maps", own: int = 160) -> tuple[list[View], ImageObservation]:
    """Two messages of 200 victims, and an adversary with some labeled images."""
    images, labels, auxiliary, auxiliary_labels = split()
    lower, upper = trained(kind)
    with torch.no_grad():
        smashed = lower(images[:400])
    halves = zip(smashed.split(200), labels[:400].split(200), strict=True)
    knowledge = ImageObservation(
        image_shape=(1, 8, 8),
        batch_size=64,
        auxiliary=auxiliary[:own],
        auxiliary_labels=auxiliary_labels[:own],
        upper=upper,
    )
    return [View(round=i, smashed=z, labels=y) for i, (z, y) in enumerate(halves)], knowledge


def run(
    attack: ImageAttack, views: list[View], knowledge: ImageObservation, session: Any = None, seed: int = 0
) -> Reconstruction:
    return attack.run(replace(knowledge, views=views), Generator().manual_seed(seed), session)


def error(result: Reconstruction) -> float:
    return (result.images - split()[0][: len(result.images)]).square().mean().item()


def check_gradients(
    training: SimulatorTraining, losses: Mapping[str, Tensor], before: Mapping[str, nn.Module], rtol: float
) -> None:
    """Check that after a step, each part has the gradient of its own loss at the weights before the step."""
    for name, loss in losses.items():
        expected = torch.autograd.grad(loss, list(before[name].parameters()))
        for weight, gradient in zip(training.parts[name].parameters(), expected, strict=True):
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, gradient, rtol=rtol, atol=1e-6)


FLOOR = (split()[2].mean(0) - split()[0][:400]).square().mean().item()
