"""Arrays in `*.npz` files, which are written atomically and unpacked only up to a size limit."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privkit.errors import DamagedFile
from privkit.files.storage import write_bytes

_MOST_BYTES = 1 << 30  # size limit of all unpacked arrays of a file: a thousand times the size that a run stores


def write_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """Write arrays to a compressed npz file, without pickles."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_bytes(path, buffer.getvalue())


def read_arrays(
    path: Path,
    data: bytes,
    wanted: Mapping[str, tuple[str, int]],
    optional: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> dict[str, NDArray[Any]]:
    """Read arrays of equal length from the bytes of an npz file: name -> array; raises `DamagedFile` for other data.
    `wanted` maps a name to numpy's kind ("f", "u", "b" or "U") and number of dimensions; `optional` arrays may be
    missing."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
                raise ValueError(f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
            held = set(archive.namelist())
            kinds = {**wanted, **{name: kind for name, kind in optional.items() if f"{name}.npy" in held}}
            arrays = {name: read_array(archive, f"{name}.npy") for name in kinds}
        for name, (kind, dimensions) in kinds.items():
            if (arrays[name].dtype.kind, arrays[name].ndim) != (kind, dimensions):
                raise ValueError(f"{name} is {arrays[name].dtype} {list(arrays[name].shape)}")
        if len({len(array) for array in arrays.values()}) > 1:
            raise ValueError("its arrays have different lengths")
    except Exception as error:  # zipfile, zlib and numpy raise different errors
        reason = " ".join(str(error).split())[:200]
        raise DamagedFile(f"{path} is damaged ({reason}); delete {path.parent} and repeat the run's command") from None
    return arrays


def read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read one array of an npz archive. Before memory is allocated, the size in the array's header is compared with the
    size in the archive. Raises `ValueError` for a larger size in the header, and for arrays of Python objects."""
    size = archive.getinfo(name).file_size
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)
        if dtype.hasobject or int(np.prod([float(n) for n in shape])) * dtype.itemsize > size:
            raise ValueError(f"{name} holds objects, or says that it is larger than it is")
    with archive.open(name) as member:
        return np.lib.format.read_array(member, allow_pickle=False)
