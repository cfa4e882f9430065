"""Who works on a run at the moment, and on which cell: one record a worker, in RUN/.workers.

A claim is a field of its worker's record, so a worker that is gone claims nothing. On the same host, a worker lives
while it holds the lock beside its record; the system frees that lock when the process ends, however it ends. On another
host, a worker lives while its heartbeat, the last writing of its record, is at most `STALE` seconds old.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Literal

from filelock import FileLock, Timeout

from privkit.errors import DamagedFile, PrivkitError
from privkit.files.paths import open_file
from privkit.files.storage import make_folder, read_record, write_record, writing

HEARTBEAT = 10.0
"""Seconds between two writings of a worker's record."""
STALE = 120.0
"""Seconds without a heartbeat after which a worker of another host counts as gone."""
HOST = re.sub(r"[^A-Za-z0-9.]", "-", platform.node())[:80] or "host"

Role = Literal["audit", "work"]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A process that works on a run.

    Attributes:
        name: of its record.
        host: where it runs.
        pid: its process.
        role: "audit" for the command that plans and reports, of which there is one at a time, or "work".
        since: when it began.
        versions: what it computes with -> which; workers of one run must agree.
        cell: the cell that it claims; empty for none.
        model: the defended model of that cell, which it trains if nobody did.
        attack: label of that cell's attack.
    """

    name: str
    host: str
    pid: int
    role: Role
    since: str
    versions: dict[str, str]
    cell: str = ""
    model: str = ""
    attack: str = ""

    @property
    def described(self) -> str:
        """Where it runs, in words."""
        return f"process {self.pid} on {self.host}, since {self.since}"


class Workers:
    """The workers of a run, this process among them. Only the heartbeat and `leave` need no lock of the run.

    Args:
        run: the folder.
        role: of this process.
    """

    def __init__(self, run: Path, role: Role) -> None:
        self.folder = run / ".workers"
        name = f"{HOST}-{os.getpid()}-{secrets.token_hex(3)}"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.own = Worker(name=name, host=HOST, pid=os.getpid(), role=role, since=now, versions={})
        self._path, self._writes, self._over = self.folder / f"{name}.json", Lock(), Event()
        self._alive = FileLock(self._path.with_suffix(".lock"), thread_local=False)

    def enter(self) -> None:
        """Write the record of this process, and again at each heartbeat.

        Raises:
            StorageError: if it cannot be written.
        """
        with writing(self.folder):
            make_folder(self.folder)
            self._alive.acquire(blocking=False)
        self._over.clear()
        self.claim()
        Thread(target=self._beat, daemon=True, name="heartbeat").start()

    def leave(self) -> None:
        """Remove the record of this process."""
        self._over.set()
        with self._writes, suppress(OSError):
            self._alive.release()
            self._path.with_suffix(".lock").unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)

    def claim(self, cell: str = "", model: str = "", attack: str = "") -> None:
        """Claim a cell and what it needs, or give up the last claim."""
        self.own = replace(self.own, cell=cell, model=model, attack=attack)
        self._write()

    def tell(self, versions: dict[str, str]) -> None:
        """Say in the record what this process computes with."""
        self.own = replace(self.own, versions=versions)
        self._write()

    def others(self) -> list[Worker] | None:
        """The other workers that live; None if the record of one cannot be read, which its next heartbeat mends."""
        if not self._alive.is_locked:  # on a file system without locks a run has one worker
            return []
        found, readable = [], True
        if not self._path.exists():  # another host believed this process lost
            self._write()
        os.utime(self._path)  # now, by the clock of the file system
        now = self._path.stat().st_mtime
        for path in sorted(self.folder.glob("*.json")):
            if path == self._path:
                continue
            if self._gone(path, now):
                path.unlink(missing_ok=True)  # and with it its claim
                continue
            try:
                record = read_record(path, name=path.stem)
                found += [Worker(**record)] if record is not None else []
            except (DamagedFile, TypeError):
                readable = False
        return found if readable else None

    def _gone(self, path: Path, now: float) -> bool:
        """Whether the worker of a record ended or was lost."""
        if path.name.rsplit("-", 2)[0] == HOST:
            return _free(path.with_suffix(".lock"))
        try:
            return now - path.lstat().st_mtime > STALE
        except FileNotFoundError:
            return True

    def clear(self) -> None:
        """Remove the locks of lost workers, which have no record any more; under the lock of the run."""
        for path in self.folder.glob("*.lock"):
            if path.stem != self.own.name and not path.with_suffix(".json").exists():
                path.unlink(missing_ok=True)

    def _write(self) -> None:
        """Write this process's record; its time is the heartbeat."""
        with self._writes:
            if self._alive.is_locked and not self._over.is_set():
                write_record(self._path, asdict(self.own))

    def _beat(self) -> None:
        """Write the record now and then; a run folder that was removed stays so."""
        while not self._over.wait(HEARTBEAT):
            with suppress(PrivkitError):
                self._write()


def _free(path: Path) -> bool:
    """Whether nobody on this host holds the lock of a worker."""
    try:
        os.close(open_file(path, os.O_RDWR))  # neither a link nor a pipe
        with FileLock(path).acquire(blocking=False):
            return True
    except Timeout:
        return False
    except OSError:
        return True
