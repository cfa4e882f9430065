"""Reads and writes records: JSON files with identifying fields and a checksum over all fields.

A record describes a run, a cell (one defense, attack and seed), a model, or an attack's control experiments. It is
written last and lists the checksums of the other files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from privkit.errors import DamagedFile, RunFolderError
from privkit.files.paths import inside, read_bytes

_SEAL = "sha256"  # the field that holds the checksum
AGAIN = "repeat the run's command to do that part anew"  # advice after a damaged file was deleted


def unreadable(path: Path, error: OSError, unit: Path | None = None) -> str:
    """The message for a file that could not be read. The message does not advise to delete the file, which may be
    intact. `unit` is the folder of the result or model whose record lists the file, if any."""
    return f"cannot read {path} ({error.strerror}); make it readable, or move {unit or 'it'} away and {AGAIN}"


class Broken(ValueError):
    """Raised for bytes that are not the expected record; the message continues a sentence that begins with the file's
    path."""


def sealed(fields: Mapping[str, Any], indent: int | None = None) -> str:
    """Return fields as JSON text, followed by the SHA-256 of their canonical JSON."""
    plain = json.loads(json.dumps(fields))  # as a reader will have it: lists for tuples, text for keys
    return json.dumps({**plain, _SEAL: _checksum(plain)}, indent=indent)


def opened(data: bytes | str, **identity: Any) -> dict[str, Any]:
    """Read the fields of a record that `sealed` wrote. Raises `Broken` if the checksum is wrong, or if a field of
    `identity` has another value."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise Broken("is damaged: it is not JSON") from None
    if not isinstance(fields, dict):
        raise Broken("is damaged: it is not a JSON object")
    checksum = fields.pop(_SEAL, None)
    if checksum is None:
        raise Broken("is damaged: it has no checksum")
    if checksum != _checksum(fields):
        raise Broken("is damaged: its checksum does not match")
    for name, value in identity.items():
        if fields.get(name) != value:
            raise Broken(f"belongs to another {name}, {fields.get(name)!r}")
    return fields


def digest(data: bytes) -> str:
    """The SHA-256 of these bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each file that exists: name -> hex digest."""
    return {name: digest(read_bytes(path)) for name in names if (path := folder / name).exists()}


def altered(folder: Path, files: Mapping[str, str]) -> list[tuple[str, str]]:
    """The files that differ from a record's list (path below the folder -> SHA-256), each with the reason in words."""
    changes = []
    for name, known in files.items():
        try:
            if digest(read_bytes(inside(folder, *name.split("/")))) != known:
                changes.append((name, "is damaged, or is another unit's file: its checksum does not match"))
        except FileNotFoundError:
            changes.append((name, "is missing"))
        except OSError as error:
            changes.append((name, f"cannot be read ({error.strerror})"))
        except RunFolderError as error:
            changes.append((name, f"is not a file of this folder: {error}"))
    return changes


def checked_bytes(path: Path, known: str | None) -> bytes:
    """Read a file; raises `DamagedFile` unless its SHA-256 is `known`, the one in a record (None if not listed)."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise DamagedFile(unreadable(path, error, unit=path.parent)) from None
    if digest(data) != known:
        raise DamagedFile(f"{path} is damaged; delete {path.parent} and {AGAIN}")
    return data


def _checksum(fields: Mapping[str, Any]) -> str:
    return digest(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
