"""Processes of this machine as an engine, each a pool of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from threading import Lock, Thread
from types import ModuleType
from typing import Any

device = ""
"""The device of this process, if its engine gave it one."""


class Processes(Executor):
    """One pool for each process: a process that is lost takes one task with it.

    Args:
        devices: of each process.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices, self._lock = devices, Lock()
        self._pools: list[ProcessPoolExecutor | None] = [None] * len(devices)
        self._load = [0] * len(devices)
        self._children: dict[int, BaseProcess] = {}  # slot -> its process

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Give a task to the process that has the fewest."""
        with self._lock:
            slot = min(range(len(self._load)), key=self._load.__getitem__)
            self._load[slot] += 1
            inner = self._submitted(slot, partial(fn, *args, **named))
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # nobody cancels what a process does
        inner.add_done_callback(partial(self._ended, slot, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, whatever they do: what they saved stays."""
        for pool in filter(None, self._pools):
            pool.shutdown(wait=False, cancel_futures=True)
        children = list(self._children.values())  # they vanish as they end
        for child in children:
            child.kill()
        for child in children:
            child.join()

    def _submitted(self, slot: int, task: Callable[[], Any]) -> Future[Any]:
        """A task in its pool, which is made anew if its process was lost."""
        with suppress(BrokenExecutor):
            if (pool := self._pools[slot]) is not None:
                return pool.submit(task)
        context = multiprocessing.get_context("spawn")
        before = set(multiprocessing.active_children())
        self._pools[slot] = pool = ProcessPoolExecutor(1, context, _begin, (self._devices[slot],))
        with main_hidden():
            future = pool.submit(task)
        for child in set(multiprocessing.active_children()) - before:
            self._children[slot] = child
        return future

    def _ended(self, slot: int, future: Future[Any], inner: Future[Any]) -> None:
        """Pass on what became of a task; if its process ended, how."""
        with self._lock:
            self._load[slot] -= 1
        if inner.cancelled():
            future.set_exception(CancelledError())
        elif (error := inner.exception()) is None:
            future.set_result(inner.result())
        elif not isinstance(error, BrokenExecutor):
            future.set_exception(error)
        else:
            self._pools[slot], child = None, self._children.pop(slot, None)
            future.set_exception(BrokenExecutor("its process ended at once" if child is None else _end_of(child)))


def _end_of(child: BaseProcess) -> str:
    child.join(5)
    code = child.exitcode
    how = f"was ended by signal {-code}" if code and code < 0 else f"ended with code {code}"
    return f"process {child.pid} {how}"


def _begin(own: str) -> None:
    """In a new process: its device; it ends with its parent, and neither Ctrl-C nor its output disturb the command."""
    global device
    device = own
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    Thread(target=follow, daemon=True, name="parent").start()
    with suppress(AttributeError, OSError):  # not on Windows
        os.setsid()
    os.dup2(2, 1)  # standard output is the command's


@contextmanager
def main_hidden() -> Iterator[None]:
    """Inside, new processes do not import the program that runs: it may be a script that would begin its audit anew."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
