"""An alarm that ends a block after a time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def alarm(seconds: float, error: Callable[[], BaseException], *, cpu: bool = False) -> Iterator[None]:
    """Context manager that raises an error if its block takes longer than `seconds`. The error is raised again each
    second, since a destructor may catch it.

    This works only in the main thread of a POSIX system and has no effect elsewhere. The error may be raised anywhere,
    even inside torch's own `no_grad`; `privkit.torch_utils.undisturbed` switches gradients on again.

    Args:
        error: function that creates the error, preferably a `BaseException` that is no `Exception`, so that handlers
            inside the block do not catch it.
        cpu: whether to count CPU seconds of the process instead of elapsed seconds.

    >>> with alarm(0.01, TimeoutError, cpu=True):
    ...     while True:
    ...         pass
    Traceback (most recent call last):
    TimeoutError
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    timer, number = (signal.ITIMER_PROF, signal.SIGPROF) if cpu else (signal.ITIMER_REAL, signal.SIGALRM)

    def ring(number: int, frame: object) -> None:
        raise error()

    before = signal.signal(number, ring)
    signal.setitimer(timer, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
