"""Jobs of submitit as an engine: arrays of Slurm, or processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from privkit.errors import UsageError, one_line


class _Task:
    """A task as a job of submitit; after a time limit or a preemption, the same job starts once more."""

    def __call__(self, task: Callable[[], Any]) -> Any:
        """Do it."""
        return task()

    def checkpoint(self, task: Callable[[], Any]) -> Any:
        """The same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)


class Jobs(Executor):
    """Jobs of submitit, which submits those that come together as one array.

    Args:
        home: folder of its files and logs, which all nodes see.
        options: submitit's parameters, such as partition and time (minutes); `cluster` is slurm, local or debug.
    """

    PAUSE = 0.5
    """Seconds between two looks at the jobs."""

    def __init__(self, home: Path, options: Mapping[str, Any]) -> None:
        options = {"name": "privkit", **options}
        self._executor = submitit().AutoExecutor(home, cluster=options.pop("cluster", None))
        try:
            self._executor.update_parameters(**{self._named(key): value for key, value in options.items()})
        except (NameError, TypeError, ValueError) as error:
            raise UsageError(f"--engine submitit refuses its parameters ({one_line(error)})") from None
        self._queue = _queue() if self._executor.cluster == "slurm" else None
        self._new: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._jobs: dict[Future[Any], Any] = {}
        self._lock, self._over = Lock(), Event()
        Thread(target=self._watch, daemon=True, name="jobs").start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Let the next array hold a task."""
        future: Future[Any] = Future()
        with self._lock:
            self._new.append((future, partial(fn, *args, **named)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the jobs."""
        self._over.set()
        for job in self._jobs.values():
            with suppress(Exception):
                job.cancel(check=False)

    def _named(self, key: str) -> str:
        """A parameter as submitit names it for any cluster, or for Slurm alone."""
        if key == "time":
            return "timeout_min"
        return key if key in self._executor._valid_parameters() or key.startswith("slurm_") else f"slurm_{key}"

    def _watch(self) -> None:
        """Submit and collect, until the block ends."""
        while not self._over.wait(self.PAUSE):
            with self._lock:
                new, self._new = self._new, []
            try:
                jobs = self._executor.map_array(_Task(), [task for _, task in new]) if new else []
                for job in jobs if self._queue else ():
                    job.watcher = self._queue
                self._jobs |= {future: job for (future, _), job in zip(new, jobs, strict=True)}
            except Exception as error:  # sbatch refuses
                for future, _ in new:
                    future.set_exception(error)
            for future, job in list(self._jobs.items()):
                try:
                    if not job.done():
                        continue
                    future.set_result(job.result())
                except Exception as error:  # the job was lost
                    future.set_exception(error)
                del self._jobs[future]


def _queue() -> Any:
    """The states of jobs by Slurm's queue: submitit asks sacct, which knows none on a cluster without accounting."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class Queue(SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            command = ["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i %T"]
            return command if self._registered - self._finished else None

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            text = string if isinstance(string, str) else string.decode()
            states = dict(line.split() for line in text.splitlines())
            return {job: {"State": states.get(job, "GONE")} for job in self._registered - self._finished}

    return Queue(delay_s=60)


def submitit() -> Any:
    """The module submitit, which sets up logging in its jobs alone: here that would close the handlers of others."""
    level = "SUBMITIT_LOG_LEVEL"
    ours = level not in os.environ
    os.environ.setdefault(level, "NOCONFIG")
    try:
        return import_module("submitit")
    except ImportError:
        raise UsageError("--engine submitit needs the package submitit: pip install 'privkit[slurm]'") from None
    finally:
        if ours:
            del os.environ[level]
