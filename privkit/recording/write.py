"""Writes a recording: tensors, weights, and at the end `recording.json` with the checksums of all files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from privkit.attacks.base import View
from privkit.domains.domain import Domain
from privkit.errors import UsageError
from privkit.files.paths import root
from privkit.files.sealed import digests
from privkit.files.storage import packed, write_bytes, write_record, writing
from privkit.recording.read import ROUND, Recording, read_recording
from privkit.recording.records import described_domain
from privkit.recording.schema import FILE, RECORDING_VERSION
from privkit.recording.second_cut import named


def write_recording(
    folder: Path,
    views: Sequence[View],
    *,
    domain: Domain,
    second: Sequence[View] = (),
    files: Mapping[str, bytes],
    own: tuple[Tensor | None, Tensor | None] = (None, None),
    truth: tuple[Tensor | None, Tensor | None] = (None, None),
    members: Tensor | None = None,
    **described: Any,
) -> Recording:
    """Write a recording into a new or empty folder, and read it back, so that mistakes are refused at once.

    Repeated passes over the same records follow one after another in `views`. `own` and `truth` are pairs of records
    and labels. `second` and `members` are as in `Recording`; `members=None` means that release n holds record n.
    `files` has the contents of weights and programs, and `described` the fields of `Description` that do not follow
    from the views. An error leaves the folder as it was.
    """
    folder = root(folder)
    new = not os.path.exists(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(os.scandir(folder)):
            raise UsageError(f"{folder} holds files already; name a new or empty folder for the recording")
    tensors: dict[str, Tensor | None] = {
        f"round_{number}.{kind}": getattr(view, kind) for number, view in enumerate(views) for kind in ROUND
    }
    for kind, pair in (("own", own), ("truth", truth)):
        tensors |= dict(zip((f"{kind}.{domain.name}", f"{kind}.labels"), pair, strict=True))
    tensors |= {"truth.members": members, **named(second)}
    content = {"tensors.safetensors": packed({name: value for name, value in tensors.items() if value is not None})}
    kind_of_record, described_by = described_domain(domain)
    content |= {**described_by, **files}
    first = views[0]
    fields = {
        "schema_version": RECORDING_VERSION,
        **kind_of_record,
        "rounds": len(views),
        "mixed": first.mixed,
        "messages": first.messages,
        "whole": first.whole,
        **{name: value for name, value in described.items() if value is not None},
    }
    segments = [fields[part] for part in ("lower", "upper") if isinstance(fields.get(part), dict)]
    modules = {str(segment.get("builder", "")).partition(":")[0] for segment in segments}  # named by the caller
    try:
        for name, data in content.items():
            write_bytes(folder / name, data)
        write_description(folder, fields)
        return read_recording(folder, trust=sorted(filter(None, modules)))
    except BaseException:  # leave the folder as it was, so that the caller can try again
        for name in (*content, FILE):
            (folder / name).unlink(missing_ok=True)
        if new:
            with suppress(OSError):  # another process may have put a file there
                folder.rmdir()
        raise


def write_description(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write `recording.json` into a folder that holds the other files, with their checksums and its own checksum.

    `fields` are described in docs/reference/recording.md; the field `files` is filled in.
    """
    home = folder.resolve()
    names = sorted(entry.name for entry in os.scandir(home) if entry.is_file(follow_symlinks=False))
    found = digests(home, (name for name in names if name != FILE))
    plain = {name: value for name, value in fields.items() if name not in ("files", "sha256")}
    write_record(home / FILE, {**plain, "files": {**found, **fields.get("files", {})}})
