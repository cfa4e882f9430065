"""Several processes, each with its part of every client's batch: gradients are averaged as in DistributedDataParallel.

The backward pass enters each segment on its own, across the cut, so the wrapper, which expects one forward and one
backward pass, does not fit; one all-reduce of all gradients does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


@contextmanager
def process_group(device: str = "cpu") -> Iterator[torch.device]:
    """Join the processes that torchrun started, inside; without torchrun, one process by itself.

    Args:
        device: "cpu" (gloo) or "cuda" (NCCL, one device a process).

    Yields:
        This process's device.

    >>> with process_group() as device:
    ...     device, processes()
    (device(type='cpu'), (0, 1))
    """
    if "WORLD_SIZE" not in os.environ:
        yield torch.device(device)
        return
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        yield torch.device(device)
    finally:
        torch.distributed.destroy_process_group()


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
