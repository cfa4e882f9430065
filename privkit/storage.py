"""Files that are either whole or not there: atomic writes, durable appends, checked tensors."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privkit.errors import DamagedFile, StorageError
from privkit.paths import check_folder, open_file, read_bytes

if TYPE_CHECKING:
    from torch import nn

DIGEST = hashlib.sha256().digest_size


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one sentence."""
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
            cure = "check the folder's permissions, or name another with --out"
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {cure}") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a temporary file beside it, flushed to disk, then renamed over it.

    Its folder is made, but not the one above: a run folder that was removed does not come back half.
    """
    with writing(path):
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        try:
            with os.fdopen(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, path)  # in place of a link, and not through it
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode())


def append_line(path: Path, line: str) -> None:
    """Append one line with a single write and flush it to disk; a kill leaves at most a truncated last line."""
    with writing(path):
        make_folder(path.parent)
        descriptor = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        if os.fstat(descriptor).st_nlink > 1:  # another name of it may lie outside the run, or in its backup
            os.close(descriptor)
            write_bytes(path, read_bytes(path))
            descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
        try:
            data = (line + "\n").encode()
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file of the run, if it is there."""
    with writing(path):
        if path.parent.is_dir():
            check_folder(path.parent)
            path.unlink(missing_ok=True)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write tensors, numbers, strings, lists and dicts, behind their SHA-256."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    write_bytes(path, hashlib.sha256(payload).digest() + payload)


def load_state(path: Path) -> dict[str, Any] | None:
    """Read what `save_state` wrote, None where there is nothing. Never unpickles an object.

    Raises:
        DamagedFile: if the file was damaged since.
    """
    import torch

    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFile(f"cannot read the checkpoint {path} ({error.strerror}); delete it") from None
    digest, payload = data[:DIGEST], data[DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        raise DamagedFile(
            f"the checkpoint {path} is damaged; delete it and run the same command again: only this stage starts over"
        )
    state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return state


def save_module(path: Path, module: nn.Module) -> None:
    """Write a module's weights as safetensors, with their SHA-256 beside them; tied weights are written twice."""
    import torch
    from safetensors.torch import save

    weights = module.state_dict()  # safetensors refuses tensors that share memory, as tied ones do
    data = save({name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in weights.items()})
    write_bytes(path, data)
    write_text(path.with_suffix(".sha256"), hashlib.sha256(data).hexdigest())


def load_module(path: Path, module: nn.Module) -> None:
    """Read weights into a module.

    Raises:
        DamagedFile: if the file is missing or was damaged since.
    """
    from safetensors.torch import load

    try:
        data, digest = read_bytes(path), read_bytes(path.with_suffix(".sha256"), 100).decode("ascii", "replace")
    except OSError as error:
        raise DamagedFile(f"cannot read the trained segment {path}: {error.strerror}; delete {path.parent}") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise DamagedFile(
            f"the trained segment {path} is damaged; delete {path.parent} and run the same command again to train anew"
        )
    module.load_state_dict(load(data))


def make_folder(folder: Path) -> None:
    """Make one level, after a look at what it lies in."""
    check_folder(folder.parent)
    if not folder.is_symlink():
        folder.mkdir(exist_ok=True)
    check_folder(folder)
