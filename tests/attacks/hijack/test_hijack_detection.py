"""Honest training must not be flagged, hijacked training must be, and the score is the published one."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import View
from privkit.attacks.goals.learners import OneClient
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.hijack.fsha import FSHA
from privkit.attacks.hijack.hijack_detection import SplitGuard
from tests.small import digits

TAKEN = digits(1_797)
BATCH = 32


def guard(**options: Any) -> SplitGuard:
    return SplitGuard(generator=Generator().manual_seed(0), **options)


class Watchful(OneClient):
    """A client that sends wrong labels in one of ten rounds, does not learn from those, and watches its first layer."""

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            lower = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 4, 3, 1, 1))
        super().__init__(lower, torch.optim.Adam(lower.parameters(), lr=2e-3))
        self.draws, self.fake, self.seen = Generator().manual_seed(seed), False, list[tuple[Tensor, bool]]()

    def send(self) -> tuple[Tensor, Tensor]:
        rows = torch.randint(1_000, (BATCH,), generator=self.draws)
        self.fake = bool(torch.rand(1, generator=self.draws) < 0.1)
        labels = TAKEN.y[rows]
        if self.fake:
            labels = (labels + torch.randint(1, 10, (BATCH,), generator=self.draws)) % 10
        return self.lower(TAKEN.x[rows]), labels

    def learn(self) -> None:
        first = next(self.lower.parameters()).grad
        assert first is not None
        self.seen.append((first.clone(), self.fake))
        if not self.fake:
            super().learn()

    def views(self) -> list[View]:
        return [View(round=0, smashed=self.lower(TAKEN.x[:20]).detach(), labels=TAKEN.y[:20])]


Seen = list[tuple[Tensor, bool]]


def honest(seed: int, rounds: int) -> Seen:
    clients = Watchful(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 + seed)
        upper = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(upper.parameters(), lr=2e-3)

    def answer(view: View) -> Tensor:
        smashed = view.smashed.clone().requires_grad_()
        optimizer.zero_grad()
        assert view.labels is not None
        nn.functional.cross_entropy(upper(smashed), view.labels).backward()
        optimizer.step()
        assert smashed.grad is not None
        return smashed.grad

    for _ in range(rounds):
        clients.round(answer)
    return clients.seen


def hijacked(seed: int) -> Seen:
    clients = Watchful(seed)
    knowledge = ImageObservation(image_shape=(1, 8, 8), batch_size=BATCH, auxiliary=TAKEN.x[1_000:], clients=clients)
    FSHA(epochs=3, width=4, blocks=1).run(replace(knowledge, views=clients.views()), Generator().manual_seed(seed))
    return clients.seen


@pytest.fixture(scope="module")
def runs() -> tuple[list[Seen], list[Seen]]:
    return [honest(seed, 400) for seed in range(3)], [hijacked(seed) for seed in range(6)]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fast", "voting", "average"])
def test_honest_training_is_not_flagged_and_hijacked_training_is(
    policy: Any, runs: tuple[list[Seen], list[Seen]]
) -> None:
    """Each hijacked run is noticed; how low its score falls is a matter of its seed (.16 to .77), their mean is not."""

    def watched(seen: Seen) -> SplitGuard:
        watch = guard(policy=policy, warm_up=100)
        for gradient, fake in seen:
            watch.observe(gradient, fake)
        return watch

    for watch in map(watched, runs[0]):
        assert watch.noticed is None
        assert np.mean(watch.scores[10:]) > 0.9
    led = [watched(seen) for seen in runs[1]]
    noticed = [watch.noticed for watch in led if watch.noticed is not None]
    assert len(noticed) == len(led)
    assert min(noticed) > 100
    assert max(noticed) < 300
    assert np.mean([np.mean(watch.scores) for watch in led]) < 0.9  # what each honest run stays above


def test_the_score_against_its_formula() -> None:
    draws = Generator().manual_seed(1)
    watch, coins = guard(warm_up=0, slope=3.0, power=1.5), Generator().manual_seed(0)
    batches: dict[str, list[np.ndarray]] = {"F": [], "1": [], "2": []}
    for number in range(40):
        gradient = torch.randn(2, 3, generator=draws) + (0.5 if number % 5 else -0.5)
        fake = number % 5 == 0
        half = "F" if fake else "1" if torch.rand(1, generator=coins) < 0.5 else "2"
        batches[half].append(gradient.double().flatten().numpy())
        score = watch.observe(gradient, fake)
        if not fake or not (batches["1"] and batches["2"]):
            assert score is None
            continue
        parts = [batches["F"], batches["1"] + batches["2"], batches["1"], batches["2"]]
        means, norms = [np.mean(p, 0) for p in parts], [np.mean([np.linalg.norm(v) for v in p]) for p in parts]

        def angle(a: np.ndarray, b: np.ndarray) -> float:
            return math.acos(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

        wide, narrow = angle(means[0], means[1]), angle(means[2], means[3])
        far, near = abs(norms[0] - norms[1]), abs(norms[2] - norms[3])
        raw = (wide * far - narrow * near) / (far + near)
        assert score == pytest.approx((1 / (1 + math.exp(-3.0 * raw))) ** 1.5, rel=1e-9)
    assert len(watch.scores) == 7


def fed(scores: list[float], **options: Any) -> SplitGuard:
    """A guard whose scores are given: one wrong batch a round."""
    watch, given = guard(warm_up=0, **options), iter(scores)
    watch._first.add(torch.ones(1))
    watch._second.add(torch.ones(1))
    watch._score = lambda: next(given)  # type: ignore[method-assign]
    for _ in scores:
        watch.observe(torch.ones(1), fake=True)
    return watch


def test_policies() -> None:
    late = [0.1] * 3 + [0.95] * 7
    assert fed(late, policy="fast", patience=3).noticed == 2
    assert fed(late, policy="fast", patience=4).noticed is None
    assert fed(late, policy="average", patience=1, group=2).noticed == 1
    assert fed(late, policy="average", patience=5, group=2).noticed is None
    assert fed([0.95] * 5 + [0.1] * 5, policy="average", patience=1, group=3).noticed == 5
    assert fed([0.1] * 2 + [0.95] * 4, policy="voting", patience=1, group=2).noticed == 1
    assert fed([0.95] * 2 + [0.1] * 2 + [0.95] * 2, policy="voting", patience=1, group=2).noticed is None
    assert fed([0.95] * 2 + [0.1] * 4, policy="voting", patience=1, group=2).noticed == 5
    assert fed([0.1] * 5, policy="voting", patience=6, group=2).noticed is None


def test_rounds_before_the_warm_up_count_but_are_left_out() -> None:
    watch = guard(warm_up=3)
    assert [watch.observe(torch.ones(2), fake=True) for _ in range(3)] == [None] * 3
    assert (watch.rounds, watch._wrong.count) == (3, 0)


def test_gradients_of_zero_have_a_score() -> None:
    watch = guard(warm_up=0)
    for number in range(40):
        watch.observe(torch.zeros(2), fake=number % 4 == 0)
    assert watch.scores[-1] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "slow"),
        ("threshold", 0.0),
        ("threshold", 1.1),
        ("patience", 0),
        ("group", 0),
        ("warm_up", -1),
        ("slope", 0.0),
        ("power", math.nan),
    ],
)
def test_fields_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        guard(**{field: value})


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="round 0 is not finite"):
        guard().observe(torch.tensor([math.nan]), fake=False)
