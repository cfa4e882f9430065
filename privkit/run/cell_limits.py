"""Limits on computing one result (one defense, attack and seed): seconds, and memory of its process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from privkit.errors import UsageError
from privkit.torch_utils.alarm import alarm
from privkit.torch_utils.out_of_memory import ran_out
from privkit.torch_utils.undisturbed import undisturbed

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")


class OverLimit(BaseException):
    """Raised if a result exceeds a limit. It is no `Exception`, so that the limited code does not catch it."""


def _written_memory(size: int) -> str:
    return f"{size >> 30}GiB" if size % 2**30 == 0 else f"{size / 2**20:g}MiB"


@contextmanager
def limited(seconds: float | None, memory: int | None) -> Iterator[None]:
    """Context manager that raises `OverLimit` above a limit of seconds or of memory in bytes; None means no limit.

    A timer in this process measures the time. The memory limit (`ulimit -d`) counts the whole process, including
    libraries: an allocation above it fails, but no process is killed. A limit may be reached inside torch's own
    `no_grad`, so shared state of the process is restored afterwards.
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
