"""Equality of tensors in which a NaN equals a NaN."""

from __future__ import annotations

from torch import Tensor


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and the same numbers; NaN counts as equal to NaN.

    >>> import torch
    >>> nan = torch.tensor([1.0, float("nan")])
    >>> same(nan, nan.clone()), same(nan, torch.ones(2)), torch.equal(nan, nan.clone())
    (True, False, False)
    """
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
