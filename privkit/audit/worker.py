"""Computes cells (one defense, attack and seed each), in the command itself or as an engine's worker."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

import torch
from filelock import FileLock, Timeout

from privkit.audit.cell import run_cell
from privkit.audit.contained import contained, runs_own_code, unending
from privkit.audit.defended import defended_model
from privkit.audit.seed_data import SeedData, prepare
from privkit.errors import DamagedFile, PrivkitError, RunFolderError, UsageError
from privkit.files import observed
from privkit.files.caches import use_own_caches
from privkit.files.paths import inside, root
from privkit.files.storage import make_folder, read_record, write_bytes
from privkit.metrics.perception import Perception
from privkit.reports.origins import differences
from privkit.reports.schema import Provenance, Row
from privkit.run import engines
from privkit.run.folder import RunFolder
from privkit.run.ledger import LEADER, SCRATCH
from privkit.run.plan import Cell, plan
from privkit.run.progress import Progress
from privkit.run.provenance import Ingredients, circumstances, ingredients
from privkit.run.records import line
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve
from privkit.settings.values import as_device
from privkit.torch_utils.freed_memory import keep_freed_memory
from privkit.torch_utils.precision import computes_bfloat16

_one = Lock()
_opened: tuple[str, CellWorker] | None = None


@dataclass(kw_only=True)
class CellWorker:
    """Computes cells (one defense, attack and seed each) of a run in this process."""

    config: AuditConfig  # the run's configuration
    device: torch.device  # where to compute
    threads: int  # number of CPU threads
    progress: Progress  # displays the progress
    cells: list[Cell] = field(init=False)  # all cells of the run, in the planned order
    here: Provenance = field(init=False)  # provenance that all numbers of this process share
    parts: dict[str, AuditConfig] = field(init=False, default_factory=dict)  # cell's id -> config with its protocol
    made_of: dict[str, Ingredients] = field(init=False, default_factory=dict)  # cell's id -> provenance without records
    _perception: Perception = field(init=False)
    _images: tuple[int, AuditConfig, SeedData] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.cells = plan(self.config)
        observed.begin()
        self._perception = Perception.of(self.config.features, self.device, self.config.own_metrics)
        self.here = circumstances(self.device.type, self.threads)
        for part in self.config.parts:
            own = plan(replace(part, also=()))
            self.parts |= {cell.id: part for cell in own}
            self.made_of |= ingredients(part, own, self._perception, self.here)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context manager in which torch uses the run's number of threads, and a user's code cannot end the process."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)  # on resume, the manifest's number: other numbers round differently
        try:
            with unending():
                yield
        finally:
            torch.set_num_threads(threads)

    def run(self, cell: Cell, folder: RunFolder) -> Row:
        """Compute one cell (defense, attack and seed) on the records of its seed; the cell's files stay in `folder`."""
        part = self.parts[cell.id]
        images = self._seed_data(cell.seed, part)
        return run_cell(part, cell, images, folder, self.progress, self.made_of[cell.id].on(images.hashes))

    def train(self, cell: Cell, folder: RunFolder) -> None:
        """Train the model that a cell (defense, attack and seed) attacks; the model's files stay in `folder`.

        An error is not reported here: it comes again when the cell itself is computed.
        """
        part, made_of = self.parts[cell.id], self.made_of[cell.id]
        with suppress(Exception):
            images = self._seed_data(cell.seed, part)
            made_of = made_of.on(images.hashes)
            folder.begin(cell, made_of)
            noted = partial(folder.note, cell, made_of)
            defended_model(part, cell, images, folder, self.progress, lambda text: None, noted)

    def _seed_data(self, seed: int, part: AuditConfig) -> SeedData:
        if self._images is None or self._images[0] != seed or self._images[1] is not part:
            with contained() if runs_own_code(part) else nullcontext():
                images = prepare(part, seed, self.device, self._perception)
            self._images = seed, part, images
            for warning in images.warnings:
                self.progress.note(f"seed {seed}: {warning}")
        return self._images[2]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings and paths that a worker needs to compute results of a run."""

    settings: dict[str, Any]  # the run's settings, as they were given
    trust: tuple[str, ...]  # modules from which a recording may build its segments
    run: str  # path of the run's folder; a worker may be unable to read it
    token: str  # random text by which workers recognize the run of the leading command
    device: str  # "cpu", "cuda" or "auto"
    threads: int  # number of threads of each worker
    versions: dict[str, str]  # versions that the command uses; a worker must have the same


@dataclass(frozen=True, kw_only=True)
class Task:
    """One cell (defense, attack and seed) that a worker computes."""

    cell: str  # the cell's id
    number: int  # the task's number, unique in a run
    names: tuple[str, ...]  # names of the files in the run folder from which the task continues
    files: dict[str, bytes] | None = None  # the files' contents by name; None for a worker that reads them itself
    trains: bool = False  # whether only the cell's model is trained, for which other cells wait


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a worker returns for a task."""

    row: str = ""  # the result row as JSON with a checksum; empty without a result
    files: dict[str, bytes] = field(default_factory=dict)  # path in the run folder -> content, of new and changed files
    gone: tuple[str, ...] = ()  # paths of files that are no longer needed
    notes: tuple[str, ...] = ()  # sentences for the user
    seconds: float = 0.0  # elapsed time
    unseen: bool = False  # whether the worker could not read the run folder, so the task must contain the files
    error: Exception | None = None  # error that ends the run


