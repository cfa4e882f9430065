"""A cache of results learned from the adversary's records, for later attacks that would learn the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable

Made = TypeVar("Made")
_MOST = 2**26  # most stored numbers, 256 MiB in float32; the oldest results are dropped first


@dataclass(frozen=True)
class _Kept:
    made: Any
    seconds: float
    numbers: int


class Memory:
    """A cache of results. The key of a result is a digest of all its inputs. Do not change a returned result in place.

    `spared` counts the seconds (by the clock `now`) that earlier attacks spent on the results that the present attack
    has reused since `begin`. An attack's cost includes these seconds. So the cost does not depend on the order of the
    attacks.

    >>> memory, draws = Memory(), Generator().manual_seed(0)
    >>> def made() -> float:
    ...     print("made")
    ...     return torch.rand((), generator=draws).item()
    >>> start = draws.get_state()
    >>> first, end = memory.recalled(("number", 1), draws, made), draws.get_state()
    made
    >>> _ = draws.set_state(start)
    >>> memory.recalled(("number", 1), draws, made) == first, torch.equal(draws.get_state(), end)
    (True, True)
    """

    def __init__(self, now: Callable[[], float] = process_time) -> None:
        self.now, self.spared = now, 0.0
        self._kept: dict[str, _Kept] = {}
        self._met: set[str] = set()

    def begin(self) -> None:
        """Note that another attack begins, and set `spared` to 0."""
        self.spared, self._met = 0.0, set()

    def recalled(self, given: Sequence[Any], draws: Generator, make: Callable[[], Made]) -> Made:
        """The result of `make`, or of an earlier call with equal inputs. A `NotApplicable` is stored and raised again.

        `given` are all inputs of `make` except `draws`: tensors, generators, and objects whose `repr` describes them
        fully. The generator `draws` ends in the same state whether or not the result is reused.
        """
        key, start = tensor_digest(*given, draws), self.now()
        if (known := self.recall(key)) is None:
            try:
                made: Any = make()
            except NotApplicable as refusal:
                made = refusal
            known = made, draws.get_state()
            self.keep(key, known, self.now() - start)
        made, after = known
        draws.set_state(after)
        if isinstance(made, NotApplicable):
            raise NotApplicable(*made.args)
        result: Made = made
        return result

    def recall(self, key: str) -> Any:
        """The result stored under a digest; None if nothing is stored."""
        if (known := self._kept.get(key)) is None:
            return None
        if key not in self._met:
            self.spared += known.seconds
            self._met.add(key)
        return known.made

    def keep(self, key: str, made: Any, seconds: float) -> None:
        """Store a result and the seconds for computing it, and drop the oldest results if there are too many."""
        self._kept[key] = _Kept(made, seconds, _numbers(made))
        self._met.add(key)
        while sum(kept.numbers for kept in self._kept.values()) > _MOST:
            del self._kept[next(iter(self._kept))]


def tensor_digest(*given: Any) -> str:
    """Hexadecimal SHA-256 of tensors' type, shape and content, generators' states, and the `repr` of other objects."""
    found = hashlib.sha256()
    for part in given:
        tensor = part.get_state() if isinstance(part, Generator) else part
        if isinstance(tensor, Tensor):
            found.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            found.update(f"{part!r};".encode())
    return found.hexdigest()


def _numbers(made: Any) -> int:
    if isinstance(made, Tensor):
        return made.numel()
    parts = made.values() if isinstance(made, dict) else made if isinstance(made, list | tuple) else ()
    return sum(map(_numbers, parts or getattr(made, "__dict__", {}).values()))
