"""The part of a record that a release contains."""

import torch
from torch import Generator, Tensor

from privkit.attacks.goals.control_clients import projected

RECORDS, AWAY = (torch.randn(6, 5, generator=Generator().manual_seed(seed)) for seed in range(2))


def test_an_order_takes_nothing_away() -> None:
    order = torch.randperm(30, generator=Generator().manual_seed(0))
    assert torch.allclose(projected(lambda x: 3 * x.flatten()[order], RECORDS, AWAY), AWAY, atol=1e-4)


def test_what_does_not_cross_is_not_contained() -> None:
    found = projected(lambda x: x[:, ::2].tanh(), RECORDS, AWAY)
    assert torch.allclose(found[:, ::2], AWAY[:, ::2], atol=1e-3)
    assert not found[:, 1::2].any()
    assert not projected(lambda x: torch.zeros(3), RECORDS, AWAY).any()


def test_two_sums_with_other_weights_determine_both_records() -> None:
    def release(x: Tensor) -> Tensor:
        return torch.stack([0.3 * x[0] + 0.7 * x[1], 0.6 * x[0] + 0.4 * x[1]])

    assert torch.allclose(projected(release, RECORDS[:2], AWAY[:2]), AWAY[:2], atol=1e-3)
    once = projected(lambda x: release(x)[0], RECORDS[:2], AWAY[:2])
    assert torch.allclose(release(once)[0], release(AWAY[:2])[0], atol=1e-4)
    assert once.norm() < AWAY[:2].norm()
