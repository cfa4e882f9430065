"""Seeds for modules that draw from torch's global generators, as dropout does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Context manager that seeds the global generators of the CPU and of `device`, and restores them at its end.

    >>> with seeded(torch.device("cpu"), 0):
    ...     first = torch.rand(3)
    >>> with seeded(torch.device("cpu"), 0):
    ...     torch.equal(torch.rand(3), first)
    True
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every device
        for used in devices:
            with torch.cuda.device(used):
                torch.cuda.manual_seed(seed)
        yield
