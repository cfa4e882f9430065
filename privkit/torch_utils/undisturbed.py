"""Protects process-wide state (torch's settings, generators, environment) from changes by a user's code."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as modules

from privkit.torch_utils.flushed import flushes

_Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # functions that read and set a setting


def _hooks() -> dict[str, dict[int, Any]]:
    tables = {name: table for name, table in vars(modules).items() if name.startswith("_global_")}
    return {name: dict(table) for name, table in tables.items() if isinstance(table, dict)}


def _set_hooks(before: dict[str, dict[int, Any]]) -> None:
    for name, hooks in before.items():
        table = getattr(modules, name)
        table.clear()
        table.update(hooks)


def _device() -> torch.device:
    """The default device, read from a new tensor, because older torch raises an error after a reset to None."""
    return torch.empty(0).device


def _set_device(before: torch.device) -> None:
    torch.set_default_device(None if before == torch.device("cpu") else before)


def _cuda() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def _set_cuda(before: list[torch.Tensor]) -> None:
    for place, state in enumerate(before):
        torch.cuda.set_rng_state(state, place)


def _set_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def _flag(home: Any, name: str) -> _Setting:
    return partial(getattr, home, name), partial(setattr, home, name)


def _handlers() -> dict[int, Any]:
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if handler is not None}


def _set_handlers(before: dict[int, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


def _timer() -> tuple[float, float]:
    return signal.getitimer(signal.ITIMER_REAL) if hasattr(signal, "getitimer") else (0.0, 0.0)


def _set_timer(before: tuple[float, float]) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, *before)


_SETTINGS: tuple[_Setting, ...] = (
    (_device, _set_device),  # first, since other settings may create tensors on the default device
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, lambda on: torch.set_grad_enabled(on)),
    (torch.is_anomaly_enabled, lambda on: torch.autograd.set_detect_anomaly(on)),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (flushes, torch.set_flush_denormal),
    *(_flag(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
    _flag(torch.backends.mkldnn, "enabled"),
    (_hooks, _set_hooks),
    (np.geterr, lambda given: np.seterr(**given)),
    (random.getstate, random.setstate),
    (os.getcwd, os.chdir),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    *(_flag(sys, name) for name in ("stdin", "stdout", "stderr")),
    (_handlers, _set_handlers),
    (_timer, _set_timer),
)
_GENERATORS: tuple[_Setting, ...] = (
    (torch.random.get_rng_state, torch.random.set_rng_state),
    (_cuda, _set_cuda),
    (np.random.get_state, np.random.set_state),
)


@contextmanager
def undisturbed(*, environment: bool = True) -> Iterator[None]:
    """A context that restores shared state of the process at its end, in case the code inside changed it.

    It restores torch's default type, device, precision, gradient mode, threads, deterministic algorithms and global
    module hooks; the global generators of torch, numpy and Python; the working folder, environment, signal handlers,
    alarm, standard streams and warning filters. Patched functions stay patched.

    Args:
        environment: whether environment variables are restored, too. Use False for imports, since a module may set a
            variable that a library reads later.

    >>> with undisturbed():
    ...     torch.set_default_dtype(torch.float64)
    >>> torch.get_default_dtype()
    torch.float32
    """
    settings = _SETTINGS + _GENERATORS + (((lambda: dict(os.environ)), _set_environment),) * environment
    before = [read() for read, _ in settings]
    try:
        with warnings.catch_warnings():
            yield
    finally:
        for (read, put), value in zip(settings, before, strict=True):
            if (read, put) in _GENERATORS or _differs(read, value):
                put(value)


def _differs(read: Callable[[], Any], before: Any) -> bool:
    """Whether a setting has changed, or can no longer be read (for example a removed working folder)."""
    try:
        return bool(read() != before)
    except OSError:
        return True
