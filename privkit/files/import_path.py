"""Imports a user's own objects by import path, "module:object", from the Python path and the current folder."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from privkit.errors import PrivkitError, UsageError, one_line, shortened
from privkit.files.observed import watch

_OURS = (
    *("privkit.audit.export:clients", "privkit.audit.export:server"),
    *("privkit.domains.images.own:FromFunction", "privkit.models.imported:FromFunction"),
)
"""Objects of privkit that a recording may name by import path; all import a user's own parts through `imported`."""
_TRUSTED: ContextVar[Sequence[str] | None] = ContextVar("trusted modules", default=None)
"""Inside `only`, the modules that may be imported; None for any."""
_PATH = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*)(?::(.*))?", flags=re.DOTALL)


class Untrusted(UsageError):
    """Raised if a file names code that the command was not told to trust."""


@contextmanager
def only(trusted: Sequence[str]) -> Iterator[None]:
    """Context manager in which only objects of these modules and their submodules can be imported by an import path."""
    token = _TRUSTED.set(tuple(trusted))
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def is_trusted(module: str, trusted: Sequence[str]) -> bool:
    """Whether a module is in `trusted`, or is a submodule of a module in it."""
    return any(f"{module}.".startswith(f"{name}.") for name in trusted)


def check_trusted(what: str, path: str, trusted: Sequence[str]) -> None:
    """Raise `Untrusted` for an import path outside the trusted modules. `what` names its object in the error."""
    module, _, name = path.replace(":", ".").rpartition(".")
    if f"{module}:{name}" not in _OURS and not is_trusted(module, trusted):
        raise Untrusted(
            f"this recording names {what} {shortened(path)[1:-1]}, but a recording must not decide which code runs; "
            f'if you trust all that {module} defines, give --trust {module}, or trust=["{module}"] in Python'
        )


def with_options(given: str) -> tuple[str, str] | None:
    """Split `module:object` or `module:object:key=value,…` into import path and options; None for other texts."""
    found = _PATH.fullmatch(given)
    return (found[1], found[2] or "") if found else None


def imported(what: str, path: str) -> Any:
    """Import the object at the path "package.module:object" or "package.module.object"; `what` names it in errors, such
    as "the defense". Raises `UsageError`, or `Untrusted` for a path that is not trusted inside `only`."""
    module, _, name = path.replace(":", ".").rpartition(".")
    if not module:
        raise UsageError(f"{path!r} is not an import path; write {what} as package.module:object")
    trusted = _TRUSTED.get()
    if trusted is not None:
        check_trusted(what, path, trusted)
    from privkit.torch_utils.undisturbed import undisturbed  # late: it imports torch

    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that a user's file never hides an installed package
    watch(module)
    try:
        with undisturbed(environment=False):
            home = import_module(module)
    except (MemoryError, PrivkitError):
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything at import
        raise UsageError(f"cannot import {what} {path}: {one_line(error, None)}; {_cure(module, error)}") from error
    if hasattr(home, name):
        found = getattr(home, name)
        if trusted is not None and is_trusted(module, trusted):
            _check_home(what, path, found, trusted)
        return found
    near = get_close_matches(name, dir(home), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"define it in {getattr(home, '__file__', None) or module}"
    raise UsageError(f"cannot import {what} {path}: {module} has no {name}; {hint}")


def _check_home(what: str, path: str, found: object, trusted: Sequence[str]) -> None:
    home = getattr(found, "__module__", None)
    if not isinstance(home, str) or not is_trusted(home, trusted):
        raise Untrusted(
            f"this recording names {what} {path}, which {home or 'no module'} defines and {path.partition(':')[0]} "
            f"imports; name a class or function that a trusted module defines"
            + (f", or trust {home}, too" if home else "")
        )


@contextmanager
def faults_of(what: str, part: object) -> Iterator[None]:
    """Context manager that turns an error of a user's own part into one sentence with its line."""
    try:
        yield
    except (MemoryError, PrivkitError):
        raise
    except (Exception, SystemExit) as error:
        if type(part).__module__.partition(".")[0] == "privkit":
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"{what} failed: {one_line(error, None)} ({place.filename}, line {place.lineno}); repair it"
        ) from error


def _cure(module: str, error: BaseException) -> str:
    if module.endswith(".py"):
        return f"write {Path(module).stem} instead of {module}, and run the command in the folder that holds it"
    absent = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if absent and f"{module}.".startswith(f"{absent}."):
        return f"run the command in the folder that holds {absent.partition('.')[0]}, or install its package"
    return f"install {absent}" if absent else f"repair {module}"
