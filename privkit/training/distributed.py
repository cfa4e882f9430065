"""Training in several processes, each with a batch of every client; gradients are averaged once over all of them.

torch's wrapper expects one forward and one backward pass, but the cut splits the backward pass by segments. So one
all-reduce averages all gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

_ALONE = ContextVar("alone", default=False)


@contextmanager
def alone(yes: bool = True) -> Iterator[None]:
    """A block in which this process trains alone, although others have joined; `alone(False)` ends this inside it."""
    before = _ALONE.set(yes)
    try:
        yield
    finally:
        _ALONE.reset(before)


def leads() -> bool:
    """Whether this process leads: the others wait for it to send them trainings."""
    return _ALONE.get() and joined_processes()[1] > 1


def processes() -> tuple[int, int]:
    """Rank and number of the processes that train together now; (0, 1) without torchrun."""
    return (0, 1) if _ALONE.get() else joined_processes()


def joined_processes() -> tuple[int, int]:
    """Rank and number of all processes that joined."""
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
