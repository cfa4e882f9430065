"""Records of a run folder as JSON: each names the unit that it describes, and has a checksum over all its fields.

A unit is a run, a cell, a model, or an attack's controls. Its record is written last and lists the checksums of its
other files.
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
AGAIN = "repeat the run's command to do that part anew"  # what to do once a damaged file is gone


def unreadable(path: Path, error: OSError, unit: Path | None = None) -> str:
    """The message that a file of the run could not be read. As its content is unknown, deletion is not advised.

    Args:
        unit: folder of the cell or model whose record lists the file; None if no record does.
    """
    return f"cannot read {path} ({error.strerror}); make it readable, or move {unit or 'it'} away and {AGAIN}"


class Broken(ValueError):
    """Bytes that are not a record, or not the one that was written; the message completes "FILE ..."."""


def sealed(fields: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON text of the fields, followed by the SHA-256 of their canonical JSON.

    >>> sealed({"cell": "c", "mse": 0.25})[:53]
    '{"cell": "c", "mse": 0.25, "sha256": "d0010522289dba8'
    """
    plain = json.loads(json.dumps(fields))  # as a reader will have it: lists for tuples, text for keys
    return json.dumps({**plain, _SEAL: _checksum(plain)}, indent=indent)


def opened(data: bytes | str, **identity: Any) -> dict[str, Any]:
    """The fields of a sealed record; its checksum is checked and removed.

    Args:
        data: JSON text, with any spacing and order of keys.
        **identity: fields that say what the record belongs to, with the values that the reader expects.

    Raises:
        Broken: if it is not a JSON object, its checksum is missing or differs, or it belongs to something else.

    >>> opened(sealed({"cell": "c", "mse": 0.25}), cell="c")
    {'cell': 'c', 'mse': 0.25}
    """
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
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256, by name, of the files that exist."""
    return {name: digest(read_bytes(path)) for name in names if (path := folder / name).exists()}


def altered(folder: Path, files: Mapping[str, str]) -> list[tuple[str, str]]:
    """Files that differ from a record's list, each with a description of the difference; empty if all are intact.

    Args:
        files: SHA-256 in the record, by name or path below the folder.
    """
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
    """Bytes of a file, checked against the SHA-256 in a record.

    Raises:
        DamagedFile: if the record does not list the file (`known` is None), or lists another SHA-256.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise DamagedFile(unreadable(path, error, unit=path.parent)) from None
    if digest(data) != known:
        raise DamagedFile(f"{path} is damaged; delete {path.parent} and {AGAIN}")
    return data


def _checksum(fields: Mapping[str, Any]) -> str:
    return digest(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
