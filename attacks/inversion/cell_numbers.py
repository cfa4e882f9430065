"""Table rows as numbers for a regression: a dense column is one number, a category is a number for each value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def as_numbers(records: Tensor, columns: Sequence[int]) -> Tensor:
    """Records [N, C] as float numbers [N, P]; other records ([N, ...], without `columns`) are flattened."""
    if not columns:
        return records.flatten(1)
    cells = zip(records.unbind(1), columns, strict=True)
    return torch.cat([nn.functional.one_hot(x.long(), n).to(x) if n else x.unsqueeze(1) for x, n in cells], 1)


def as_cells(numbers: Tensor, columns: Sequence[int]) -> Tensor:
    """Records [N, C] from guessed numbers [N, P] in [0, 1]: each category is the value with the largest number.

    >>> as_cells(torch.tensor([[0.5, 0.1, 0.7, 0.2]]), (0, 3))
    tensor([[0.5000, 1.0000]])
    """
    cells = zip(numbers.split([max(1, n) for n in columns], 1), columns, strict=True)
    return torch.cat([x.argmax(1, keepdim=True).to(x) if n else x for x, n in cells], 1)
