"""Training in several processes, each with a batch of every client; gradients are averaged over all processes.

torch's DistributedDataParallel expects one backward pass, but the cut splits it in two. Hence one all-reduce is used.
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
    """Context manager in which this process trains alone, without torchrun's other processes. Inside it, `alone(False)`
    opens a context in which all processes train together again.
    """
    before = _ALONE.set(yes)
    try:
        yield
    finally:
        _ALONE.reset(before)


def leads() -> bool:
    """Whether this process leads: it runs the command, and the other processes wait for its training jobs."""
    return _ALONE.get() and joined_processes()[1] > 1


def processes() -> tuple[int, int]:
    """Rank and number of the processes that train together now; (0, 1) without torchrun."""
    return (0, 1) if _ALONE.get() else joined_processes()


def joined_processes() -> tuple[int, int]:
    """Rank and number of all processes that torchrun started and that joined; (0, 1) without torchrun."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average `.grad` over all processes by one all-reduce; a single process changes nothing."""
    _, world = processes()
    gradients = [p.grad for p in parameters if p.grad is not None] if world > 1 else []
    if not gradients:
        return
    flat = _flatten_dense_tensors(gradients)
    torch.distributed.all_reduce(flat)
    flat /= world
    for gradient, mean in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
        gradient.copy_(mean)
