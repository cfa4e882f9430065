"""Errors that reach a user as one sentence: the given value, the allowed values, and a remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches

from privkit.reports.escape import terminal

LONGEST = 200  # characters of a value that an error repeats
_NEAR = 6  # largest number of similar names that an error lists


class PrivkitError(Exception):
    """Base of every error that the command line prints without a traceback."""

    exit_code = 2  # what the command line exits with; 2 for bad usage or configuration


class UsageError(PrivkitError):
    """A name, option or combination that does not exist or is not allowed."""


class WrongForm(UsageError):
    """A part of the wrong form, whatever the data are, such as a network that returns no tensor."""


class DataError(PrivkitError):
    """A data file that is missing or damaged."""


class RunFolderError(PrivkitError):
    """A run folder that belongs to another configuration or is in use."""


class OtherVersionRun(RunFolderError):
    """A run folder with a schema version that this version of privkit cannot read."""


class DamagedManifest(RunFolderError):
    """A run folder whose manifest is damaged, or was not written by privkit."""

    exit_code = 3


class UnfinishedRun(RunFolderError):
    """A run folder without any finished result."""

    exit_code = 3


class Failure(PrivkitError):
    """An error during the work on a valid request. Results that are finished are kept."""

    exit_code = 3


class StorageError(Failure):
    """A file that could not be written. The run stops; finished results are kept."""


class DamagedFile(Failure):
    """A file of the run whose content differs from what was written. Its result fails; the others continue."""


class OutOfMemory(Failure):
    """A failed allocation of memory. The run stops; finished results are kept."""


class TrainingDiverged(Failure):
    """The task's loss became NaN or infinite; the message says at which step."""


class Misbehaved(Failure):
    """A part (defense, attack, …) did something forbidden. Its result fails; the others continue."""


def shortened(value: object) -> str:
    """A value in Python's notation, shortened so that it fits into a sentence.

    >>> shortened("a" * 1000)[-9:], shortened(10**5000)
    ("aaaaa...'", 'a number of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 1000:  # Python refuses to print very long numbers
        return f"a number of {value.bit_length()} bits"
    try:
        text = repr(value[:LONGEST] + "..." if isinstance(value, str) and len(value) > LONGEST else value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}..."


def one_line(error: BaseException, most: int | None = 200) -> str:
    """Describe an error of other code in one line: its type, and at most `most` characters of its message.

    >>> one_line(ValueError("no\\nway")), one_line(MemoryError())
    ('ValueError: no way', 'MemoryError')
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}".removesuffix(": ")


def unknown(kind: str, given: str, allowed: Iterable[str], listed: str = "") -> UsageError:
    """Build the error for an unknown name. The error suggests similar names. It also lists all `allowed` names or, if
    `listed` is given, names this command, which lists them.

    >>> print(unknown("defense", "batch_shufle", ["none", "batch_shuffle"]))
    unknown defense 'batch_shufle'; did you mean 'batch_shuffle'? (allowed: batch_shuffle, none)
    """
    names = sorted(allowed)
    if listed:
        close = get_close_matches(given[:LONGEST], names)
        near = list(dict.fromkeys([*close[:1], *(name for name in names if given in name), *close]))[:_NEAR]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        return UsageError(f"unknown {kind} {shortened(given)}{hint} ({listed} lists all)")
    near = get_close_matches(given[:LONGEST], names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {kind} {shortened(given)}{hint} (allowed: {', '.join(names) or 'none'})")


def tell(text: str) -> None:
    """Print one line on standard error."""
    print(f"privkit: {terminal(text)}", file=sys.stderr, flush=True)
