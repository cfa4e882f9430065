"""Groups objects by a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Group things by their key: key -> list of things, both in the order of occurrence.

    >>> grouped(["ab", "b", "ac"], lambda word: word[0])
    {'a': ['ab', 'ac'], 'b': ['b']}
    """
    groups: dict[Key, list[Thing]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups
