"""Files that are either complete or absent: atomic writes, durable appends, checked tensors."""

from __future__ import annotations

import errno
import io
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from privkit.errors import DamagedFile, RunFolderError, StorageError
from privkit.files.paths import MOST_TEXT, check_folder, open_file, read_bytes
from privkit.files.sealed import AGAIN, Broken, checked_bytes, digest, opened, sealed, unreadable

if TYPE_CHECKING:
    from torch import Tensor, nn

TEMPORARY = re.compile(r"\..+\.\d+\.tmp")  # names of files that are being written
_HOST = crc32(platform.node().encode())
"""Number of this machine, since processes of several machines or containers that share a folder may have the same
process id."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager for writing `path`: an `OSError`, such as a full disk, becomes a `StorageError` with advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            cure = "free some space and run the same command again; finished cells are kept"
        elif error.errno == errno.ENOENT:
            cure = "its folder was removed while the run was under way; run the same command again to begin anew"
        elif error.errno == errno.ELOOP:
            cure = "remove the link, or name another folder with --out"
        else:
            cure = "check the folder's permissions, or name another folder"
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {cure}") from None


def write_bytes(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Write a file atomically: write a temporary file beside it, flush it to disk, and rename it. The file's folder is
    created if necessary, but no folder above it, so that a removed run folder is not recreated. Use `flush=False` for a
    file that is checked on reading and may be lost in a power failure."""
    with writing(path):
        make_folder(path.parent)
        half = temporary(path)
        half.unlink(missing_ok=True)
        try:
            with os.fdopen(open_file(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as handle:
                handle.write(data)
                handle.flush()
                if flush:
                    os.fsync(handle.fileno())
            os.replace(half, path)  # replaces a link, instead of writing to its target
        except BaseException:
            half.unlink(missing_ok=True)
            raise


def temporary(path: Path) -> Path:
    """The temporary path under which this process writes a file."""
    return path.with_name(f".{path.name}.{os.getpid()}{_HOST}.tmp")


def write_record(path: Path, fields: Mapping[str, Any], *, flush: bool = True) -> None:
    """Write a record in the form of `privkit.files.sealed`."""
    write_bytes(path, f"{sealed(fields, indent=2)}\n".encode(), flush=flush)


def present_bytes(path: Path, most: int | None = None) -> bytes | None:
    """Read a file of a run folder; None if it does not exist; raises `DamagedFile` if it cannot be read."""
    try:
        return read_bytes(path, most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(unreadable(path, error)) from None


def read_record(path: Path, **identity: Any) -> dict[str, Any] | None:
    """Read a record's fields; None without a file. Raises `DamagedFile` if it was changed or has another `identity`."""
    try:
        return None if (data := present_bytes(path, MOST_TEXT)) is None else opened(data, **identity)
    except Broken as error:
        raise DamagedFile(f"{path} {error}; delete it and {AGAIN}") from None


def append_line(path: Path, line: str, *, flush: bool = True) -> None:
    """Append a line by a single write; a killed process leaves at most a truncated line. `flush` waits for the disk."""
    with writing(path):
        make_folder(path.parent)
        descriptor = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        # another hard link to the file may lie outside the run, such as in a backup, so a copy replaces the file first
        if os.fstat(descriptor).st_nlink > 1:
            os.close(descriptor)
            write_bytes(path, read_bytes(path))
            descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
        try:
            data = (line + "\n").encode()
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if flush:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file of the run, if it exists."""
    with writing(path):
        if path.parent.is_dir():
            check_folder(path.parent)
            path.unlink(missing_ok=True)


def sweep(folder: Path) -> int:
    """Delete the temporary files of killed processes below a folder, and count them; needs the folder's lock."""
    left = [path for path in folder.rglob(".*.tmp") if TEMPORARY.fullmatch(path.name)]
    for path in left:
        with writing(path):
            path.unlink(missing_ok=True)
    return len(left)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors, numbers, strings, lists and dicts, after a line with their checksum, the folder and the name."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    header = sealed({"file": _unit(path), "payload": digest(payload)})
    write_bytes(path, header.encode() + b"\n" + payload)


def read_state(path: Path) -> bytes | None:
    """Read the bytes that `save_state` wrote, and check them; None if there is no file.

    Raises `DamagedFile` if the file was changed, or was written for another result or model.
    """
    if (data := present_bytes(path)) is None:
        return None
    header, _, payload = data.partition(b"\n")
    try:
        if opened(header, file=_unit(path)).get("payload") != digest(payload):
            raise Broken("is damaged: its checksum does not match")
    except Broken as error:
        raise DamagedFile(
            f"the checkpoint {path} {error}; delete it and run the same command again: only this stage starts over"
        ) from None
    return payload


def load_state(path: Path) -> dict[str, Any] | None:
    """Read what `save_state` wrote, without unpickling objects; None without a file. Raises `DamagedFile` in the cases
    of `read_state`, and if the content cannot be read or a tensor contains NaN."""
    import torch

    payload = read_state(path)
    if payload is None:
        return None
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or _holds_nan(state):
            raise ValueError("it is not a dictionary of finite numbers")
    except MemoryError:
        raise
    except Exception as error:  # torch raises whatever its reader meets
        reason = " ".join(str(error).split())[:200]
        raise DamagedFile(f"the checkpoint {path} cannot be read ({reason}); delete it and {AGAIN}") from None
    return state


def _holds_nan(state: Any) -> bool:
    import torch

    if isinstance(state, torch.Tensor):
        return state.is_floating_point() and bool(state.isnan().any())
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return any(_holds_nan(part) for part in parts)


def save_module(path: Path, module: nn.Module) -> str:
    """Write a module's weights as safetensors and return their SHA-256."""
    data = packed(module.state_dict(), file=_unit(path))
    write_bytes(path, data)
    return digest(data)


def packed(tensors: Mapping[str, Tensor], **metadata: str) -> bytes:
    """Convert tensors to the safetensors format; tensors that share memory, such as tied weights, are stored twice."""
    import torch
    from safetensors.torch import save

    own = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    return bytes(save(own, metadata=metadata or None))


def load_module(path: Path, module: nn.Module, known: str | None) -> None:
    """Read weights with the SHA-256 `known` into a module; raises `DamagedFile` if the file is missing or changed."""
    from safetensors.torch import load

    weights, own = load(checked_bytes(path, known)), module.state_dict()
    for name, value in weights.items():  # torch would convert another dtype silently
        if name in own and value.dtype != own[name].dtype:
            raise DamagedFile(
                f"{path}: {name} is {value.dtype}, not {own[name].dtype}; delete {path.parent} and {AGAIN}"
            )
    module.load_state_dict(weights)


def make_root(path: Path) -> None:
    """Create the folder that a user named, with its parents. Raises `RunFolderError` or `StorageError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        raise RunFolderError(
            f"cannot make the folder {path} ({error.strerror}); name one with --out that can be made or is there"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise RunFolderError(f"cannot make the folder {path} ({error.strerror}); name another with --out") from None
        with writing(path):
            raise error


def make_folder(folder: Path) -> None:
    """Create one folder if it is missing; raises `OSError` if its path contains a symbolic link."""
    check_folder(folder.parent)
    if not folder.is_symlink():
        folder.mkdir(exist_ok=True)
    check_folder(folder)


def _unit(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
