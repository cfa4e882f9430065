"""Contains the code of one cell: a user's own code cannot end the process, and time and memory are limited."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from privkit.defenses.chain import stages_of
from privkit.errors import Misbehaved, UsageError
from privkit.run.plan import Cell
from privkit.run.stopping import Stopped
from privkit.settings.config import AuditConfig
from privkit.torch_utils.alarm import alarm
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.undisturbed import undisturbed

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")
_ENDS = "which would end the whole audit; let it return instead, or raise an error"


def is_own_part(spec: object) -> bool:
    """Whether a part (a model, dataset, defense, attack or metric) runs a user's code from outside privkit."""
    return hasattr(spec, "imports") or type(spec).__module__.partition(".")[0] != "privkit"


def has_own_part(config: AuditConfig, cell: Cell) -> bool:
    """Whether a cell (one defense, attack and seed) runs a user's code: recording, model, defense, attack or metric."""
    metrics = config.own_metrics.values()
    specs: list[Any] = [cell.attack.spec, config.model.spec, *stages_of(cell.defense.spec), *metrics]
    return config.recording is not None or any(map(is_own_part, specs))


def runs_own_code(config: AuditConfig) -> bool:
    """Whether the dataset, the model, a metric or a defense of a run is a user's own code."""
    stages = [stage for defense in config.defenses for stage in stages_of(defense.spec)]
    return any(map(is_own_part, (config.dataset.spec, config.model.spec, *stages, *config.own_metrics.values())))


@contextmanager
def contained() -> Iterator[None]:
    """Context manager in which a user's code can neither end the process nor disturb its settings (`undisturbed`).

    An attempt to end the process raises `Misbehaved`, except in C code. Threads that the code starts become daemons.
    """
    start = threading.Thread.start

    def as_daemon(thread: threading.Thread) -> None:
        thread.daemon = True
        start(thread)

    threading.Thread.start = as_daemon  # type: ignore[method-assign, assignment]
    try:
        with unending(), undisturbed():
            yield
    except (Exception, Stopped, OverLimit):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise  # Ctrl-C; under a command Ctrl-C raises Stopped, so a KeyboardInterrupt comes from the part
        raise Misbehaved(f"a part raised {type(error).__name__}({error}), {_ENDS}") from error
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]


@contextmanager
def unending() -> Iterator[None]:
    """Context manager in which `os._exit` raises `Misbehaved` in every thread; child processes can still exit."""
    process, end = os.getpid(), os._exit

    def refused(status: int = 0) -> NoReturn:
        if os.getpid() != process:
            end(status)
        raise Misbehaved(f"a part called os._exit({status}), {_ENDS}")

    os._exit = refused
    try:
        yield
    finally:
        os._exit = end


class OverLimit(BaseException):
    """Raised if a result exceeds a limit. It is no `Exception`, so that `except Exception` in the limited code does not
    catch it."""


def _written_memory(size: int) -> str:
    return f"{size >> 30}GiB" if size % 2**30 == 0 else f"{size / 2**20:g}MiB"


@contextmanager
def limited(seconds: float | None, memory: int | None) -> Iterator[None]:
    """Context manager that raises `OverLimit` above a limit of seconds or of memory in bytes; None means no limit.

    A timer in this process measures the time. The memory limit (`ulimit -d`) counts the whole process, including
    libraries: an allocation above it fails, but no process is killed. The code may be stopped while torch's `no_grad`
    is active, so the shared state of the process is restored afterwards.
    """
    if (seconds is not None or memory is not None) and (resource is None or not hasattr(signal, "setitimer")):
        raise UsageError("cell_seconds and cell_memory need a system with POSIX limits; leave them out")
    timer = nullcontext() if seconds is None else _timer(seconds)
    with undisturbed(environment=False), timer, nullcontext() if memory is None else _ceiling(memory):
        yield


def _timer(seconds: float) -> AbstractContextManager[None]:
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("cell_seconds works in the main thread of a program only; leave it out")
    over = (
        f"took longer than cell_seconds={seconds:g}; give it more, or choose a smaller budget; finished epochs are "
        "kept, and the same command goes on from them"
    )
    return alarm(seconds, lambda: OverLimit(over))


@contextmanager
def _ceiling(memory: int) -> Iterator[None]:
    if (held := _held()) >= memory:
        raise UsageError(
            f"cell_memory={_written_memory(memory)} is less than the {held >> 20} MiB that the libraries and the data "
            "take before a cell begins; give it more"
        )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, before[1]))
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        resource.setrlimit(resource.RLIMIT_DATA, before)
        raise OverLimit(
            f"needed more memory than cell_memory={_written_memory(memory)}; give it more, or choose smaller batches "
            "or fewer images"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _held() -> int:
    try:
        return int(next(x for x in _STATUS.read_text().splitlines() if x.startswith("VmData:")).split()[1]) << 10
    except (OSError, StopIteration):
        return 0
