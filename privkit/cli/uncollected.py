"""Imports without a search for garbage, which they do not leave."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, Python does not look for garbage: it would go through all objects of torch again and again as they load.

    That is a seventh of the time in which the settings of a command are read. Memory of what is computed inside may
    stay taken until the end, so nothing large belongs here.

    >>> with uncollected():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
