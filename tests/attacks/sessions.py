"""A session that keeps states as a file would and can be cut off, for tests of attacks that go on after a kill."""

import io
from collections.abc import Sequence
from typing import Any, Literal

import torch


class Killed(Exception):
    """Raised by a session to simulate that the process is killed."""


class Session:
    """Keeps the last state, and raises `Killed` after a given number of reports or saves."""

    def __init__(
        self,
        dies_after: int | None = None,
        state: dict[str, Any] | None = None,
        at: Literal["report", "save"] = "report",
    ) -> None:
        self.dies_after, self.at = dies_after, at
        self.state: Any = state
        self.saves, self.reports = 0, list[tuple[int, int, float]]()

    def load(self) -> dict[str, Any] | None:
        return self.state

    def save(self, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        self.state = torch.load(buffer, weights_only=True)
        self.saves += 1
        self._die(self.saves, "save")

    keep = save

    def report(self, done: int, total: int, value: float) -> None:
        self.reports.append((done, total, value))
        self._die(done, "report")

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        return False

    def _die(self, count: int, at: str) -> None:
        if at == self.at and count == self.dies_after:
            raise Killed
