"""A simulator, its decoder and a discriminator take and give every form of release."""

import pytest
import torch
from torch import Generator

from privkit.attacks.inversion.simulator_networks import Discriminator, Simulator, SimulatorDecoder


@pytest.mark.parametrize(
    "form",
    [(6, 8, 12, 12), (6, 8, 14, 14), (6, 16, 9), (6, 196, 3), (6, 17, 9), (6, 30), (6, 5, 28, 28), (6, 2, 40, 40)],
)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 24)])
def test_networks_for_every_form(form: tuple[int, ...], shape: tuple[int, int, int]) -> None:
    rows = torch.rand(form, generator=Generator().manual_seed(0))
    images = torch.rand(2, *shape)
    assert Simulator(rows, shape, width=4)(images).shape == (2, *form[1:])
    assert SimulatorDecoder(rows, shape, width=4)(rows).shape == (6, *shape)
    assert Discriminator(rows, shape, width=4, classes=3)(rows, torch.arange(6) % 3).shape == (6,)


def test_a_simulator_keeps_below_a_clamp_that_it_saw() -> None:
    """A ReLU's zeros are recognized; a lowest value that comes once is none."""
    rows = torch.randn(50, 8, 4, 4, generator=Generator().manual_seed(0))
    images = torch.rand(20, 1, 8, 8)
    assert Simulator(rows.relu(), (1, 8, 8), width=4)(images).min() == 0
    assert Simulator(rows, (1, 8, 8), width=4).lowest == -torch.inf
