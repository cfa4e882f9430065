"""Prevents a user's own code from ending an audit's process, and restores shared state afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from privkit.defenses.chain import stages_of
from privkit.errors import Misbehaved
from privkit.run.cell_limits import OverLimit
from privkit.run.plan import Cell
from privkit.run.stopping import Stopped
from privkit.settings.config import AuditConfig
from privkit.torch_utils.undisturbed import undisturbed

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
    """Whether a run executes a user's own code: its dataset, its model, a metric or a defense."""
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
    """Context manager in which `os._exit` raises `Misbehaved` in every thread; child processes may still exit."""
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
