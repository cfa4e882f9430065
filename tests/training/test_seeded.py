"""Modules that draw from the global generators, as dropout does, are seeded like everything else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.defenses import BatchShuffle, PatchShuffle
from privkit.domains.images.domain import Images
from privkit.training import Checkpoint, Clients, TrainingSpec, evaluate, train
from privkit.wire.channel import black_box_query, record_rounds
from tests.small import random_images

SPEC = TrainingSpec(batch_size=20)


class Killed(Exception):
    pass


class DyingCheckpoint(Checkpoint):
    """Saves the first epoch and dies."""

    def report(self, done: int, total: int, value: float) -> None:
        raise Killed


class Noisy(nn.Module):
    """A patch embedding with dropout and a running mean; `always` draws noise in eval mode too."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self.embed, self.norm, self.drop, self.always = nn.Conv2d(1, 16, 2, 2), nn.BatchNorm2d(16), nn.Dropout(), always

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.drop(self.norm(self.embed(x))).flatten(2).transpose(1, 2)
        return tokens + torch.randn_like(tokens) if self.always else tokens


def built(*, always: bool = False) -> tuple[Clients, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        upper = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(256, 10))
        return Clients.build(Noisy(always=always), BatchShuffle(), Images(shape=(1, 8, 8)), classes=10, seed=0), upper


def test_dropout_follows_the_seed_also_after_a_kill(tmp_path: Path) -> None:
    runs = [built() for _ in range(3)]
    state = torch.random.get_rng_state()
    curve = train(*runs[0], random_images(100, 10), SPEC, epochs=3, seed=0).curve
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    assert train(*runs[1], random_images(100, 10), SPEC, epochs=3, seed=0).curve == curve
    path = tmp_path / "training.ckpt"
    with pytest.raises(Killed):
        train(*built(), random_images(100, 10), SPEC, epochs=3, seed=0, checkpoint=DyingCheckpoint(path))
    torch.rand(3)
    assert train(*runs[2], random_images(100, 10), SPEC, epochs=3, seed=0, checkpoint=Checkpoint(path)).curve == curve
    first, *others = ([*edge.parameters(), *upper.parameters()] for edge, upper in runs)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_dropout_differs_between_epochs() -> None:
    seen: list[Tensor] = []
    edge, upper = built()
    edge.lowers.module.register_forward_hook(lambda module, inputs, output: seen.append(output == 0))
    train(edge, upper, random_images(20, 10), SPEC, epochs=2, seed=0)
    assert not torch.equal(seen[0], seen[1])


def test_noise_in_eval_mode_follows_the_seed() -> None:
    edge, upper = built(always=True)
    data = random_images(40, 10)

    def passes(seed: int) -> tuple[Any, list[Tensor]]:
        views = record_rounds(edge, data, batch_size=20, seed=seed).views
        return evaluate(edge, upper, data, batch_size=20, seed=seed), [view.smashed for view in views]

    (accuracy, views), _, (again, views_again), (_, others) = passes(0), torch.rand(3), passes(0), passes(1)
    assert accuracy == again
    assert all(torch.equal(a, b) for a, b in zip(views, views_again, strict=True))
    assert not torch.equal(views[0], others[0])


def test_nothing_is_dropped_and_no_mean_moves_once_training_is_over() -> None:
    """Evaluation, recording and the adversary's query all run the edge in eval mode."""
    data = random_images(40, 10)
    for use in (
        lambda edge, upper: evaluate(edge, upper, data, batch_size=20, seed=0),
        lambda edge, upper: record_rounds(edge, data, batch_size=20, seed=0),
        lambda edge, upper: black_box_query(edge)(data.x, Generator()),
    ):
        edge, upper = built()
        edge.train()
        before = [value.clone() for value in edge.state_dict().values()]
        use(edge, upper)
        assert not any(module.training for module in edge.modules())
        assert all(torch.equal(a, b) for a, b in zip(before, edge.state_dict().values(), strict=True))


def test_a_look_at_the_shape_changes_nothing() -> None:
    lower = Noisy()
    before, state = [value.clone() for value in lower.state_dict().values()], torch.random.get_rng_state()
    edge = Clients.build(lower, PatchShuffle(frozen_block=True), Images(shape=(1, 8, 8)), classes=10, seed=0)
    assert edge.lowers.module.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, lower.state_dict().values(), strict=True))
