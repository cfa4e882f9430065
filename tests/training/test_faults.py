"""Kills, numbers that are none, and parts that fail."""

import random
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.none import NoDefense
from privkit.domains.partition import ClientPartition
from privkit.errors import TrainingDiverged, UsageError
from privkit.training import Checkpoint, Clients, SplitProtocol, TrainingSpec, evaluate, train
from tests.small import IMAGES, built, digits


class Killed(Exception):
    pass


class Dying(nn.Module):
    """Passes smashed data on and dies at a forward pass."""

    def __init__(self, upper: nn.Module, at: int) -> None:
        super().__init__()
        self.inner, self.left = upper, at

    def forward(self, z: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise Killed
        return self.inner(z)  # type: ignore[no-any-return]


class Eager(Checkpoint):
    """Saves every epoch."""

    def save(self, state: dict[str, object]) -> None:
        self._cost = 0.0
        super().save(state)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_ten_clients_killed_at_a_random_step_end_in_the_same_numbers(tmp_path: Path, seed: int) -> None:
    data, spec, protocol = digits(), TrainingSpec(batch_size=4, augment="crop"), SplitProtocol(clients=10)
    at = random.Random(seed).randrange(2, 12)  # of 12 steps
    make: Callable[[int], tuple[Clients, nn.Module]] = lambda s: built(RandomCutMix(), protocol, s)  # noqa: E731
    straight = make(0)
    curve = train(*straight, data, spec, epochs=4, seed=seed).curve
    edge, upper = make(0)
    dying = Dying(upper, at)
    with pytest.raises(Killed):
        train(edge, dying, data, spec, epochs=4, seed=seed, checkpoint=Renamed(tmp_path / "training.ckpt"))
    resumed = make(5)
    done: list[int] = []
    checkpoint = Checkpoint(tmp_path / "training.ckpt", lambda now, total, value: done.append(now))
    assert train(*resumed, data, spec, epochs=4, seed=seed, checkpoint=checkpoint).curve == curve
    assert done == list(range((at - 1) // 3 + 1, 5))  # it went on where the last whole epoch ended
    for module, other in zip(straight, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


class Renamed(Eager):
    """Takes the dying wrapper's name off the saved weights."""

    def save(self, state: dict[str, object]) -> None:
        upper = {name.removeprefix("inner."): value for name, value in state["upper"].items()}  # type: ignore[attr-defined]
        super().save({**state, "upper": upper})


def test_a_nan_names_its_step_and_its_clients_and_is_never_saved(tmp_path: Path) -> None:
    data, protocol = digits(), SplitProtocol(clients=4)
    edge, upper = built(RandomCutMix(concentration=inf), protocol)  # equal masks: every client is seen at once
    shares = ClientPartition(rows=torch.arange(120).view(4, 30), sizes=torch.full((4,), 30))
    edge.lowers.module.get_parameter("patch_embed.proj.weight").data[2] = float("nan")
    path = tmp_path / "training.ckpt"
    with pytest.raises(TrainingDiverged, match=r"at step 1 of 6, client (2 and \d|\d and 2), before any update"):
        train(edge, upper, data, TrainingSpec(batch_size=10), epochs=2, seed=0, shares=shares, checkpoint=Eager(path))
    assert not path.exists()


def test_bad_batches_name_the_clients() -> None:
    edge, upper = built(NoDefense(), SplitProtocol(clients=10))
    with pytest.raises(UsageError, match="batch_size=20 of 10 clients is more than the 120 private images"):
        train(edge, upper, digits(), TrainingSpec(batch_size=20), epochs=1, seed=0)
    with pytest.raises(UsageError, match="batch_size=2 of 10 clients is more than the 10 test images"):
        evaluate(edge, upper, digits(10), batch_size=2, seed=0)


def test_labels_outside_the_classes_are_refused() -> None:
    edge, upper = built(NoDefense(), SplitProtocol())
    data = digits()
    data.y[7] = 10
    with pytest.raises(UsageError, match=r"labels must lie in 0\.\.9 for 10 classes, got 0\.\.10"):
        train(edge, upper, data, TrainingSpec(batch_size=20), epochs=1, seed=0)


def test_segments_that_fail_are_refused_before_training() -> None:
    class OneAtATime(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(1, -1, *x.shape[1:]).squeeze(0) if len(x) == 1 else x.view(1)

    Clients.build(OneAtATime(), NoDefense(), IMAGES, classes=10, seed=0)  # one client is tried with one image alone
    with pytest.raises(UsageError, match="fails for 3 clients, together and one after another: RuntimeError"):
        Clients.build(OneAtATime(), BatchShuffle(), IMAGES, classes=10, seed=0, protocol=SplitProtocol(clients=3))
