"""Building blocks of `benchmarks/gpu.py`: its setting, units, goals, and a clock that times an attack's epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch
from limits import PEAKS, card_of

from privkit.attacks.base import NoSession

Values = dict[str, Any]
"""The measured values of a unit by name; "goals" has a list of results of `goal`."""
Unit = tuple[str, Callable[[], Values]]
"""Name of a unit (one row of results), and the function that measures it."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Device, size and time limit of a part of the GPU benchmark.

    Attributes:
        device: "cpu" or "cuda".
        tiny: whether to use toy sizes.
        data_root: folder with MNIST; None for 5,000 digits.
        ends: the time of `time.monotonic` at which the part must end.
    """

    device: torch.device
    tiny: bool
    data_root: str | None
    ends: float

    @property
    def left(self) -> float:
        """Seconds that are left to the part."""
        return self.ends - monotonic()

    def synchronize(self) -> None:
        """Wait until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak(self) -> tuple[float, float] | None:
        """Peak operations and bytes per second of this device; None if they are not in `PEAKS`."""
        card = card_of(torch.cuda.get_device_name()) if self.device.type == "cuda" else None
        return None if card is None else PEAKS[card]


def goal(says: str, value: float, *, most: float | None = None, least: float | None = None) -> Values:
    """A performance goal (at most `most`, or at least `least`) with the measured value, and whether it is met.

    >>> goal("ratio", 1.04, most=1.05)
    {'goal': 'ratio ≤ 1.05', 'value': 1.04, 'met': True}
    """
    met = (most is None or value <= most) and (least is None or value >= least)
    bound = f"≤ {most:g}" if most is not None else f"≥ {least:g}"
    return {"goal": f"{says} {bound}", "value": value, "met": met}


class Enough(Exception):
    """Ends an attack after the wanted number of epochs was timed."""


class Stopwatch(NoSession):
    """Notes when each epoch of an attack ends, and raises `Enough` after `epochs` epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.ended, self.total = epochs, [perf_counter()], 0

    def report(self, done: int, total: int, value: float) -> None:
        """Note the time."""
        self.ended.append(perf_counter())
        self.total = total
        if len(self.ended) > self.epochs:
            raise Enough

    def epoch_seconds(self) -> float:
        """Median seconds of an epoch; the first epoch, which warms up, counts only if there is no other."""
        spans = [after - before for before, after in pairwise(self.ended)]
        return median(spans[1:] or spans)


class Memory(Stopwatch):
    """A stopwatch that keeps the attack's state, so that a second call with more epochs continues."""

    state: dict[str, Any] | None = None

    def load(self) -> dict[str, Any] | None:
        """The state that was kept last."""
        return self.state

    def save(self, state: dict[str, Any]) -> None:
        """Keep this state."""
        self.state = state
