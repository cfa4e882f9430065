"""Folders for libraries' caches and settings, which always lie in the user's cache folder.

They are never in a run folder or the current folder, which may come from somebody else: a compiler's cache holds
programs and pickles, and a plotting library's settings can name programs to start.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from functools import cache
from pathlib import Path

_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "torchinductor", "TRITON_CACHE_DIR": "triton", "MPLCONFIGDIR": "matplotlib"}
"""Environment variable -> its folder in privkit's cache; a variable that the user has set is kept."""


@cache
def cache_folder() -> Path:
    """privkit's cache folder below `XDG_CACHE_HOME` or ~/.cache; a fresh temporary folder if that folder is unusable or
    others can write to it."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()) / "privkit"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _own(folder):
            return folder
    except (OSError, RuntimeError):  # no home, or one that is read-only
        pass
    return Path(tempfile.mkdtemp(prefix="privkit-"))


def use_own_caches() -> None:
    """Move the caches of compilers and of the plotting library to `cache_folder`, for this process and its children."""
    for variable, name in _VARIABLES.items():
        if not os.environ.get(variable):
            os.environ[variable] = str(cache_folder() / name)


@contextmanager
def plain_matplotlib() -> Iterator[None]:
    """Context manager in which matplotlib uses its default settings. On import, matplotlib reads a `matplotlibrc` in
    the current folder, and fails if this file is faulty. So if there is such a file, matplotlib is imported with
    privkit's cache folder as the current folder."""
    use_own_caches()
    planted = os.path.lexists("matplotlibrc") and "matplotlib" not in sys.modules
    with chdir(cache_folder()) if planted else nullcontext():
        import matplotlib
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def _own(folder: Path) -> bool:
    known = os.lstat(folder)
    mine = not hasattr(os, "getuid") or (known.st_uid == os.getuid() and not known.st_mode & 0o022)
    return stat.S_ISDIR(known.st_mode) and mine and os.access(folder, os.W_OK | os.X_OK)
