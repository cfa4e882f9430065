"""Rows that are equal up to rounding are counted together, and no others."""

import pytest
import torch
from torch import Generator

from privkit.torch_utils.alike import multiplicities


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_counts_as_an_exact_comparison_does(seed: int, scale: float) -> None:
    draws = Generator().manual_seed(seed)
    different = torch.randint(-3, 4, (60, 3), generator=draws).float()
    rows = scale * different[torch.randint(60, (400,), generator=draws)]
    expected = rows.unique(dim=0, return_counts=True)[1].tolist()
    noise = 1 + 1e-7 * torch.randn(rows.shape, generator=draws)
    assert sorted(multiplicities(rows)) == sorted(multiplicities(rows * noise)) == sorted(expected)


def test_a_single_row_and_rows_of_zeros() -> None:
    assert multiplicities(torch.rand(1, 4)) == [1]
    assert multiplicities(torch.zeros(7, 2, 2)) == [7]
    assert multiplicities(torch.rand(500, 8, dtype=torch.float16)) == [1] * 500
