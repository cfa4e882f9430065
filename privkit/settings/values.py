"""Checks of single settings: each turns a value from a flag, a TOML file or Python into its final form."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privkit.errors import LONGEST, UsageError, shortened
from privkit.metrics.feature_names import check_names
from privkit.parts.registry import read_options, specify

if TYPE_CHECKING:
    from privkit.reports.gate import Gate

_UNITS = {"M": 2**20, "G": 2**30}
_MOST_SECONDS, _MOST_BYTES = 1e9, 2**60  # larger ones overflow the operating system's limits
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def _must_be(what: str, fits: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a function that returns a setting's value if it fits, and otherwise raises `UsageError` with `what`."""

    def checked(given: Any) -> Any:
        if not fits(given):
            raise UsageError(f"{what}, got {shortened(given)}")
        return given

    return checked


def no_array(name: str, given: Any, depth: int = 6) -> None:
    """Raise `UsageError` if a setting is an array (of NumPy, PyTorch or pandas), or holds one."""
    if getattr(given, "ndim", 0):
        raise UsageError(
            f"{name} takes texts, numbers, and lists or tables of them, got {' '.join(shortened(given).split())}; make "
            "a list of the array with its method tolist"
        )
    inner = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else ()
    for one in inner if depth else ():
        no_array(name, one, depth - 1)


def as_folder(name: str) -> Callable[[Any], Path]:
    """Make a function that turns a setting into a folder; `~` is the user's home."""
    checked = _must_be(f"{name} must be the path of a folder", lambda given: isinstance(given, str | Path))
    return lambda given: Path(checked(given)).expanduser()


def as_switch(name: str) -> Callable[[Any], Any]:
    """Make a function that checks that a setting is a bool."""
    return _must_be(f"{name} must be true or false", lambda given: isinstance(given, bool))


def as_count(name: str, most: int = 1024, least: int = 1) -> Callable[[Any], Any]:
    """Make a function that checks that a setting is a whole number from `least` to `most`."""
    what = f"{name} must be a whole number from {least} to {most}"
    return _must_be(what, lambda given: type(given) is int and least <= given <= most)


as_seconds = _must_be(
    "cell_seconds must be a number of seconds above 0 and at most 1e9",
    lambda given: type(given) in (int, float) and 0 < given <= _MOST_SECONDS,
)
as_delta = _must_be(
    "delta must be a number in (0, 1), such as 1e-5", lambda given: isinstance(given, float) and 0 < given < 1
)
as_victims = _must_be("victims must be private or test", lambda given: given in ("private", "test"))
as_device = _must_be(
    "device must be auto, cpu, cuda, or cuda:0, cuda:1, …",
    lambda given: isinstance(given, str) and re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?", given),
)


def as_many(value: Any) -> Sequence[Any]:
    """Return a list or tuple as it is, and any other value in a list."""
    return value if isinstance(value, list | tuple) else [value]


def as_options(what: str, given: Any) -> dict[str, Any]:
    """Convert a mapping, or a text such as "a=1,b=2", to a dict of options; raises `UsageError` for other values."""
    if isinstance(given, str):
        return read_options(given, given, what)
    if not isinstance(given, Mapping):
        raise UsageError(f"{what} is a table of options, got {shortened(given)}")
    return dict(given)


def as_seeds(given: Any) -> tuple[int, ...]:
    """Check seeds, whole numbers from 0 to 2³² − 1, and drop duplicates; raises `UsageError` if a seed is invalid."""
    fits = _must_be("a seed is a whole number from 0 to 2^32 - 1", lambda one: type(one) is int and 0 <= one < 2**32)
    seeds = [fits(seed) for seed in as_many(given)]
    if not seeds:
        raise UsageError("name at least one seed")
    return tuple(dict.fromkeys(seeds))


def as_memory(given: Any) -> int:
    """Convert an amount of memory, such as "4GiB", to bytes.

    >>> as_memory("500MiB"), as_memory("2G")
    (524288000, 2147483648)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([MG])(?:i?B)?\s*", str(given), flags=re.IGNORECASE)
    size = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
    if not 1 <= size <= _MOST_BYTES:
        raise UsageError(
            f"cell_memory is an amount such as 500MiB or 4GiB, at most {_MOST_BYTES >> 30}GiB, got {shortened(given)}"
        )
    return int(size)


def as_trust(given: Any) -> tuple[str, ...]:
    """Check the names of the modules from which a recording may build its segments; each is kept once."""
    names = [] if given is None else as_many(given)
    for name in names:
        known = isinstance(name, str) and _MODULE.fullmatch(name)
        if not known or name.partition(".")[0] in sys.stdlib_module_names:
            raise UsageError(f"trust takes the name of a module of yours, such as mynets, got {shortened(name)}")
    return tuple(dict.fromkeys(names))


def as_spec(name: str, declared: type) -> Callable[[Any], Any]:
    """Make a function that turns options into an object of the class `declared`."""
    return lambda given: specify(name, declared, as_options(name, given))


def as_features(given: Any) -> tuple[str, ...]:
    """Check names of feature networks; they are loaded when the run begins."""
    names = as_many(given)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"features must be names of networks, got {shortened(given)}")
    check_names(names)
    return tuple(names)


def as_gates(given: Any) -> tuple[Gate, ...]:
    """Parse gates: conditions on results, under which a run passes or fails."""
    from privkit.reports.gate import Gate, GateError, must_agree

    fits = _must_be("a gate is a text such as 'ssim<=0.4'", lambda one: isinstance(one, str) and len(one) <= LONGEST)
    texts = [fits(text) for text in as_many(given)]
    try:
        gates = tuple(map(Gate.parse, texts))
        must_agree(gates)
    except GateError as error:
        raise UsageError(str(error)) from None
    return gates
