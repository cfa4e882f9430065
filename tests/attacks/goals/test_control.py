"""Both controls of an attack that scores, on scores whose areas are known."""

import pytest
import torch
from torch import Tensor

from privkit.attacks.base import Scores
from privkit.attacks.goals.control import planted

TRUTH = torch.arange(20) % 2 == 0
RIGHT, EVEN = TRUTH.double(), torch.zeros(20)


def scored(values: Tensor) -> Scores:
    return Scores(values=values, examples=torch.arange(len(values)))


@pytest.mark.parametrize(
    ("leak", "noise", "passed"),
    [
        (RIGHT, EVEN, [True, True]),
        (EVEN, EVEN, [False, True]),
        (-RIGHT, EVEN, [False, True]),
        (RIGHT, RIGHT, [True, False]),
        (RIGHT, -RIGHT, [True, False]),  # wrong on all of the noise: the attack knows its coins as well
    ],
)
def test_a_leak_is_found_and_noise_has_an_area_of_a_half(leak: Tensor, noise: Tensor, passed: list[bool]) -> None:
    found = planted(scored(leak), TRUTH, scored(noise), TRUTH)
    assert [control.passed for control in found] == passed
