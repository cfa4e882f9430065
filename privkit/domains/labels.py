"""Checks of a user's labels: one class number a record, or several labels of 0 and 1."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privkit.errors import DataError


def several(y: Tensor) -> bool:
    """Whether each record has several labels, [N, L] of 0 and 1, instead of one class number."""
    return y.ndim == 2


def check_labels(y: Tensor | NDArray[np.generic]) -> None:
    """Refuse labels that are no class numbers [N], nor 0 and 1 in [N, L], by a `DataError`."""
    values = torch.as_tensor(y)
    if values.ndim not in (1, 2):
        raise DataError(
            f"labels must be [N], one class number a record, or [N, L] of 0 and 1, got {list(values.shape)}"
        )
    if values.ndim == 2:
        if not bool(((values == 0) | (values == 1)).all()):
            raise DataError("several labels a record must be 0 or 1 each; give one class number a record as [N]")
        return
    if values.dtype == torch.bool:
        return
    wrong = (values != values.floor()) | (values < 0) if values.is_floating_point() else values < 0
    if bool(wrong.any()):
        raise DataError(
            f"labels must be whole numbers from 0, got {values[wrong][0].item():g}; number the classes 0, 1, 2, …"
        )