class _Notes(Progress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


class _Scratch(RunFolder):
    """The folder of one task. If the worker can read the run's folder, it reuses control experiments from there."""

    def __init__(self, path: Path, run: RunFolder, sees: bool) -> None:
        super().__init__(path, run.path)
        self._run, self._sees = run, sees

    def control(self, attack: dict[str, Any]) -> Path:
        path = super().control(attack)
        if self._sees and not path.exists():
            done = self._run.content(path.relative_to(self.path).as_posix())
            if done is not None:
                write_bytes(path, done)
        return path


def compute(job: Job, task: Task) -> TaskResult:
    """Compute one task of a run in a folder of its own; an error is returned in the result, not raised.

    A process computes one task at a time, since threads share random generators.
    """
    with _one:
        try:
            return _computed(job, task)
        except (PrivkitError, MemoryError) as error:
            return TaskResult(error=error)
        except Exception:
            return TaskResult(error=RuntimeError(traceback.format_exc()))


def _computed(job: Job, task: Task) -> TaskResult:
    run = RunFolder(job.run)
    try:
        sees = (read_record(run.path / LEADER) or {}).get("token") == job.token
    except DamagedFile:
        sees = False
    given = task.files
    if given is None:
        given = run.contents(task.names) if sees else {}
        if len(given) < len(task.names):
            return TaskResult(unseen=True)
    worker = _open(job)
    worker.progress = notes = _Notes()
    cell = next(cell for cell in worker.cells if cell.id == task.cell)
    with _folder(run.path / SCRATCH / f"{job.token}-{task.number}" if sees else None) as path, worker.computing():
        observed.leave_out(path)
        folder, start = _Scratch(path, run, sees), perf_counter()
        if not folder.names():  # else an earlier worker of this task was lost
            for name in given:
                write_bytes(inside(path, *name.split("/")), given[name], flush=False)
        row = None if task.trains else worker.run(cell, folder)
        if row is None:
            worker.train(cell, folder)
        else:
            row = row.model_copy(update={"reason": row.reason.replace(str(path), job.run)})
        made = folder.contents(folder.names())
    return TaskResult(
        row="" if row is None else line(row),
        files={name: data for name, data in made.items() if given.get(name) != data},
        gone=tuple(given.keys() - made.keys()),
        notes=tuple(text.replace(str(path), job.run) for text in notes.texts),
        seconds=perf_counter() - start,
    )


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    """Context manager that yields a task's folder: `wanted`, or a temporary folder if `wanted` is None or in use.

    The folder is removed at the end; but if the task fails in `wanted`, it stays, so that another worker can continue.
    """
    lock = None
    if wanted is not None:
        make_folder(wanted.parent)
        make_folder(wanted)
        lock = FileLock(wanted / ".lock")
        try:
            lock.acquire(blocking=False)
        except (Timeout, OSError, NotImplementedError):
            wanted, lock = None, None
    path, failed = root(tempfile.mkdtemp(prefix="privkit-")) if wanted is None else wanted, True
    try:
        for part in ("cells", "models", "controls"):
            make_folder(path / part)
        yield path
        failed = False
    finally:
        if lock is None or not failed:
            shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            lock.release()


def _open(job: Job) -> CellWorker:
    global _opened
    if _opened is None or _opened[0] != job.token:
        use_own_caches()
        keep_freed_memory()
        config = resolve({**job.settings, "trust": list(job.trust)})
        place = pick_device(engines.device or job.device)
        check_precision(config, place)
        worker = CellWorker(config=config, device=place, threads=job.threads, progress=Progress())
        here = Provenance(packages={**worker.here.packages, **worker.here.machine})
        if changes := differences(Provenance(packages=job.versions), here):
            raise RunFolderError(
                f"a worker of {job.run} differs from the command that leads it: {', '.join(changes)}; install the same "
                "on all machines, and choose one kind of device"
            )
        _opened = job.token, worker
    return _opened[1]


def pick_device(name: str) -> torch.device:
    """Choose the torch device from its name: "cpu", "cuda", "cuda:1" (which becomes the current GPU) or "auto"."""
    kind, _, number = as_device(name).partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {name}, but torch sees no CUDA device; use --device cpu or auto")
    if number:
        if torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
            raise UsageError(f"torchrun gives each process a GPU of its own, got --device {name}; use --device cuda")
        if int(number) >= (count := torch.cuda.device_count()):
            raise UsageError(f"--device {name}, but torch sees {count} CUDA devices; use cuda:0 to cuda:{count - 1}")
        torch.cuda.set_device(int(number))
    return torch.device("cuda" if kind == "cuda" or (kind == "auto" and torch.cuda.is_available()) else "cpu")


def check_precision(config: AuditConfig, device: torch.device) -> None:
    """Raise `UsageError` if training uses bfloat16 on a GPU that would only emulate it."""
    if any(part.training.precision == "bfloat16" for part in config.parts) and not computes_bfloat16(device):
        raise UsageError(
            f"--training precision=bfloat16, but {torch.cuda.get_device_name()} computes no bfloat16; use "
            "precision=auto, float32, or --device cpu"
        )


def devices(kind: str, workers: int) -> Sequence[str]:
    """Device names for `workers` processes of one kind, "cpu" or "cuda"; several processes may share a GPU."""
    return ["cpu" if kind == "cpu" else f"cuda:{number % torch.cuda.device_count()}" for number in range(workers)]
