"""One worker of a run: it holds the folder against this command, and does cells until all have a row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from privkit import __version__
from privkit.audit.cell import run_cell
from privkit.audit.contained import contained, runs_own_code, unending
from privkit.audit.report import build
from privkit.audit.seed_data import SeedData, prepare
from privkit.audit.stale import refresh
from privkit.errors import RunFolderError, UsageError
from privkit.files import observed
from privkit.files.caches import use_own_caches
from privkit.files.paths import root
from privkit.metrics.perception import Perception
from privkit.reports.origins import differences
from privkit.reports.schema import Manifest, Provenance, Row
from privkit.run.folder import RunFolder
from privkit.run.ingredients import Ingredients, ingredients
from privkit.run.plan import Cell, plan
from privkit.run.progress import Progress, Silent
from privkit.run.provenance import circumstances
from privkit.run.queue import Queue, work
from privkit.run.records import read_manifest
from privkit.run.verdict import read_verdict
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve
from privkit.settings.values import as_device
from privkit.torch_utils.freed_memory import keep_freed_memory
from privkit.torch_utils.precision import computes_bfloat16


@dataclass(kw_only=True)
class CellWorker:
    """Computes cells of a run in this process.

    Attributes:
        config: of the run.
        folder: joined.
        device: where to compute.
        threads: of the CPU.
        progress: told what happens.
        queue: the run's cells.
    """

    config: AuditConfig
    folder: RunFolder
    device: torch.device
    threads: int
    progress: Progress
    queue: Queue = field(init=False)
    _parts: dict[str, AuditConfig] = field(init=False)
    _made_of: dict[str, Ingredients] = field(init=False)
    _perception: Perception = field(init=False)
    _images: tuple[int, AuditConfig, SeedData] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        cells = plan(self.config)
        self.queue = Queue(self.folder, cells, self.config.gates)
        observed.begin()
        self._perception = Perception.of(self.config.features, self.device, self.config.own_metrics)
        planned = [(part, plan(replace(part, also=()))) for part in self.config.parts]
        here = circumstances(self.device.type, self.threads)
        self._parts = {cell.id: part for part, own in planned for cell in own}
        self._made_of = {
            cell: made for part, own in planned for cell, made in ingredients(part, own, self._perception, here).items()
        }

    def open(self, *, again: bool = False) -> None:
        """Mend the folder, hold what it stores against what this command would compute, and begin.

        Args:
            again: whether what changed is moved away and computed anew; False refuses it.

        Raises:
            RunFolderError: if something changed, another worker computes with other versions, or `again` would take
                cells from other workers.
        """
        folder, cells, leads = self.folder, self.queue.cells, self.folder.workers.own.role == "audit"
        if again and not folder.alone:
            raise RunFolderError(f"--again needs {folder.path} for itself, and others work on it; wait for them to end")
        with folder.exclusive():
            self._agree()
            self._start(errors=True)
        for part in self.config.parts:
            own = [cell for cell in cells if self._parts[cell.id] is part]
            rows = {row.cell: row for row in self.queue.rows if row.status != "error"}
            with folder.exclusive() if again else nullcontext():
                if superseded := refresh(part, folder, own, rows, self._made_of, again=again):
                    self.progress.note(superseded)
                    self._start(errors=True)
        if leads:
            with folder.exclusive():
                if folder.alone and any(row.status == "error" for row in self.queue.rows):
                    self._start(errors=False)
                folder.take(self.threads, self.config.settings)
                self.queue.judge()

    def _start(self, *, errors: bool) -> None:
        """Begin with the rows of the folder, mended; without `errors`, cells that ended in an error run again."""
        rows, mended = self.folder.finished([cell.id for cell in self.queue.cells], errors=errors)
        for sentence in mended:
            self.progress.note(sentence)
        self.queue.start(rows)

    def work(self) -> None:
        """Do cells until all of the run have a row."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)  # of the manifest on resume: other counts round otherwise
        try:
            with unending():  # a thread that a part left behind may try, too
                work(self.queue, self._run, self._ended)
        finally:
            torch.set_num_threads(threads)

    def _agree(self) -> None:
        """Say what this process computes with, and refuse others that compute with something else."""
        here = circumstances(self.device.type, self.threads)
        self.folder.workers.tell({**here.packages, **here.machine})
        mine = Provenance(packages=self.folder.workers.own.versions)
        for other in self.folder.others():
            changes = differences(Provenance(packages=other.versions), mine) if other.versions else []
            if changes:
                raise RunFolderError(
                    f"{self.folder.path} has another kind of worker ({other.described}): {', '.join(changes)}; "
                    "install the same on all machines, choose one kind of device, or give this one a run of its own"
                )

    def _run(self, cell: Cell) -> Row:
        """One cell, on the images of its seed."""
        number, total = len(self.queue.rows) + 1, len(self.queue.cells)
        self.progress.cell(number, total, f"{cell.defense.label} / {cell.attack.label}, seed {cell.seed}")
        part = self._parts[cell.id]
        images = self._seed_data(cell.seed, part)
        made_of = self._made_of[cell.id].on(images.hashes)
        row = run_cell(part, cell, images, self.folder, self.progress, made_of)
        self._check_files(row, made_of)
        return row

    def _check_files(self, row: Row, made_of: Ingredients) -> None:
        """Hold the files that a cell read against those of earlier rows.

        Raises:
            RunFolderError: if one of them had another content.
        """
        read = row.provenance.files.keys() - made_of.cell.files.keys()
        for other in self.queue.rows:
            there = other.provenance.files if other.status != "error" else {}
            if changed := sorted(name for name in read & there.keys() if there[name] != row.provenance.files[name]):
                raise RunFolderError(
                    f"the file {changed[0]} was edited while the cells of {self.folder.path} were computed; restore "
                    "it, or give --again to recompute what it touches"
                )

    def _ended(self, row: Row) -> None:
        """Say how a cell ended."""
        if row.status != "done":
            self.progress.note(f"{row.defense} / {row.attack}, seed {row.seed}: {row.status}: {row.reason}")
        self.progress.ended(row.status)

    def _seed_data(self, seed: int, part: AuditConfig) -> SeedData:
        """What cells of one seed and one protocol share; the last is kept."""
        if self._images is None or self._images[0] != seed or self._images[1] is not part:
            with contained() if runs_own_code(part) else nullcontext():
                images = prepare(part, seed, self.device, self._perception)
            self._images = seed, part, images
            if images.dropped:
                left_out = f"{images.dropped} auxiliary {images.splits.domain.records}"
                self.progress.note(f"seed {seed}: {left_out} are private or attacked ones; left out")
            for warning in images.warnings:
                self.progress.note(f"seed {seed}: {warning}")
        return self._images[2]


