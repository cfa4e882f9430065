"""Safe paths below a run folder: they stay inside it and contain no symbolic link, and only plain files are read.

A run folder may come from somebody else. `root` resolves the folder's own path once. Below it, a link or a ".." is an
attempt to escape and is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from privkit.errors import RunFolderError

MOST_TEXT = 1 << 30  # size limit of a text file; the largest, `results.jsonl`, has some ten thousand bytes a result
_LONGEST_NAME = 100
"""Longest part name in a file name: a result's folder is named by two parts, and file systems allow 255 characters."""
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags under which a link is refused, a pipe without a writer does not block, and a child process inherits nothing."""


def root(path: Path | str) -> Path:
    """Resolve a user's path, which may contain ".." and links (such as macOS's /tmp), to an absolute path."""
    return Path(os.path.realpath(path))


def inside(root: Path, *names: str) -> Path:
    """Join `names`, each the name of one folder or file, to a path below `root`; other names raise `RunFolderError`."""
    for name in names:
        if name in ("", ".", "..") or set(name) & {"/", "\\", "\0"} or Path(name).name != name:
            raise RunFolderError(f"{name!r} is not a name of a file in {root}; that row was not written by privkit")
    return root.joinpath(*names)


def file_name(name: str) -> str:
    """The name of a part as a file name: the colons of an import path become dots, and long names, such as those of
    chains, are cut."""
    return name.replace(":", ".")[-_LONGEST_NAME:]


def check_folder(folder: Path) -> None:
    """Raise `OSError` (ELOOP) if a folder's path contains a symbolic link or ".."."""
    if ".." in folder.parts or os.path.realpath(folder) != os.path.abspath(folder):
        raise OSError(errno.ELOOP, "its folder is a symbolic link, which a run folder never holds")


def open_file(path: Path, flags: int) -> int:
    """Open a plain file and return its descriptor; a link, pipe, device or folder raises `OSError`."""
    check_folder(path.parent)
    try:
        descriptor = os.open(path, flags | _NO_LINK, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, which a run folder never holds") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and not a file")
    return descriptor


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Read a plain file of a run folder. Raises `OSError` for other files, and for more than `most` bytes."""
    descriptor = open_file(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as handle:
        if most is not None and os.fstat(descriptor).st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")
        return handle.read()
