"""Single settings of an audit, as flags, TOML or Python give them, checked and in one form."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privkit.errors import LONGEST, UsageError, shortened
from privkit.parts.registry import read_options

if TYPE_CHECKING:
    from privkit.reports.gate import Gate

_MOST_THREADS = 1024
_MOST_WORKERS = 1024
TRUST = "trust"
"""The setting that no file holds: modules that a recording may build its segments from."""
BESIDE_RECORDING = frozenset(
    {
        *("recorded", "trust", "attack", "seed", "budget", "delta", "queries", "features", "metric"),
        *("device", "threads", "gate"),
    }
)
"""Settings that an audit of a recording may have; all others describe a training."""
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def as_many(value: Any) -> Sequence[Any]:
    """One or several."""
    return value if isinstance(value, list | tuple) else [value]


def as_options(what: str, given: Any) -> dict[str, Any]:
    """A table of options, or the text of one."""
    if isinstance(given, str):
        return read_options(given, given, what)
    if not isinstance(given, Mapping):
        raise UsageError(f"{what} is a table of options, got {shortened(given)}")
    return dict(given)


def as_seeds(given: Any) -> tuple[int, ...]:
    """Whole numbers ≥ 0, each once."""
    seeds = as_many(given)
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise UsageError(f"a seed is a whole number from 0 to 2^32 - 1, got {shortened(seed)}")
    if not seeds:
        raise UsageError("name at least one seed")
    return tuple(dict.fromkeys(seeds))


def as_seconds(given: Any) -> float | None:
    """A time in seconds, None for no limit."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < inf:
        raise UsageError(f"cell_seconds is a number of seconds above 0, got {shortened(given)}")
    return float(given)


def as_threads(given: Any) -> int | None:
    """CPU threads, 1 to `_MOST_THREADS`."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST_THREADS:
        raise UsageError(f"threads must be a whole number from 1 to {_MOST_THREADS}, got {shortened(given)}")
    return given


def as_workers(given: Any) -> int:
    """Processes of a run, 1 to `_MOST_WORKERS`."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST_WORKERS:
        raise UsageError(f"workers must be a whole number from 1 to {_MOST_WORKERS}, got {given!r}")
    return given


def as_trust(given: Any) -> tuple[str, ...]:
    """Names of modules that a recording may build its segments from, each once.

    >>> as_trust("mynets"), as_trust(["mynets.small", "torch.nn"]), as_trust(None)
    (('mynets',), ('mynets.small', 'torch.nn'), ())
    """
    names = [] if given is None else as_many(given)
    for name in names:
        known = isinstance(name, str) and _MODULE.fullmatch(name)
        if not known or name.partition(".")[0] in sys.stdlib_module_names:
            raise UsageError(f"trust takes the name of a module of yours, such as mynets, got {shortened(name)}")
    return tuple(dict.fromkeys(names))


def as_device(given: Any) -> str:
    """What computes: auto, cpu, cuda, or one of several GPUs by its number.

    >>> as_device("cuda:1")
    'cuda:1'
    """
    if not isinstance(given, str) or not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?", given):
        raise UsageError(f"a device is auto, cpu, cuda, or cuda:0, cuda:1, …; got {shortened(given)}")
    return given


def as_gate(text: Any) -> Gate:
    """A condition on the rows."""
    from privkit.reports.gate import Gate, GateError

    if not isinstance(text, str) or len(text) > LONGEST:
        raise UsageError(f"a gate is a text such as 'ssim<=0.4', got {shortened(text)}")
    try:
        return Gate.parse(text)
    except GateError as error:
        raise UsageError(str(error)) from None


def as_kept(settings: Mapping[str, Any], root: Any) -> dict[str, Any]:
    """Settings as the manifest keeps them for other workers, whose environment may name another data root.

    What is trusted is no part of them: whoever works on a folder says it, and the folder does not.
    """
    kept = {key: _plain(value) for key, value in settings.items() if value is not None and key != TRUST}
    return kept | ({"data_root": str(Path(root).expanduser().absolute())} if root else {})


def _plain(value: Any) -> Any:
    """A setting as JSON holds it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def check_recorded(settings: Mapping[str, Any]) -> None:
    """Refuse settings that would describe a training, and a folder whose `recording.json` is none.

    Raises:
        UsageError: naming the setting.
        DataError: saying what is wrong with the file.
    """
    from privkit.recording.schema import FILE, description, description_file

    free = BESIDE_RECORDING
    given = [key for key, value in settings.items() if value not in (None, [], False) and key not in free]
    if given:
        raise UsageError(
            f"a recording brings its own {given[0]}, so leave --{given[0].replace('_', '-')} out; an audit of a "
            f"recording may have {', '.join(sorted(free - {'recorded'}))}"
        )
    folder = Path(settings["recorded"]).expanduser()
    description(description_file(folder), folder / FILE)
