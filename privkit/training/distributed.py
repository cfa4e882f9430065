"""Several processes, each with its part of every client's batch: one average of the gradients over all of them.

The backward pass enters each segment on its own, across the cut, so the wrapper, which expects one forward and one
backward pass, does not fit; one all-reduce of all gradients does.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def processes() -> tuple[int, int]:
    """Rank and number of processes; (0, 1) without torchrun.

    >>> processes()
    (0, 1)
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average `.grad` over all processes in one all-reduce; nothing to do in one process."""
    _, world = processes()
    gradients = [p.grad for p in parameters if p.grad is not None] if world > 1 else []
    if not gradients:
        return
    flat = _flatten_dense_tensors(gradients)
    torch.distributed.all_reduce(flat)
    flat /= world
    for gradient, mean in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
        gradient.copy_(mean)
