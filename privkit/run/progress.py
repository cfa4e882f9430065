"""Shows progress as a live line in a terminal, as plain lines elsewhere, or as events for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from time import perf_counter
from typing import Any

from privkit.reports.escape import terminal, terminal_json

_SILENCE = 30.0  # seconds after which a log says that a stage is still running


class Progress:
    """Base class of displays of a run's progress. It shows nothing; the Python interface uses it by default."""

    def note(self, text: str) -> None:
        """Show one line permanently."""

    def cell(self, number: int, total: int, name: str) -> None:
        """Report that cell (defense, attack, seed) `number` of `total` begins, counted from 1 in the whole run."""

    def ended(self, status: str) -> None:
        """Note how a cell (defense, attack, seed) ended: "done", "not_applicable" or "error"."""

    def stage(self, name: str, unit: str = "epochs") -> None:
        """Note that training or an attack begins; its steps are counted in `unit`."""

    def step(self, done: int, total: int, value: float | None = None) -> None:
        """Note that `done` of `total` steps are finished, and the newest `value` of their curve, such as the loss."""


def duration(seconds: float) -> str:
    """A time in words, such as "1 min 15 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Lines(Progress):
    """Plain lines for logs and CI: one for each training and attack, and one every 30 seconds if these take long."""

    def __init__(self) -> None:
        self._begun = self._cell_start = self._start = self._heard = perf_counter()
        self._name = self._unit = self._cell = ""
        self._first, self._number, self._total = 0, 0, 0

    def note(self, text: str) -> None:
        print(terminal(text), file=sys.stderr, flush=True)
        self._heard = perf_counter()

    def cell(self, number: int, total: int, name: str) -> None:
        self._cell_start, self._number, self._total = perf_counter(), number, total
        self._cell = f"cell {number} of {total}: {name}"
        self._first = self._first or number
        self.begun(self._cell)

    def begun(self, cell: str) -> None:
        """Print a line that a cell (defense, attack, seed) begins."""
        self.note(cell)

    def ended(self, status: str) -> None:
        """Print the time of a cell (defense, attack, seed), and the estimated time for the remaining cells."""
        now, finished = perf_counter(), self._number - self._first + 1
        left = (now - self._begun) / finished * (self._total - self._number)
        rest = f", about {duration(left)} left" if self._number < self._total else ""
        self.note(f"{self._cell}: {status.replace('_', ' ')} in {duration(now - self._cell_start)}{rest}")

    def stage(self, name: str, unit: str = "epochs") -> None:
        self._name, self._unit, self._start = name, unit, perf_counter()

    def step(self, done: int, total: int, value: float | None = None) -> None:
        now = perf_counter()
        if done == total or now - self._heard > _SILENCE:
            steps = f"{total}" if done == total else f"{done} of {total}"
            shown = "" if value is None else f"loss {value:.4f}, "
            unit = self._unit.removesuffix("s") if total == 1 else self._unit
            self.note(f"{self._name}: {steps} {unit}, {shown}{now - self._start:.1f} s")


class _Bar(Lines):
    """A live line in a terminal with the current defense, attack and steps; finished results stay as lines above it."""

    def __init__(self, live: Any) -> None:
        super().__init__()
        self._live, self._task, self._shown = live, live.add_task("", total=None), ""

    def note(self, text: str) -> None:
        self._live.console.print(terminal(text), highlight=False, markup=False)

    def begun(self, cell: str) -> None:
        pass

    def stage(self, name: str, unit: str = "epochs") -> None:
        where = f"cell {self._number} of {self._total}: " if self._number else ""
        self._shown = where + terminal(name)
        self._live.reset(self._task, total=None, description=self._shown)

    def step(self, done: int, total: int, value: float | None = None) -> None:
        text = self._shown if value is None else f"{self._shown}  {value:.4f}"
        self._live.update(self._task, completed=done, total=total, description=text)


class Events(Progress):
    """Prints one JSON object per line on standard output, such as {"event": "cell", …}; NaN and inf become strings."""

    def note(self, text: str) -> None:
        event("note", text=text)

    def cell(self, number: int, total: int, name: str) -> None:
        event("cell", number=number, total=total, name=name)

    def ended(self, status: str) -> None:
        event("cell_end", status=status)

    def stage(self, name: str, unit: str = "epochs") -> None:
        event("stage", name=name, unit=unit)

    def step(self, done: int, total: int, value: float | None = None) -> None:
        event("step", done=done, total=total, value=value if value is None or isfinite(value) else str(value))


def event(kind: str, **fields: object) -> None:
    """Print one event as a JSON line."""
    print(terminal_json(json.dumps({"event": kind, **fields})), flush=True)


@contextmanager
def progress_display() -> Iterator[Progress]:
    """Context manager that yields the progress display that suits standard error: live, or plain lines."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    text = TextColumn("{task.description}", markup=False)  # markup has pictures, such as :Hushed:
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True, emoji=False), transient=True) as live:
        yield _Bar(live)
