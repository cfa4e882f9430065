"""Signals that stop a command: it says what is kept and how to continue, and exits with 128 + signal number."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # no SIGHUP on Windows
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


class Stopped(BaseException):
    """Raised when a signal stops the command. It is no `KeyboardInterrupt`, which the command-line library would turn
    into a silent exit, and no `Exception`, which would count as a failed computation."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)
        self.kept = ""  # what is kept, in a few words; empty if this is unknown, for example while libraries load

    @property
    def exit_code(self) -> int:
        """The exit code that a shell would give: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self.signal

    @property
    def sentence(self) -> str:
        """A message with the signal, the kept results, and how to continue."""
        by = "Ctrl-C (SIGINT)" if self.signal == signal.SIGINT else self.signal.name
        kept = self.kept or "files that were finished before stay as they are"
        return f"stopped by {by}; {kept}; go on with: {command()}"


@contextmanager
def heeded() -> Iterator[None]:
    """Context manager in which SIGINT, SIGTERM and SIGHUP (unless ignored) raise `Stopped`; the third signal ends the
    process at once."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    count = 0

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal count
        count += 1
        if count == 2:
            for other in _SIGNALS:
                signal.signal(other, signal.SIG_DFL)
        raise Stopped(number)

    for number, handler in before.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def keeping(kept: Callable[[], str]) -> Iterator[None]:
    """Context manager that gives `Stopped` a sentence about the kept results if a signal stops its code."""
    try:
        yield
    except Stopped as stopped:
        stopped.kept = kept()
        raise


def finished_cells(folder: Path, planned: int, twins: int = 0) -> str:
    """A sentence that says how many cells (defense, attack, seed) a stopped run has finished. `planned` cells always
    run. Each of `twins` further cells, on the undefended model, runs only if its attack fails on a defense."""
    if not folder.is_dir():
        return "nothing was begun"
    done = sum(1 for _ in folder.glob("cells/*/result.json"))
    further = f" (up to {planned + twins} if attacks fail)" if twins else ""
    told = f"{folder} keeps {done} of {planned} cells{further}"
    return told if done >= planned + twins else f"{told} and the last epochs of the one that was running"


def command() -> str:
    """The command line of this process, quoted for a shell."""
    program = ["python", "-m", "privkit"] if Path(sys.argv[0]).name == "__main__.py" else ["privkit"]
    return shlex.join([*program, *sys.argv[1:]])
