"""Reads a recording (stored releases of a training) safely: only regular files of limited size, never pickles.

Files may come from a stranger, and a pickle can run code. Sizes are checked before memory is allocated.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from privkit.errors import DataError, shortened
from privkit.files.arrays import read_array
from privkit.files.sealed import digest
from privkit.recording.schema import plain_bytes

_ENDINGS = (".safetensors", ".npz")
_MOST_BYTES = 4 << 30  # size limit of a file; a sparse file is small on a disk, but takes its full size in memory
_MOST_UNPACKED = 1 << 30  # size limit of all unpacked members of an archive, unless the archive is larger
_MOST_MEMBERS = 100_000  # largest number of members of an archive: each takes memory before it is read
_MOST_HEADER = 16 << 20  # size limit of a safetensors header (names and shapes): some hundred thousand tensors
_TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


class Files:
    """The files of a recording, compared with their SHA-256 in `listed`; with `every`, unlisted files are refused."""

    def __init__(self, folder: Path, listed: Mapping[str, str], *, every: bool = True) -> None:
        self.folder, self._listed, self._every = folder, listed, every
        self.read: dict[str, str] = {}  # file -> SHA-256 of what was read

    def content(self, name: str, most: int | None = None) -> bytes:
        """Read one file's bytes; raises `DataError` if it lies outside the folder, is too large, or was changed."""
        data = plain_bytes(self.folder, name, _MOST_BYTES if most is None else most)
        self.read[name] = digest(data)
        if self._every and name not in self._listed:
            raise DataError(
                f"{self.folder / name} is not among the files of recording.json, so nothing shows that it is what was "
                "recorded; describe the recording again with privkit.recording.write.write_description"
            )
        if self._listed.get(name, self.read[name]) != self.read[name]:
            raise DataError(f"{self.folder / name} is not what was recorded: its checksum differs; restore the file")
        return data

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read the tensors of one file. Pickles, other formats and too large contents also raise `DataError`."""
        path = self.folder / name
        data = self.content(name)
        if is_pickle(data) or not name.endswith(_ENDINGS):
            what = "a pickle, which can run any code when it is read" if is_pickle(data) else "of an unknown format"
            raise DataError(
                f"{path} is {what}; save a dictionary of tensors with safetensors.torch.save_file or numpy.savez"
            )
        try:
            found = _safetensors(data) if name.endswith(".safetensors") else _npz(data)
        except Exception as error:  # zipfile, zlib, numpy, safetensors and torch each raise their own kind
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{path} cannot be read ({reason}); record it again") from None
        for given, value in found.items():
            if value.dtype not in _TYPES:
                raise DataError(
                    f"{path}: {shortened(given)} is {value.dtype}; give floats, or whole numbers such as int64 for "
                    "labels and members"
                )
        return found


def is_pickle(data: bytes) -> bool:
    """Whether bytes contain a pickle: directly, or as a file of `torch.save`."""
    if data[:1] == b"\x80" and data[1:2] <= b"\x05" and data.rstrip().endswith(b"."):
        return True
    try:
        names = [name.partition("/")[2] or name for name in archived(data)]
    except (ValueError, zipfile.BadZipFile):
        return False
    program = any(name.startswith("code/") for name in names)
    return "data.pkl" in names and not program


def archived(data: bytes) -> list[str]:
    """Names of a zip archive's members, without unpacking. Raises `ValueError` for a suspicious archive, such as a too
    large one, and `BadZipFile` for other bytes."""
    if data.count(b"PK\x01\x02") > _MOST_MEMBERS:
        raise ValueError(f"it has more than {_MOST_MEMBERS} members")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    names = [member.filename for member in members]
    if sum(member.file_size for member in members) > max(_MOST_UNPACKED, len(data)):
        raise ValueError(f"it unpacks to more than {_MOST_UNPACKED >> 20} MiB")
    if len(set(names)) < len(names):
        raise ValueError("two of its members have one name")
    packings = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if any(member.compress_type not in packings or member.flag_bits & 1 for member in members):
        raise ValueError("its members must be stored or deflated, and not encrypted")
    return names


def _safetensors(data: bytes) -> dict[str, Tensor]:
    if int.from_bytes(data[:8], "little") > _MOST_HEADER:
        raise ValueError(f"its header has more than {_MOST_HEADER >> 20} MiB")
    try:
        return load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _npz(data: bytes) -> dict[str, Tensor]:
    names = archived(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        arrays = {name.removesuffix(".npy"): read_array(archive, name) for name in names}
    if texts := [name for name, array in arrays.items() if array.dtype.kind in "US"]:
        raise ValueError(f"{shortened(texts[0])} holds texts; number them, such as labels from 0")
    return {name: torch.from_numpy(a.astype(a.dtype.newbyteorder("="), copy=False)) for name, a in arrays.items()}
