"""Engines that compute the results of a run: any `concurrent.futures.Executor`, named by `--engine`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Lock, Thread
from types import ModuleType
from typing import Any

from privkit.errors import PrivkitError, UsageError, one_line, unknown
from privkit.files.import_path import imported
from privkit.parts.registry import read_options

device = ""  # the device of this process, if its engine gave it one


class Processes(Executor):
    """An executor with one pool of a single process for each device, so that a lost process loses only its own task."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices, self._lock = devices, Lock()
        self._pools: list[ProcessPoolExecutor | None] = [None] * len(devices)
        self._load = [0] * len(devices)
        self._children: dict[int, BaseProcess] = {}  # slot -> its process

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        with self._lock:
            slot = min(range(len(self._load)), key=self._load.__getitem__)
            self._load[slot] += 1
            inner = self._submitted(slot, partial(fn, *args, **named))
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # a task in a process cannot be canceled
        inner.add_done_callback(partial(self._ended, slot, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for pool in filter(None, self._pools):
            pool.shutdown(wait=False, cancel_futures=True)
        children = list(self._children.values())  # copied, since ended processes are removed
        for child in children:
            child.kill()
        for child in children:
            child.join()

    def _submitted(self, slot: int, task: Callable[[], Any]) -> Future[Any]:
        """Submit a task to its slot's pool; the pool is created again if its process was lost."""
        with suppress(BrokenExecutor):
            if (pool := self._pools[slot]) is not None:
                return pool.submit(task)
        context = multiprocessing.get_context("spawn")
        before = set(multiprocessing.active_children())
        self._pools[slot] = pool = ProcessPoolExecutor(1, context, _begin, (self._devices[slot],))
        with _main_hidden():
            future = pool.submit(task)
        for child in set(multiprocessing.active_children()) - before:
            self._children[slot] = child
        return future

    def _ended(self, slot: int, future: Future[Any], inner: Future[Any]) -> None:
        """Pass on the outcome of a task; if the task's process died, the error says how."""
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
    """Set up a new process: it uses the device `own`, ends with its parent, ignores Ctrl-C, prints to stderr only."""
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
    os.dup2(2, 1)  # only the command writes to standard output


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Context manager in which new processes do not import the running program, which could start its audit again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Task:
    """A task as a submitit job; the same job starts again after a time limit or a preemption."""

    def __call__(self, task: Callable[[], Any]) -> Any:
        return task()

    def checkpoint(self, task: Callable[[], Any]) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)


class _Jobs(Executor):
    """An executor of submitit jobs; jobs that are submitted together become one job array. The folder `home` holds the
    jobs' files and logs, and must be visible to all nodes. `options` are submitit's parameters; the option `cluster`
    is slurm, local or debug."""

    PAUSE = 0.5
    """Seconds between two checks of the jobs."""

    def __init__(self, home: Path, options: Mapping[str, Any]) -> None:
        options = {"name": "privkit", **options}
        self._executor = _submitit_module().AutoExecutor(home, cluster=options.pop("cluster", None))
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
        future: Future[Any] = Future()
        with self._lock:
            self._new.append((future, partial(fn, *args, **named)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._over.set()
        for job in self._jobs.values():
            with suppress(Exception):
                job.cancel(check=False)

    def _named(self, key: str) -> str:
        """submitit's name of the parameter `key`; a parameter that only Slurm has gets the prefix `slurm_`."""
        if key == "time":
            return "timeout_min"
        return key if key in self._executor._valid_parameters() or key.startswith("slurm_") else f"slurm_{key}"

    def _watch(self) -> None:
        while not self._over.wait(self.PAUSE):
            with self._lock:
                new, self._new = self._new, []
            try:
                jobs = self._executor.map_array(_Task(), [task for _, task in new]) if new else []
                for job in jobs if self._queue else ():
                    job.watcher = self._queue
                self._jobs |= {future: job for (future, _), job in zip(new, jobs, strict=True)}
            except Exception as error:  # sbatch refused the jobs
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
    """A watcher that reads job states from Slurm's queue; submitit's own watcher needs Slurm's accounting (sacct)."""
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


def _submitit_module() -> Any:
    """Import submitit without its logging setup, which would close other log handlers of this process. In the jobs,
    the setup still runs."""
    level = "SUBMITIT_LOG_LEVEL"
    ours = level not in os.environ
    os.environ.setdefault(level, "NOCONFIG")
    try:
        return _module("submitit", "submitit", extra="slurm")
    finally:
        if ours:
            del os.environ[level]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The requirements of a run on its engine."""

    devices: Sequence[str]  # one device for each worker
    threads: int  # threads of each worker
    run: Path  # the run folder


_Factory = Callable[[str, Wanted], Iterator[Executor]]
"""(text after the engine's name and a colon, requirements of the run) -> an iterator that yields the executor."""


def _dask(address: str, wanted: Wanted) -> Iterator[Executor]:
    distributed = _module("distributed", "dask")
    with ExitStack() as closes:
        if not address:
            logging.getLogger("distributed").setLevel(logging.CRITICAL)  # the run reports lost workers
            # a run counts the workers lost by each cell: Dask reports each loss, and gives a worker one cell at a time
            told = {"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-saturation": 1.0}
            with _main_hidden(), import_module("dask").config.set(told):
                cluster = distributed.LocalCluster(
                    n_workers=len(wanted.devices), threads_per_worker=1, dashboard_address=None
                )
            closes.callback(cluster.close)
        client = distributed.Client(address or cluster)
        closes.callback(client.close)
        yield client.get_executor(pure=False)


def _mpi(given: str, wanted: Wanted) -> Iterator[Executor]:
    yield _module("mpi4py.futures", "mpi").MPIPoolExecutor()


def _submitit(given: str, wanted: Wanted) -> Iterator[Executor]:
    options = {"cpus_per_task": wanted.threads, **read_options(given, given, "submitit")}
    yield _Jobs(wanted.run.with_name(f"{wanted.run.name}.jobs"), options)


ENGINES: dict[str, _Factory] = {"dask": _dask, "mpi": _mpi, "submitit": _submitit}
"""Engine name -> the function that makes the executor. Without a name, the processes of `--workers` compute."""


def check_engine(named: str | None) -> None:
    """Raise `UsageError` if `named` is neither an engine of `ENGINES` nor a "module:factory"."""
    name, colon, _ = (named or "").partition(":")
    if named and name not in ENGINES and not colon:
        raise unknown("engine", named, [*ENGINES, "module:factory"])


@contextmanager
def engine(named: str | None, wanted: Wanted) -> Iterator[Executor]:
    """Context manager that yields a run's executor. `named` is NAME or NAME:options of `ENGINES`, "module:factory", or
    None for local processes."""
    check_engine(named)
    name, _, rest = (named or "").partition(":")
    with ExitStack() as closes:
        try:
            if named is None:
                executor: Executor = Processes(wanted.devices)
            elif name in ENGINES:
                executor = closes.enter_context(contextmanager(ENGINES[name])(rest, wanted))
            else:
                executor = imported("the engine", named)()
        except PrivkitError:
            raise
        except Exception as error:
            raise UsageError(f"--engine {named} did not start ({one_line(error)})") from None
        if not isinstance(executor, Executor):
            raise UsageError(f"--engine {named} gave {type(executor).__name__}, which is not a futures Executor")
        closes.callback(executor.shutdown, wait=False)
        yield executor


def _module(name: str, engine: str, extra: str = "") -> Any:
    try:
        return import_module(name)
    except ImportError:
        command = f"pip install 'privkit-sl[{extra or engine}]'"
        raise UsageError(f"--engine {engine} needs the package {name.partition('.')[0]}: {command}") from None
