"""The gradient penalty and its parts, each against its definition."""

import itertools
import math

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.hijack.gan import PenaltyNorm, between, gradient_penalty, kinked


@pytest.mark.parametrize("shape", [(3, 2, 4, 4), (3, 4, 6), (3, 5)])
@pytest.mark.parametrize("norm", ["full", "channel"])
def test_the_penalty_against_differences_of_the_discriminator(shape: tuple[int, ...], norm: PenaltyNorm) -> None:
    draws = Generator().manual_seed(0)
    points = torch.randn(shape, generator=draws, dtype=torch.float64)
    weight = torch.randn(7, points[0].numel(), generator=draws, dtype=torch.float64)

    def discriminator(x: Tensor) -> Tensor:
        return torch.tanh(x.flatten(1) @ weight.T).sum(1)

    step, total, count = 1e-6, 0.0, 0
    for row in points:
        slope = torch.zeros_like(row)
        for place in itertools.product(*map(range, row.shape)):
            up, down = row.clone(), row.clone()
            up[place] += step
            down[place] -= step
            slope[place] = (discriminator(up[None]) - discriminator(down[None])).item() / (2 * step)
        if norm == "full":
            norms = [math.sqrt(sum(v * v for v in slope.flatten().tolist()))]
        elif row.ndim == 3:
            norms = [math.sqrt(sum(v * v for v in channel.flatten().tolist())) for channel in slope]
        elif row.ndim == 2:
            norms = [math.sqrt(sum(v * v for v in slope[:, d].tolist())) for d in range(row.shape[1])]
        else:
            norms = [abs(v) for v in slope.tolist()]
        total, count = total + sum((n - 1) ** 2 for n in norms), count + len(norms)
    assert gradient_penalty(discriminator, points, norm).item() == pytest.approx(total / count, rel=1e-6)


def test_the_cheap_kink_has_the_values_and_all_gradients_of_relu() -> None:
    x = torch.randn(50, generator=Generator().manual_seed(0), requires_grad=True)
    assert torch.equal(kinked(x), torch.relu(x))
    for f in (kinked, torch.relu):
        (slope,) = torch.autograd.grad(f(x).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), x)
        torch.testing.assert_close(slope, 3 * x.detach().clamp_min(0) ** 2)
        torch.testing.assert_close(second, 6 * x.detach().clamp_min(0))


def test_points_lie_between() -> None:
    real, fake = torch.zeros(1_000, 2), torch.ones(1_000, 2)
    points = between(real, fake, Generator().manual_seed(0))
    assert torch.equal(points[:, 0], points[:, 1])
    assert points.mean().item() == pytest.approx(0.5, abs=0.03)
