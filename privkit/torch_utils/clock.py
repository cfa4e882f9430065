"""The clock that times training and attacks, for results and for estimates."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time

import torch


def clock(device: torch.device) -> Callable[[], float]:
    """A function that returns this process's CPU seconds over all threads, or elapsed seconds if `device` is a GPU. CPU
    seconds depend little on other work on the machine.
    """
    return perf_counter if device.type == "cuda" else process_time