def join(
    run: Path | str, *, device: str | None = None, progress: Progress | None = None, trust: Sequence[str] = ()
) -> int:
    """Help with a run that `privkit audit` planned, until each of its cells has a row.

    The last of all workers writes the report, unless the audit still runs and does so itself.

    Args:
        run: its folder.
        device: "cpu", "cuda", "cuda:1", …, or "auto"; None for what the audit was told.
        progress: told what happens; silent by default.
        trust: modules that its recording may build segments from; a run folder does not say them.

    Returns:
        How many cells of the run have a row: all of them.

    Raises:
        PrivkitError: with one sentence, if it is no run, was planned by another privkit, or computes otherwise.
    """
    use_own_caches()
    keep_freed_memory()
    path = root(run)
    config, manifest = planned(path, trust)
    place = pick_device(device or config.device)
    check_precision(config, place)
    with RunFolder(path, manifest, role="work") as folder:
        if folder.unlocked:
            raise RunFolderError(f"{folder.unlocked}: a run has several workers only where files can be locked")
        worker = CellWorker(
            config=config, folder=folder, device=place, threads=folder.manifest.threads, progress=progress or Silent()
        )
        worker.open()
        worker.work()
        with folder.exclusive():
            last = not folder.others()
            folder.leave()  # now, so that one of two that end together is the last
        if last:
            worker.queue.close()
            verdict = read_verdict(folder.path, manifest)
            if verdict is None or not verdict.files:
                build(folder.path, worker.queue.rows, config.gates)
    return len(worker.queue.rows)


def planned(run: Path, trust: Sequence[str] = ()) -> tuple[AuditConfig, Manifest]:
    """The configuration and the manifest of a run that was planned on this or another machine.

    Raises:
        RunFolderError: if there is none, or this process would plan it otherwise.
    """
    manifest = read_manifest(run)
    if manifest is None:
        if next(run.glob("*/manifest.json"), None) is not None:
            raise RunFolderError(f"{run} is a folder of runs; name the runs: privkit work {run}/*")
        raise RunFolderError(
            f"{run} is no run folder: it has no manifest.json; plan a run with: privkit audit … --plan --out {run}"
        )
    if manifest.privkit != __version__:
        raise RunFolderError(
            f"{run} was planned by privkit {manifest.privkit}, and this is {__version__}; install that version "
            "here, or name a new folder with privkit audit --out"
        )
    if not manifest.settings:
        raise RunFolderError(
            f"{run} does not record its settings, so that no other process can work on it; repeat the command or the "
            "call that began it"
        )
    config = resolve({**manifest.settings, "trust": list(trust)})
    if config.fingerprint != manifest.fingerprint or [cell.id for cell in plan(config)] != [
        cell.cell for cell in manifest.cells
    ]:
        raise RunFolderError(
            f"{run} was planned otherwise than this process would plan it; install the same privkit and plug-ins here, "
            "start in the same folder, and run it again"
        )
    return config, manifest


def pick_device(name: str) -> torch.device:
    """The device of a worker; "auto" takes a GPU if there is one, and "cuda:1" makes the second one the current one.

    Raises:
        UsageError: if there is no such device.
    """
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
    """Refuse bfloat16 on a card that would only emulate it.

    Raises:
        UsageError: with what works.
    """
    if any(part.training.precision == "bfloat16" for part in config.parts) and not computes_bfloat16(device):
        raise UsageError(
            f"--training precision=bfloat16, but {torch.cuda.get_device_name()} computes no bfloat16; use "
            "precision=auto, float32, or --device cpu"
        )
