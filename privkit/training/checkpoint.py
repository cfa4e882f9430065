"""Checkpoints on disk, for training and attacks. The class satisfies `privkit.attacks.base.Session`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from privkit.files.storage import load_state, remove, save_state

_SHARE = 0.02  # largest share of the time that may go into saving
_SECONDS = "seconds of the stage"


class Checkpoint:
    """Saves the state of a training or an attack at intervals, so that it can resume.

    Saving takes at most a fiftieth of the time.

    Args:
        path: the file; None saves nothing.
        report: function called after every epoch with (finished epochs, all epochs, the epoch's loss or other value).
        note: function called before each write, to store the state's provenance.
        seconds: function that returns the seconds spent so far in this process; they are saved with the state.

    Attributes:
        earlier: seconds spent in earlier processes, from the loaded state.
    """

    def __init__(
        self,
        path: Path | None = None,
        report: Callable[[int, int, float], None] | None = None,
        note: Callable[[], object] = lambda: None,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._path, self._report, self._note, self._seconds = path, report, note, seconds
        self.earlier = 0.0
        self._cost, self._saved_at = 0.0, perf_counter()

    def load(self) -> dict[str, Any] | None:
        """Read the last saved state; None if there is none. Raises `StorageError` if the file is damaged."""
        state = None if self._path is None else load_state(self._path)
        self.earlier = 0.0 if state is None else state.pop(_SECONDS, 0.0)
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write `state`, a dictionary of tensors and plain values, if enough time has passed since the last write. So
        saving stays cheap.
        """
        start = perf_counter()
        if (start - self._saved_at) * _SHARE >= self._cost:
            self.keep(state)

    def keep(self, state: dict[str, Any]) -> None:
        """Write the state at once, for example to keep the last good state of a training that diverges."""
        start = perf_counter()
        if self._path is not None:
            self._note()
            save_state(self._path, {**state, _SECONDS: self.earlier + self._seconds()})
            self._saved_at = perf_counter()
            self._cost = self._saved_at - start

    def report(self, done: int, total: int, value: float) -> None:
        """Call the `report` function, if one was given, with (finished epochs, all epochs, the epoch's value)."""
        if self._report is not None:
            self._report(done, total, value)

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        """Return False, which tells an attack not to double its training beyond the planned `epochs`."""
        return False

    def remove(self) -> None:
        """Remove the checkpoint file, after the training or attack has finished."""
        if self._path is not None:
            remove(self._path)
