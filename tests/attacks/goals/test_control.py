"""Controls of attacks that score: a planted leak must be found, and noise must say nothing, on either side of 1/2."""

from typing import Any, cast

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, Scores, Session
from privkit.attacks.goals.control import planted
from privkit.attacks.goals.distinguish import CanaryObservation, controls

TRUTH = torch.arange(100) < 50


def scores(auc: float) -> Scores:
    """Of which a positive one exceeds a negative one with this probability: the rest lies below all of them."""
    values: Tensor = torch.where(TRUTH, 1.0, 0.0)
    values[: round(50 * (1 - auc))] = -1.0
    return Scores(values=values, examples=torch.arange(100))


@pytest.mark.parametrize(("auc", "passed"), [(0.38, False), (0.42, True), (0.5, True), (0.58, True), (0.62, False)])
def test_noise_must_be_told_apart_on_neither_side(auc: float, passed: bool) -> None:
    leak, noise = planted(scores(1.0), TRUTH, scores(auc), TRUTH)
    assert leak.passed
    assert noise.passed == passed
    assert f"{auc:.3f}" in noise.detail


@pytest.mark.parametrize(("auc", "passed"), [(0.1, False), (0.88, False), (0.92, True)])
def test_a_planted_leak_must_be_found(auc: float, passed: bool) -> None:
    assert planted(scores(auc), TRUTH, scores(0.5), TRUTH)[0].passed == passed


class Repeating:
    """Draws what the control draws, and answers with the coins."""

    needs: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    mounting: Any = Mounting()
    name, goal, on = "repeating", "distinguish", "smashed"

    def run(self, observation: CanaryObservation, generator: Generator, session: Session | None = None) -> Scores:
        torch.randn(2, *observation.present.shape, generator=generator)
        coins = torch.rand(len(observation.present), generator=generator) < 0.5
        return Scores(values=coins.float(), examples=torch.arange(len(coins)))


def test_an_attack_cannot_repeat_the_coins_of_its_control() -> None:
    leak, noise = controls(cast(Any, Repeating()), 0)
    assert noise.passed, noise.detail
    assert not leak.passed
