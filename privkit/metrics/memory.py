"""Peak memory of a computation: torch's own counter on CUDA, the live tensors on a CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def peak_memory(work: Callable[[], object], resident: Iterable[Tensor], device: torch.device) -> int:
    """Most bytes in use at one time while `work` runs, the resident tensors included.

    On CUDA it is `max_memory_allocated` (whose running maximum is reset), after one run that is not counted, so that
    cuBLAS has its workspace already. A CPU has no such counter: every tensor that an operation returns is counted from
    then until its storage is freed. That equals the peak that torch's profiler sees in the CPU allocator, but for what
    a kernel borrows inside one call (convolutions do), which differs from processor to processor.

    Args:
        work: called once on a CPU and twice on CUDA; it must free what it allocates.
        resident: tensors that are there before and during the work, such as weights and images.
        device: where the work is done.

    Source: torch.cuda.max_memory_allocated; the CPU's meter is torch.distributed._tools.MemTracker without its module
    hooks.

    >>> x = torch.zeros(1000)
    >>> peak_memory(lambda: (x + 1).sum(), [x], torch.device("cpu"))
    8004
    """
    tensors = list(resident)
    if device.type == "cuda":
        work()
        others = torch.cuda.memory_allocated(device) - sum(t.untyped_storage().nbytes() for t in tensors)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return torch.cuda.max_memory_allocated(device) - others
    meter = _LiveTensors()
    for tensor in tensors:
        meter.see(tensor)
    with meter:
        work()
    return meter.peak


class _LiveTensors(TorchDispatchMode):
    """Sums the storages of living tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no annotation
        self.alive: set[int] = set()
        self.bytes = self.peak = 0

    def see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if (key := storage._cdata) not in self.alive:  # views share a storage
            self.alive.add(key)
            self.bytes += (size := storage.nbytes())
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._gone, key, size).atexit = False

    def _gone(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.bytes -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                self.see(value)
        return result
