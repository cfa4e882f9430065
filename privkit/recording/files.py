"""Files of tensors, safetensors or npz; a pickle is refused and never loaded, since reading one can run any code."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from privkit.errors import DataError
from privkit.sealed import digest

_ENDINGS = (".safetensors", ".npz")


class Files:
    """The files of a recording, each read once and held against the checksums of its `recording.json`.

    Args:
        folder: that holds them all.
        listed: file -> SHA-256.

    Attributes:
        read: file -> SHA-256 of what was read.
    """

    def __init__(self, folder: Path, listed: Mapping[str, str]) -> None:
        self.folder, self._listed = folder, listed
        self.read: dict[str, str] = {}

    def content(self, name: str) -> bytes:
        """The bytes of one file.

        Raises:
            DataError: if it lies elsewhere, cannot be read, or is no longer what was recorded.
        """
        path = self.folder / name
        if name != Path(name).name or path.is_symlink():
            raise DataError(f"{self.folder}: {name!r} must be a file of this folder itself; copy it there")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"{self.folder}: cannot read {name} ({error.strerror}); record it again") from None
        self.read[name] = digest(data)
        if self._listed.get(name, self.read[name]) != self.read[name]:
            raise DataError(f"{path} is not what was recorded: its checksum differs; restore the file")
        return data

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one file.

        Raises:
            DataError: as above, and if it is a pickle, damaged, or of another format.
        """
        path = self.folder / name
        data = self.content(name)
        if is_pickle(data) or not name.endswith(_ENDINGS):
            what = "a pickle, which can run any code when it is read" if is_pickle(data) else "of an unknown format"
            raise DataError(
                f"{path} is {what}; save a dictionary of tensors with safetensors.torch.save_file or numpy.savez"
            )
        try:
            return load(data) if name.endswith(".safetensors") else _npz(data)
        except (SafetensorError, ValueError, TypeError, KeyError, zipfile.BadZipFile, EOFError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{path} cannot be read ({reason}); record it again") from None


def is_pickle(data: bytes) -> bool:
    """Whether bytes are a pickle: a bare one, `torch.save`'s, or an array of objects.

    >>> import pickle
    >>> is_pickle(pickle.dumps([1])), is_pickle(save({"a": torch.zeros(1)}))
    (True, False)
    """
    if data[:1] == b"\x80" and data[1:2] <= b"\x05" and data.rstrip().endswith(b"."):
        return True
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name.partition("/")[2] or name for name in archive.namelist()]
    except zipfile.BadZipFile:
        return False
    program = any(name.startswith("code/") for name in names)
    return "data.pkl" in names and not program


def _npz(data: bytes) -> dict[str, Tensor]:
    """The arrays of an npz file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as a safetensors file; those that share memory are written twice."""
    own = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    return save(own)
