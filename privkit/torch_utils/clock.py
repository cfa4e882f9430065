"""The clock by which stages are timed, in rows and in estimates."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time

import torch


def clock(device: torch.device) -> Callable[[], float]:
    """CPU seconds of this process over all its threads; elapsed seconds if a GPU computes.

    Other work on the machine hardly changes CPU seconds.
    """
    return perf_counter if device.type == "cuda" else process_time
