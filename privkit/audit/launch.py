"""Several workers of one run on this machine: processes of `privkit work`, their progress, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import IO, Any

import torch

from privkit.audit.worker import CellWorker
from privkit.errors import LONGEST, PrivkitError, UsageError
from privkit.run.progress import Progress, duration
from privkit.settings.config import AuditConfig
from privkit.settings.values import as_workers

_GRACE = 20.0
"""Seconds in which a worker that was told to stop ends by itself."""
_LAST_WORDS = 2.0
"""Seconds in which what an ended worker printed is read to its end."""
_LONGEST = 2**20
"""Characters of a line that are read at once."""


class WorkersEnded(PrivkitError):
    """The workers of a run ended before its cells were done; what was finished stays."""

    exit_code = 3


def check(config: AuditConfig, workers: int) -> None:
    """Refuse a number of workers that there cannot be.

    Raises:
        UsageError: with what is allowed.
    """
    as_workers(workers)
    if ":" in config.device:
        raise UsageError(f"--workers {workers} share all GPUs, got --device {config.device}; use --device cuda")
    if not config.settings:
        raise UsageError(
            "workers read the settings of a run; make the configuration with privkit.settings.resolve.resolve"
        )


def devices(kind: str, workers: int) -> list[str]:
    """One device for each worker, in turn: several workers share a GPU if there are fewer.

    Args:
        kind: "cpu" or "cuda".
        workers: how many.

    >>> devices("cpu", 2)
    ['cpu', 'cpu']
    """
    if kind == "cpu":
        return ["cpu"] * workers
    return [f"cuda:{number % torch.cuda.device_count()}" for number in range(workers)]


def work(leader: CellWorker, workers: int) -> None:
    """Let processes of this machine do the cells of a run, until each has a row.

    Args:
        leader: has opened the run.
        workers: how many processes.

    Raises:
        WorkersEnded: if cells are left when the last worker ends; with the sentence of a worker, if one gave it.
    """
    queue = leader.queue
    if len(queue.rows) == len(queue.cells):
        return
    run, told = str(leader.folder.path), _Told(leader.progress, len(queue.rows), len(queue.cells))
    events: SimpleQueue[tuple[int, dict[str, Any] | None]] = SimpleQueue()
    recording = leader.config.recording
    trusted = [word for name in (recording.trust if recording else ()) for word in ("--trust", name)]
    given = [[run, "--device", device, *trusted] for device in devices(leader.device.type, workers)]
    with _processes(given) as processes:
        for number, process in enumerate(processes, start=1):
            Thread(target=_watch, args=(number, process, events), daemon=True).start()
        running = len(processes)
        while running:
            number, event = events.get()
            if event is None:
                running -= 1
                told.gone(number, processes[number - 1].wait())
            else:
                told.event(number, event)
    with leader.folder.exclusive():
        queue.catch_up()
    left = len(queue.cells) - len(queue.rows)
    if left:
        why = "; ".join(told.failures) or "the workers ended with code 0 before the run did"
        raise WorkersEnded(f"{why}: {left} of {len(queue.cells)} cells are left; the same command goes on with them")


@contextmanager
def _processes(arguments: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of `privkit work`, which end with the block; Ctrl-C reaches them through this process alone."""
    processes = []
    try:
        for given in arguments:
            command = [sys.executable, "-m", "privkit", "work", *given, "--json"]
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            if process.poll() is None:
                process.kill()


def _watch(number: int, process: subprocess.Popen[str], events: SimpleQueue[tuple[int, dict[str, Any] | None]]) -> None:
    """Pass on what a worker prints, and that it ended; a process that it left behind may hold its output open."""
    reader = Thread(target=_listen, args=(number, process.stdout, events), daemon=True)
    reader.start()
    process.wait()
    reader.join(_LAST_WORDS)
    events.put((number, None))


def _listen(number: int, stream: IO[str] | None, events: SimpleQueue[tuple[int, dict[str, Any] | None]]) -> None:
    """Pass on what a worker prints: events as they are, other lines as notes. A user's part may print anything."""
    for line in iter(partial(stream.readline, _LONGEST), "") if stream else ():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):  # thousands of brackets are too deep to be read
            event = {"event": "said", "text": line.strip()[:LONGEST]}
        if isinstance(event, dict):
            events.put((number, event))


@dataclass
class _Told:
    """What a user hears of several workers: a line a finished cell, with the time left.

    Attributes:
        progress: of the command.
        done: cells that have a row.
        total: cells of the plan.
        failures: the last words of workers that failed.
    """

    progress: Progress
    done: int
    total: int
    failures: list[str] = field(default_factory=list)
    _before: int = field(init=False)
    _start: float = field(init=False, default_factory=perf_counter)
    _cells: dict[int, tuple[str, float]] = field(init=False, default_factory=dict)
    _said: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._before = self.done

    def event(self, number: int, event: dict[str, Any]) -> None:
        """Tell an event of a worker, if it concerns more than that worker."""
        kind, text = event.get("event"), str(event.get("text", ""))
        if kind == "note":
            self.progress.note(f"worker {number}: {text}")
        elif kind == "said":
            self._said[number] = text.removeprefix("privkit: ")
        elif kind == "cell":
            self._cells[number] = str(event.get("name")), perf_counter()
        elif kind == "cell_end" and number in self._cells:
            name, began = self._cells.pop(number)
            self._ended(number, name, perf_counter() - began, str(event.get("status")).replace("_", " "))

    def _ended(self, number: int, name: str, seconds: float, status: str) -> None:
        """A line for a finished cell."""
        self.done += 1
        rate = (perf_counter() - self._start) / (self.done - self._before)
        left = self.total - self.done
        rest = f", about {duration(rate * left)} left" if left > 0 else ""
        took = f"{status} in {duration(seconds)} by worker {number}"
        self.progress.note(f"cell {self.done} of {self.total}: {name}: {took}{rest}")

    def gone(self, number: int, code: int) -> None:
        """A worker ended."""
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            text = self._said.get(number) or f"worker {number} {how}"
            if text not in self.failures:
                self.failures.append(text)
                self.progress.note(f"worker {number} {how}; the others go on")
