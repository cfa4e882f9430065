"""A captured step of training gives the numbers of the step itself; one that cannot be captured runs as it is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privkit.defenses.base import Defense
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.clip import Bounded
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.none import NoDefense
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.training import Checkpoint, Clients, SplitProtocol, TrainingSpec, train
from privkit.training.graph import Graphed

pytestmark = pytest.mark.gpu
SHAPE = (1, 8, 8)


class Own(nn.Module):
    """A module of a user, which might count its calls."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@dataclass
class Found:
    weights: Tensor
    curve: tuple[float, ...]
    captured: list[bool]


def trained(
    monkeypatch: pytest.MonkeyPatch,
    *,
    captures: bool,
    defense: Defense | None = None,
    protocol: SplitProtocol | None = None,
    spec: dict[str, Any] | None = None,
    inside: nn.Module | None = None,
    checkpoint: Checkpoint | None = None,
) -> Found:
    """Four epochs of six steps, float32."""
    protocol = protocol or SplitProtocol()
    made: list[Graphed] = []

    class Seen(Graphed):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr("privkit.training.loop.Graphed", Seen)
    monkeypatch.setattr("privkit.training.loop.CAPTURE_FROM_STEPS", 1 if captures else 10**9)
    numbers = torch.arange(60 * protocol.clients)
    draws = torch.Generator().manual_seed(1)
    data = Batch(x=torch.rand(len(numbers), *SHAPE, generator=draws), y=numbers % 10, ids=numbers).to(
        torch.device("cuda")
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lower = nn.Sequential(nn.Conv2d(1, 16, 2, 2), nn.Dropout(0.1), *filter(None, [inside]), nn.Flatten(2))
        upper = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    edge = Clients.build(
        lower, defense or NoDefense(), Images(shape=SHAPE), classes=10, seed=0, protocol=protocol
    ).cuda()
    training = TrainingSpec(batch_size=10, precision="float32", **(spec or {}))
    result = train(edge, upper.cuda(), data, training, epochs=4, seed=0, checkpoint=checkpoint)
    weights = torch.cat([p.detach().flatten() for p in (*result.edge.parameters(), *result.upper.parameters())])
    return Found(weights=weights, curve=result.curve, captured=[one.captured for one in made])


CASES: dict[str, dict[str, Any]] = {
    "one client": {},
    "augmented": {"spec": {"augment": "crop"}},
    "sgd, milestones": {
        "spec": {
            "optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.05, "schedule": "multi_step", "milestones": [1, 3]
        }
    },
    "batch shuffling": {"defense": BatchShuffle()},
    "mixing, groups at random": {
        "defense": RandomCutMix(group=2), "protocol": SplitProtocol(clients=4, grouping="random")
    },
    "mixing, round robin": {
        "defense": RandomCutMix(group=2), "protocol": SplitProtocol(clients=4, grouping="round_robin")
    },
    "averaged every round": {"protocol": SplitProtocol(clients=3, average="round")},
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_a_captured_training_has_the_numbers_of_a_plain_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, captured = (trained(monkeypatch, captures=captures, **CASES[case]) for captures in (False, True))
    assert plain.captured == []
    assert captured.captured == [True]
    assert captured.curve == pytest.approx(plain.curve, rel=1e-4)  # other draws or rates would change more
    torch.testing.assert_close(captured.weights, plain.weights, atol=1e-3, rtol=1e-2)


def test_a_module_of_a_user_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(monkeypatch, captures=True, inside=Own()).captured == []


def test_a_step_that_waits_for_the_host_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of smashed data are looked at in each round."""
    defense = Bounded(bound="cut")
    plain, tried = (
        trained(monkeypatch, captures=captures, inside=nn.Tanh(), defense=defense) for captures in (False, True)
    )
    assert tried.captured == [False]
    assert tried.curve == pytest.approx(plain.curve, rel=1e-4)


class Killed(Exception):
    pass


class Dying(Checkpoint):
    def report(self, done: int, total: int, value: float) -> None:
        if done == 2:
            raise Killed


def test_a_captured_training_goes_on_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(monkeypatch, captures=True, **CASES["sgd, milestones"])
    with pytest.raises(Killed):
        trained(monkeypatch, captures=True, checkpoint=Dying(tmp_path / "ckpt"), **CASES["sgd, milestones"])
    resumed = trained(monkeypatch, captures=True, checkpoint=Checkpoint(tmp_path / "ckpt"), **CASES["sgd, milestones"])
    assert resumed.curve == pytest.approx(whole.curve, rel=1e-4)
