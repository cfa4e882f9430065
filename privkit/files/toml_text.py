"""Reads TOML from a user; text that is too large or too deeply nested for a configuration is refused."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 18  # size limit of a configuration file; those in this repository have less than one kibibyte
_MOST_DOTS = 100  # limit for a line: reading a dotted key takes time and memory in the square of its parts
_WHOLE = 1 << 63  # whole numbers of TOML have 64 bits


class TomlError(ValueError):
    """Raised for text that is not valid TOML, or too long; the message completes "FILE is not valid TOML: ..."."""


class TooMuch(TomlError):
    """Raised for text that would take too long to read, whether or not it is TOML."""


def read_text(path: Path) -> str:
    """Read the text of a file, or of a pipe such as `<(command)`; devices and folders raise `OSError`."""
    with path.open("rb") as handle:
        mode = os.fstat(handle.fileno()).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(None, "it is a device or a socket, and not a file")
        data = handle.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise TooMuch(f"it has more than {_MOST_BYTES >> 10} KiB")
    try:
        return data.decode("utf-8-sig")  # some editors begin with a byte order mark
    except UnicodeDecodeError as error:
        raise TomlError(f"it is not UTF-8 (byte {error.start})") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text into nested dictionaries; deep nesting and numbers of more than 64 bits raise `TooMuch`."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".") > _MOST_DOTS:
            raise TooMuch(f"line {number} has more than {_MOST_DOTS} dots")
    try:
        parsed = tomllib.loads(text)
        _check(parsed)
    except RecursionError:
        raise TooMuch("it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from None
    except TomlError:
        raise
    except ValueError:  # more digits than Python reads
        raise TooMuch("a whole number must have at most 64 bits, and one has thousands of digits") from None
    return parsed


def _check(value: Any) -> None:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check(part)
    elif isinstance(value, int) and not -_WHOLE <= value < _WHOLE:
        raise TooMuch(f"a whole number must have at most 64 bits, and one has {value.bit_length()}")
