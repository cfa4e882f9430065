"""Entry points of what is installed, read once from each folder of the Python path, and again after it changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions


def entry_points(group: str) -> Iterator[EntryPoint]:
    """The entry points of a group; of two packages with one name, the first on the Python path counts.

    The same as `importlib.metadata.entry_points`, which opens a file of every installed package at each call.

    >>> "privkit.pytest_plugin" in {entry.name for entry in entry_points("pytest11")}
    True
    """
    met: set[str] = set()
    for folder in sys.path:
        for name, entries in _of(folder, changed(folder)):
            if name not in met:
                met.add(name)
                yield from (entry for entry in entries if entry.group == group)


def changed(folder: str) -> int:
    """When something was last installed into a folder, or removed; 0 if there is none."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=256)
def _of(folder: str, changed: int) -> tuple[tuple[str, tuple[EntryPoint, ...]], ...]:
    """Each package of a folder in one state, and its entry points."""
    return tuple((one._normalized_name, tuple(one.entry_points)) for one in distributions(path=[folder]))  # type: ignore[attr-defined]
