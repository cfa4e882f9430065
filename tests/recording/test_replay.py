"""A round sent again: a release with less noise than its segment makes is found, and an honest one is not."""

from collections.abc import Callable
from math import sqrt
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from privkit.audit.declared import declared_by
from privkit.recording.read import read_recording
from privkit.recording.replay import FAR, replay
from tests.recording.declarations import SIGMA, Noisy, drawn, noise
from tests.recording.made import written


class Dropping(nn.Module):
    """A network with dropout of its first layer, as one that was recorded in training mode."""

    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), drop, nn.ReLU(), nn.Flatten(), nn.Linear(144, 16))

    def forward(self, images: Tensor) -> Tensor:
        made: Tensor = self.layers(images)
        return made


class OneForAll(nn.Module):
    """Noise that a whole batch shares: a factor, or a layer that is now and then left out."""

    def __init__(self, *, rare: bool) -> None:
        super().__init__()
        self.rare = rare

    def forward(self, images: Tensor) -> Tensor:
        return images * (1 + (torch.rand(()) < 0.2 if self.rare else torch.randn(())))


SEGMENTS: dict[str, Callable[[], nn.Module]] = {
    "Gaussian noise": lambda: Noisy(0.2),
    "noise far beyond the signal": lambda: Noisy(30.0),
    "dropout": lambda: Dropping(nn.Dropout(0.5)),
    "dropout of channels": lambda: Dropping(nn.Dropout2d(0.5)),
    "dropout of few": lambda: Dropping(nn.Dropout(0.02)),
    "a factor for the whole batch": lambda: OneForAll(rare=False),
    "a layer left out for the whole batch": lambda: OneForAll(rare=True),
}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", SEGMENTS)
@torch.no_grad()
def test_an_honest_release_is_not_quieter(name: str) -> None:
    segment, found = SEGMENTS[name](), []
    for number in range(60):
        x = drawn((1, 8, 50)[number % 3], seed=number)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 + number)
            released = segment(x)
        found.append(replay(segment, x, released).quieter(0.0))
    assert found == [None] * len(found)


@pytest.mark.parametrize("known", [True, False])
@torch.no_grad()
def test_rounds_of_one_record_are_not_far_by_chance(known: bool) -> None:
    """Four standard errors of 16 numbers were exceeded once in 300 honest rounds, and a warning blamed the weights."""
    far = []
    for number in range(1000):
        x = torch.zeros(1, 16)
        released = x + noise(1, 16, seed=number)
        segment = nn.Identity() if known else Noisy(1.0)
        far.append(replay(segment, x, released + 0.01).distance(1.0))
    assert not any(far)


@pytest.mark.parametrize("name", list(SEGMENTS)[:4])
@torch.no_grad()
def test_a_release_without_its_noise_is(name: str) -> None:
    segment, x = SEGMENTS[name](), drawn(50)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        many = torch.stack([segment(x) for _ in range(200)])
    found = replay(segment, x, many.mean(0)).quieter(0.0)
    assert found is not None
    assert found < 0.1


@pytest.mark.parametrize("name", list(SEGMENTS)[:2])
@torch.no_grad()
def test_so_is_one_with_half_the_variance(name: str) -> None:
    segment, x = SEGMENTS[name](), drawn(50)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        many = torch.stack([segment(x) for _ in range(200)])
    found = replay(segment, x, many.mean(0) + (many[0] - many.mean(0)) / sqrt(2)).quieter(0.0)
    assert found is not None
    assert 0.3 < found < 0.7


ADDED = {
    "": noise(12, 1, 8, 8),
    f"gaussian_noise:sigma={SIGMA},clip=1": noise(12, 1, 8, 8),
    f"laplace_noise:scale={SIGMA},clip=1": noise(12, 1, 8, 8, law="laplace"),
}
"""Noise of each defense that a recording names; without one, its segment draws."""


@pytest.mark.parametrize("defense", ADDED)
@pytest.mark.parametrize("bare", [True, False])
def test_it_is_said_of_a_recording(defense: str, bare: bool, tmp_path: Path) -> None:
    x = drawn(12)
    lower = {"builder": f"tests.recording.{'made:Half' if defense else 'declarations:Noisy'}"}
    released = x / 2 + (0 if bare else SIGMA) * ADDED[defense]
    rounds = {f"round_{number}.smashed": part for number, part in enumerate(released.split(6))}
    folder = written(tmp_path / "r", {**rounds, "truth.images": x}, lower=lower, defense=defense)
    found = declared_by(read_recording(folder, trust=["tests"]))
    assert found.distance is not None
    assert found.distance <= FAR
    assert ("adds more noise than the release has" in found.doubt(1)) == bare
