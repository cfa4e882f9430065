"""A user's own objects by import path, "module:object", looked up on the Python path and in the current folder."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from privkit.errors import PrivkitError, UsageError, one_line

_PATH = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*)(?::(.*))?", flags=re.DOTALL)


def with_options(given: str) -> tuple[str, str] | None:
    """The import path and the options of `module:object` or `module:object:key=value,…`; None for anything else.

    >>> with_options("mine.stages:Squash:bound=2"), with_options("masking:keep=.2")
    (('mine.stages:Squash', 'bound=2'), None)
    """
    found = _PATH.fullmatch(given)
    return (found[1], found[2] or "") if found else None


def imported(what: str, path: str) -> Any:
    """The object behind an import path.

    Args:
        what: how to call it in an error, such as "the defense".
        path: "package.module:object", or "package.module.object".

    Raises:
        UsageError: if it cannot be imported, with the reason and what to do.

    >>> imported("the function", "math:sqrot")
    Traceback (most recent call last):
    privkit.errors.UsageError: cannot import the function math:sqrot: math has no sqrot; did you mean 'sqrt'?
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    if not module:
        raise UsageError(f"{path!r} is no import path; write {what} as package.module:object")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that a user's file never hides an installed package
    try:
        home = import_module(module)
    except (MemoryError, PrivkitError):
        raise
    except (Exception, SystemExit) as error:  # whatever a user's module does at import, an exit among it
        raise UsageError(f"cannot import {what} {path}: {one_line(error, None)}; {_cure(module, error)}") from error
    if hasattr(home, name):
        return getattr(home, name)
    near = get_close_matches(name, dir(home), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"define it in {getattr(home, '__file__', None) or module}"
    raise UsageError(f"cannot import {what} {path}: {module} has no {name}; {hint}")


@contextmanager
def faults_of(what: str, part: object) -> Iterator[None]:
    """Turn what a user's own part raises into one sentence; a fault of privkit's own parts stays one.

    Args:
        what: how to call the part.
        part: its specification.

    Raises:
        UsageError: with the part, its error and where it was raised.
    """
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
    """What to do about an import that failed."""
    absent = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if absent and f"{module}.".startswith(f"{absent}."):
        return f"run the command in the folder that holds {absent.partition('.')[0]}, or install its package"
    return f"install {absent}" if absent else f"repair {module}"
