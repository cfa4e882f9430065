"""Records the files that a user's own code reads, by Python's audit hook, since the source need not name these files.

When a file is opened, the hook notes it for each source file outside privkit on the call stack; it searches the stack
up to privkit's audit, command line or registry. Files that privkit itself opens are not noted. The hook is installed
when the first user part is loaded.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import threading
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import source_from_cache
from pathlib import Path
from types import FrameType

from privkit.errors import UsageError
from privkit.files.caches import cache_folder

_CALLERS = tuple(
    f"privkit.{room}." for room in ("audit", "cli", "files.import_path", "parts", "recording", "run", "settings")
)
"""Packages and modules that call a part and are not called by parts; the search of the call stack ends at them."""
_DATA = "privkit.audit.seed_data"  # opens the data; privkit hashes the records instead of the files
_LIBRARIES = ("accountants", "attacks", "reports")  # in a checkout they lie beside the package
_SYSTEM = ("/usr", "/proc", "/sys", "/dev", "/etc", "/bin", "/lib", "/lib64")
_WRITES = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ABSENT = "absent"  # instead of a hash, if code looked for a file that does not exist

_plugins: set[str] = set()  # top-level packages of the user's parts; they may be installed packages
_read: dict[str, dict[str, None]] = {}  # source file -> files that it read
_hashes: dict[str, str] = {}  # file -> SHA-256 at its last opening
_stats: dict[str, tuple[int, ...]] = {}  # file -> its inode, size and times at the last hashing
_opened: set[str] = set()  # files that were opened in this run
_mixed: set[str] = set()  # files whose content differed between two openings
_left_out: set[str] = set()  # folders of runs, and files that a part wrote
_busy = threading.local()
_lock = threading.RLock()


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def content(path: str) -> str:
    """The SHA-256 of a file's current content, in hex; `ABSENT` if it cannot be read."""
    try:
        return hash_file(Path(path)) if os.path.isfile(path) else ABSENT
    except OSError:
        return ABSENT


def watch(module: str) -> None:
    """Start to record the files that a user's module opens, directly or through code that it calls. Call this before
    the module is imported; modules of privkit are ignored."""
    if module.partition(".")[0] == "privkit":
        return
    if not _plugins:
        cache_folder()  # computed here, since the hook needs it
        sys.addaudithook(_hook)  # Python cannot remove a hook
    _plugins.add(module.partition(".")[0])


def leave_out(folder: Path) -> None:
    """Ignore files below this folder, because they belong to the run."""
    _left_out.add(os.path.abspath(folder))


def begin() -> None:
    """Begin a run: forget changes of files that were noted before."""
    with _lock:
        _opened.clear()
        _mixed.clear()


def read_by(sources: Iterable[str], or_by_others: Iterable[str] = ()) -> dict[str, str]:
    """The files that these source files read, directly or through sources that they called: path -> SHA-256. Files in
    `or_by_others` count if any observed code read them. Raises `UsageError` if a file was edited after it was read."""
    roots, found = {os.path.abspath(source) for source in sources}, dict[str, str]()
    with _lock:
        waiting = [*roots, *(set(or_by_others) & _hashes.keys())]
        looked = set(waiting)
        while waiting:
            file = waiting.pop()
            if file in _hashes and file not in roots and not _below(file, _left_out):
                found[file] = _hashes[file]
            more = set(_read.get(file, ())) - looked
            looked |= more
            waiting += more
        for file, digest in sorted(found.items()):
            if file in _mixed or content(file) != digest:
                raise UsageError(
                    f"{file} was edited after this process read it, so its numbers would mix old and new contents; "
                    "start the command anew, and edit no file while it runs"
                )
    return found


def _hook(event: str, given: tuple[object, ...]) -> None:
    """Note the opening of a file. An error in this hook does not disturb the opening."""
    if event != "open" or getattr(_busy, "on", False):
        return
    _busy.on = True
    try:
        path, _, flags = given
        if isinstance(path, str | bytes) and isinstance(flags, int):
            _note(os.path.abspath(os.fsdecode(path)), flags, sys._getframe(1))
    except (OSError, ValueError, NotImplementedError):
        pass
    finally:
        _busy.on = False


def _note(path: str, flags: int, frame: FrameType | None) -> None:
    readers, called = _readers(frame)
    if not readers:
        return
    if "__pycache__" in path:
        path = source_from_cache(path)
    if _ignored(path):
        return
    with _lock:
        if flags & _WRITES:
            _left_out.update({path} if called else ())  # if privkit called the writer
            return
        for reader in readers:
            _read.setdefault(reader, {})[path] = None
        stat = os.stat(path) if os.path.isfile(path) else None
        known = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) if stat else ()
        if path not in _hashes or _stats[path] != known:
            now = content(path)
            if path in _opened and _hashes[path] != now:
                _mixed.add(path)
            _hashes[path], _stats[path] = now, known
        _opened.add(path)


def _readers(frame: FrameType | None) -> tuple[set[str], bool]:
    """The source files outside privkit on the call stack, and whether privkit called them. The set is empty if privkit
    opens the file for itself or for its data."""
    files: set[str] = set()
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.startswith("privkit."):
            if name == _DATA:
                return set(), True
            if f"{name}.".startswith(_CALLERS):
                return files, True
        elif name.partition(".")[0] in _plugins or not _ignored(frame.f_code.co_filename):
            home = frame.f_globals.get("__file__")  # differs from co_filename if source calls exec
            files |= {os.path.abspath(at) for at in (frame.f_code.co_filename, home) if isinstance(at, str)}
        frame = frame.f_back
    return files, False


@lru_cache(maxsize=100_000)
def _ignored(path: str) -> bool:
    """Whether a path belongs to Python, the system, or an installed package, whose version identifies its files."""
    installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
    return path.startswith("<frozen") or installed or _below(path, _places())


@lru_cache(maxsize=1)
def _places() -> frozenset[str]:
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), site.getusersitepackages()}
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ours = {here, str(cache_folder()), *(os.path.realpath(os.path.join(here, part)) for part in ("", *_LIBRARIES))}
    return frozenset({*_SYSTEM, *(os.path.abspath(place) for place in python), *ours} - {os.path.sep})


def _below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(place + os.path.sep) for place in places)
