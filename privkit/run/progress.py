"""Progress on standard error: a live bar in a terminal, one line a stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Protocol

from privkit.reports.escape import terminal


class Progress(Protocol):
    """What a run tells while it works."""

    def note(self, text: str) -> None:
        """One line that stays."""
        return

    def stage(self, name: str, unit: str = "epochs") -> None:
        """A stage begins; its steps are counted in `unit`."""
        return

    def step(self, done: int, total: int, value: float | None = None) -> None:
        """`done` of `total` steps of the stage, with the newest value of its curve, where it has one."""
        return


class Silent(Progress):
    """Tells nothing: the default of the Python interface."""


class Lines:
    """One line a stage, for logs and CI."""

    def __init__(self) -> None:
        self._name, self._unit, self._start = "", "", perf_counter()

    def note(self, text: str) -> None:
        """Print it."""
        print(terminal(text), file=sys.stderr, flush=True)

    def stage(self, name: str, unit: str = "epochs") -> None:
        """Remember the stage and its start."""
        self._name, self._unit, self._start = name, unit, perf_counter()

    def step(self, done: int, total: int, value: float | None = None) -> None:
        """Print the stage when it is done."""
        if done == total:
            shown = "" if value is None else f"{value:.4f}, "
            self.note(f"{self._name}: {total} {self._unit}, {shown}{perf_counter() - self._start:.1f} s")


class _Bar:
    """A live bar in a terminal."""

    def __init__(self, live: object) -> None:
        self._live: object = live
        self._task: object = None
        self._name = ""

    def note(self, text: str) -> None:
        """Print above the bar."""
        self._live.console.print(terminal(text), highlight=False, markup=False)  # type: ignore[attr-defined]

    def stage(self, name: str, unit: str = "epochs") -> None:
        """Start a new bar."""
        from rich.markup import escape

        self._name = name = escape(terminal(name))  # a column reads markup
        self._task = self._live.add_task(name, total=None)  # type: ignore[attr-defined]

    def step(self, done: int, total: int, value: float | None = None) -> None:
        """Move it."""
        text = self._name if value is None else f"{self._name}  {value:.4f}"
        self._live.update(self._task, completed=done, total=total, description=text)  # type: ignore[attr-defined]


@contextmanager
def shown() -> Iterator[Progress]:
    """The progress that fits standard error."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True)) as live:
        yield _Bar(live)
