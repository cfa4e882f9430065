"""Optimizers and schedules of both sides: torch's own, step for step, and what a side cannot have."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from privkit.defenses import NoDefense
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import TinyDigits
from privkit.errors import UsageError
from privkit.models.vit import VIT_MICRO
from privkit.settings.resolve import resolve
from privkit.training import Clients, OptimizerSpec, TrainingSpec, train
from privkit.training.spec import optimizer_of, schedule_of


def rates(spec: OptimizerSpec, epochs: int, steps: int) -> list[float]:
    optimizer = optimizer_of(spec, [nn.Parameter(torch.zeros(1))])
    schedule = schedule_of(spec, optimizer, epochs, steps)
    seen = []
    for _ in range(epochs * steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_the_cosine_without_warm_up_is_torchs() -> None:
    spec = OptimizerSpec(learning_rate=0.05, schedule="cosine", warm_up=0.0, lowest_rate=2e-4)
    optimizer = optimizer_of(spec, [nn.Parameter(torch.zeros(1))])
    torchs, expected = CosineAnnealingLR(optimizer, T_max=12, eta_min=2e-4), []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        torchs.step()
    assert rates(spec, 3, 4) == pytest.approx(expected, rel=1e-12)


def test_the_rate_rises_in_the_warm_up_and_falls_at_milestones() -> None:
    warm = rates(OptimizerSpec(learning_rate=1.0, schedule="cosine", warm_up=0.4), 2, 5)
    assert warm[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert warm[4:] == sorted(warm[4:], reverse=True)
    steps = rates(OptimizerSpec(learning_rate=1.0, schedule="multi_step", milestones=(1, 3), decay=0.5), 4, 2)
    assert steps == [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert rates(OptimizerSpec(learning_rate=0.3, schedule="constant"), 2, 2) == [0.3] * 4


@pytest.mark.parametrize(
    ("spec", "torchs"),
    [
        (
            OptimizerSpec(optimizer="sgd", momentum=0.9, weight_decay=1e-2),
            (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-2}),
        ),
        (OptimizerSpec(optimizer="sgd"), (torch.optim.SGD, {})),
        (OptimizerSpec(optimizer="adam"), (torch.optim.Adam, {})),
        (OptimizerSpec(), (torch.optim.AdamW, {"weight_decay": 0.05})),
    ],
    ids=["momentum", "sgd", "adam", "adamw"],
)
def test_each_optimizer_steps_as_torchs(
    spec: OptimizerSpec, torchs: tuple[type[torch.optim.Optimizer], dict[str, float]]
) -> None:
    ours, theirs = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    kind, options = torchs
    pair = [(ours, optimizer_of(spec, [ours])), (theirs, kind([theirs], lr=spec.learning_rate, **options))]  # type: ignore[call-arg, arg-type]
    for number in range(4):
        for weight, optimizer in pair:
            weight.grad = torch.tensor([1.0, -2.0, 0.5]) * (number + 1)
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_each_side_has_its_own_optimizer() -> None:
    """One step of plain SGD moves a weight by rate times gradient; a vanishing rate leaves it."""
    pool = TinyDigits().open(None, download=False, train_images=40).train
    data = pool.take(np.arange(40))
    moved = {}
    for rate, upper_rate in ((0.1, 0.1), (0.1, 1e-30)):
        model = VIT_MICRO.build(Images(shape=(1, 8, 8)), 10, positions=True, seed=0)
        edge = Clients.build(model.lower, NoDefense(), Images(shape=(1, 8, 8)), classes=10, seed=0)
        before = [weight.detach().clone() for weight in (*edge.parameters(), *model.upper.parameters())]
        spec = TrainingSpec(
            batch_size=40, optimizer="sgd", schedule="constant", learning_rate=rate, upper_learning_rate=upper_rate
        )
        train(edge, model.upper, data, spec, epochs=1, seed=0)
        after = [*edge.parameters(), *model.upper.parameters()]
        moved[upper_rate] = [bool(((a - b).abs() > 1e-20).any()) for a, b in zip(before, after, strict=True)]
        lower = len(list(edge.parameters()))
    assert all(moved[0.1])
    assert all(moved[1e-30][:lower])
    assert not any(moved[1e-30][lower:])


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ("optimizer=rmsprop", "optimizer should be 'adamw', 'adam' or 'sgd'"),
        ("schedule=cosinus", "schedule should be 'one_cycle', 'constant', 'cosine' or 'multi_step'"),
        ("momentum=0.9", "momentum belongs to sgd, but the optimizer is adamw"),
        ("optimizer=sgd,upper_optimizer=adam,upper_momentum=0.9", "of the upper side, momentum belongs to sgd"),
        ("upper_optimizer=sgd,upper_momentum=1.0", "upper_momentum must be a finite number >= 0 and < 1"),
        ("schedule=multi_step", "multi_step needs milestones"),
        ("schedule=multi_step,milestones=[3,2]", "milestones must be ascending"),
        ("schedule=multi_step,milestones=[1,8]", r"milestones must lie in 1..7 for 8 epochs, got \[1, 8\]"),
        ("milestones=[1]", "milestones belongs to multi_step, but the schedule is one_cycle"),
        ("schedule=cosine,lowest_rate=1.0", "lowest_rate must lie in"),
        ("warm_up=1.5", "warm_up must be a finite number >= 0 and <= 1"),
        ("decay=0.1", "decay belongs to multi_step"),
    ],
)
def test_what_a_side_cannot_have_is_refused(training: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        resolve({"training": training})


def test_options_of_one_side_stay_there() -> None:
    found = resolve(
        {"training": "optimizer=sgd,momentum=0.9,schedule=multi_step,milestones=[2,4],upper_optimizer=adam"}
    )
    assert (found.training.lower.momentum, found.training.upper.momentum) == (0.9, None)
    assert found.training.lower.milestones == found.training.upper.milestones == (2, 4)
    other = TrainingSpec(schedule="multi_step", milestones=[2], upper_schedule="constant")
    assert other.upper.milestones is None
    assert hash(other) == hash(TrainingSpec(schedule="multi_step", milestones=(2,), upper_schedule="constant"))


def test_numbers_may_begin_with_a_point_and_lists_keep_their_commas() -> None:
    found = resolve(
        {"training": "optimizer=sgd,momentum=.9,schedule=multi_step,milestones=[1,2],decay=.5,batch_size=5"}
    )
    assert (found.training.momentum, found.training.milestones, found.training.decay) == (0.9, (1, 2), 0.5)
