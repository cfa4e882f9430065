"""The leader of a run: the only process that plans, gives work to workers, and writes results into the run folder."""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter

import torch

from privkit.audit.cell import planned_row
from privkit.audit.contained import has_own_part
from privkit.audit.seed_data import read_records
from privkit.audit.worker import CellWorker, Job, Task, TaskResult, compute
from privkit.errors import Failure, RunFolderError, one_line
from privkit.files.sealed import Broken
from privkit.reports.origins import differences
from privkit.reports.schema import Provenance, Row
from privkit.reports.strongest import lost
from privkit.run.ledger import RunLedger
from privkit.run.plan import Cell, Schedule
from privkit.run.progress import duration
from privkit.run.records import TRAINED, holds, parse_row, verdict_of, write_verdict
from privkit.run.sources import as_it_is_now
from privkit.settings.config import AuditConfig

LIVES = 3  # number of lost workers after which a cell (defense, attack, seed) ends as an error
AHEAD = 1000  # number of cells that an engine gets at once by default
_SHOWN = 2  # largest number of cells in progress that are named one by one
_SHARE = 20  # the pause between two verdicts is at least this many times the seconds of writing one


class WorkersEnded(Failure):
    """Raised if the workers of a run ended before one of them returned a result; finished results are kept."""


@dataclass(kw_only=True)
class Leader:
    """The state of a run in the process that leads it."""

    worker: CellWorker  # computes cells in this process, and knows the provenance of each
    ledger: RunLedger  # the run folder, of which this process is the writer
    rows: dict[str, Row] = field(default_factory=dict)  # rows of the finished cells, by their id
    _files: dict[str, str] = field(init=False, default_factory=dict)
    _lost: dict[str, bool] = field(init=False, default_factory=dict)
    _judged: tuple[float, float] = (0.0, 0.0)  # when the last verdict was written, and the seconds that writing it took

    @property
    def ordered(self) -> list[Row]:
        """The finished result rows in the order of the plan."""
        return [self.rows[cell.id] for cell in self.worker.cells if cell.id in self.rows]

    @property
    def planned(self) -> int:
        """Number of cells (defense, attack, seed) to compute. A cell that attacks the undefended model for comparison
        counts only after the same attack has failed on a defense."""
        cells = self.worker.cells
        waiting = [cell for cell in cells if cell.twin_of and cell.id not in self.rows]
        needed = sum(any(self._failed(one) for one in cell.twin_of if one in self.rows) for cell in waiting)
        return len(cells) - len(waiting) + needed

    @property
    def left(self) -> int:
        """Number of planned cells (defense, attack, seed) that have no result row yet."""
        return self.planned - len(self.rows)

    def _failed(self, cell: str) -> bool:
        if cell not in self._lost:
            self._lost[cell] = lost(self.rows[cell])
        return self._lost[cell]

    def open(self, *, again: bool = False) -> None:
        """Begin or continue a run: repair its folder, and compare the stored provenance with the current one.

        If the provenance of models or results changed, they are computed anew if `again` is true; otherwise a
        `RunFolderError` is raised.
        """
        worker = self.worker
        self.ledger.recover()
        self._start()
        for part in worker.config.parts:
            if superseded := self._refresh(part, again=again):
                worker.progress.note(superseded)
                self._start()
        self.ledger.take(worker.threads, worker.config.settings)
        self.judge()

    def _start(self) -> None:
        self.rows, mended = self.ledger.finished([cell.id for cell in self.worker.cells])
        for sentence in mended:
            self.worker.progress.note(sentence)
        self._files, self._lost = {}, {}
        for row in self.rows.values():
            self._files = row.provenance.files | self._files

    def schedule(self) -> Schedule:
        """The schedule of the remaining cells (defense, attack, seed)."""

        def trained(model: str) -> bool:
            return (self.ledger.model(model) / TRAINED).exists()

        known = {row.attack for row in self.rows.values()}
        return Schedule(self.worker.cells, self.rows.keys(), known, trained, self._failed)

    def work_here(self) -> None:
        """Compute all remaining results in this process."""
        schedule, progress = self.schedule(), self.worker.progress
        with self.worker.computing():
            while (cell := schedule.take()) is not None:
                progress.cell(len(self.rows) + 1, self.planned, cell.in_words)
                row = self.finish(cell, self.worker.run(cell, self.ledger))
                schedule.finish(cell)
                progress.ended(row.status)

    def finish(self, cell: Cell, row: Row) -> Row:
        """Store a finished result row and return it as stored; at intervals, also write the verdict."""
        if row.status != "error":
            self._check_files(row, self.worker.made_of[cell.id].cell.files)
        self.rows[cell.id] = row = self.ledger.finish(row)
        if row.status != "done":
            self.worker.progress.note(f"{cell.in_words}: {row.status}: {row.reason}")
        ended, took = self._judged
        if perf_counter() - ended > _SHARE * took:
            self.judge()
        return row

    def judge(self) -> None:
        """Write the verdict on the result rows so far into the run folder."""
        start = perf_counter()
        write_verdict(self.ledger.path, verdict_of(self.ledger.manifest, self.ordered, self.worker.config.gates))
        self._judged = perf_counter(), perf_counter() - start

    def close(self) -> None:
        """Sort `results.jsonl` by the order of the plan, and write the verdict."""
        self.ledger.arrange(self.ordered)
        self.judge()

    def _check_files(self, row: Row, static: Mapping[str, str]) -> None:
        """Raise `RunFolderError` if a file, except `static` ones, has another hash than in earlier rows."""
        read = {name: digest for name, digest in row.provenance.files.items() if name not in static}
        if changed := sorted(name for name, digest in read.items() if self._files.get(name, digest) != digest):
            raise RunFolderError(
                f"the file {changed[0]} was edited while the cells of {self.ledger.path} were computed; restore "
                "it, or give --again to recompute what it touches"
            )
        self._files = row.provenance.files | self._files

    def _refresh(self, config: AuditConfig, *, again: bool) -> str:
        """Compare the stored provenance (data, code, versions, device) of models and results with the current one.

        If `again`, changed models and results are moved to RUN/superseded and computed anew; otherwise a change raises
        `RunFolderError`. Returns a sentence about the moved folders; empty if nothing changed.
        """
        folder, cells = self.ledger, [cell for cell in self.worker.cells if self.worker.parts[cell.id] is config]
        begun = [(cell, origin) for cell in cells if (origin := self._stored(cell))]
        seeds = {cell.seed for cell, _ in begun}
        images = {seed: read_records(config, seed, torch.device("cpu")).hashes for seed in seeds}
        changed, flags, touched = dict[str, None](), dict[str, None](), dict[Path, None]()
        for cell, stored in begun:
            now = self.worker.made_of[cell.id].on(images[cell.seed])
            for home, there in stored.items():
                here = now.model if home == folder.model(cell.model_id) else now.cell
                unknown = ["unknown provenance, since its record is missing"]
                here = here if there is None else as_it_is_now(there, here)
                differs = unknown if there is None or not there.packages else differences(there, here, seed=cell.seed)
                if differs:
                    touched[home] = None
                    changed |= dict.fromkeys(differs)
                    flags |= dict.fromkeys(_flags(there, here))
        if not touched:
            return ""
        models = len([home for home in touched if home.parent.name == "models"])
        of_models = f"{models} of {len({cell.model_id for cell in cells})} models"
        size = f"{of_models}, {len(touched) - models} of {len(cells)} cells"
        if again:
            folder.set_aside(list(reversed(touched)))  # cells before their models
            return (
                f"recomputed because of {', '.join(changed)}: {size}; the old ones are in {folder.path / 'superseded'}"
            )
        earlier = f" ({' '.join(flags)})" if flags else ""
        raise RunFolderError(
            f"{folder.path} does not match this command: {', '.join(changed)}; restore what changed{earlier}, name "
            f"another folder with --out, or give --again to recompute what it touches ({size})"
        )

    def _stored(self, cell: Cell) -> dict[Path, Provenance | None]:
        """Read how a cell (one attack on one defense with one seed) and its model were produced: folder -> provenance,
        for each of the two folders that holds results; None if the provenance is not recorded."""
        model, home = self.ledger.model(cell.model_id), self.ledger.cell(cell.id)
        recorded = {model: self.ledger.made_of(model)} if holds(model) else {}
        if cell.id in self.rows:
            recorded[home] = self.rows[cell.id].provenance
        elif holds(home):
            recorded[home] = self.ledger.made_of(home)
        return recorded


class Dispatch:
    """Computes the cells of a run (defense, attack, seed) on the workers of an engine, at most `ahead` at once.

    If a worker is lost (its future raises an exception), another worker continues its cell from the saved state. A cell
    that lost `LIVES` workers ends as an error.
    """

    def __init__(
        self, leader: Leader, executor: Executor, ahead: int, compute: Callable[[Job, Task], TaskResult] = compute
    ) -> None:
        worker = leader.worker
        self._leader, self._executor, self._ahead, self._compute = leader, executor, ahead, compute
        self._schedule, self._progress = leader.schedule(), worker.progress
        self._futures: dict[Future[TaskResult], tuple[Cell, Task]] = {}
        self._ended: SimpleQueue[Future[TaskResult]] = SimpleQueue()
        self._lost: Counter[str] = Counter()
        self._trained_first = set[str]()  # models that were trained by a task of their own
        self._given_up: list[tuple[Cell, str]] = []
        self._number, self._heard, self._ships = 0, False, False
        self._before, self._start, self._told = len(leader.rows), perf_counter(), set[str]()
        recording = worker.config.recording
        self._job = Job(
            settings=dict(worker.config.settings),
            trust=tuple(recording.trust) if recording else (),
            run=str(leader.ledger.path),
            token=leader.ledger.token,
            device=worker.device.type,
            threads=worker.threads,
            versions={**worker.here.packages, **worker.here.machine},
        )

    def work(self) -> None:
        """Compute all remaining results on the workers; raises `WorkersEnded` if no worker returns a result."""
        try:
            while self._submit():
                now = [cell.in_words for cell, _ in self._futures.values()]
                self._progress.stage("; ".join(now) if len(now) <= _SHOWN else f"{len(now)} cells", unit="cells")
                self._progress.step(len(self._leader.rows), self._leader.planned)
                future = self._ended.get()
                cell, task = self._futures.pop(future)
                try:
                    answer = future.result()
                except (Exception, CancelledError) as error:
                    self._leader.ledger.recover(f"{self._job.token}-{task.number}")
                    self._lose(cell, one_line(error))
                else:
                    self._heard = True
                    self._take(cell, task, answer)
                    self._give_up()
            self._give_up()
        finally:
            for future in self._futures:
                future.cancel()

    def _submit(self) -> bool:
        """Submit cells up to the limit; return whether any are being computed."""
        while len(self._futures) < self._ahead and (cell := self._schedule.take()) is not None:
            names, self._number = self._leader.ledger.names(cell), self._number + 1
            files = self._leader.ledger.contents(names) if self._ships else None
            if trains := self._trains_first(cell):
                self._trained_first.add(cell.model_id)
            task = Task(cell=cell.id, number=self._number, names=names, files=files, trains=trains)
            try:
                future = self._executor.submit(self._compute, self._job, task)
            except Exception as error:
                future = Future()
                future.set_exception(error)
            self._futures[future] = cell, task
            future.add_done_callback(self._ended.put)
        return bool(self._futures)

    def _trains_first(self, cell: Cell) -> bool:
        """Whether a cell's model is trained by a task of its own, so that other workers can attack the model soon."""
        config = self._leader.worker.parts[cell.id]
        limited = config.cell_seconds is not None or config.cell_memory is not None
        if self._ahead == 1 or limited or config.recording or has_own_part(config, cell):
            return False
        return cell.model_id not in self._trained_first and self._schedule.shares(cell)

    def _take(self, cell: Cell, task: Task, answer: TaskResult) -> None:
        if answer.error is not None:
            raise answer.error
        if answer.unseen:
            self._ships = True
            self._schedule.again(cell)
            return
        try:
            row = None if task.trains else parse_row(answer.row, cell=cell.id)
        except Broken as error:
            self._lose(cell, f"its worker's row {error}")
            return
        for text in answer.notes:
            if text not in self._told:
                self._told.add(text)
                self._progress.note(text)
        self._leader.ledger.store(answer.files, answer.gone)
        if row is None:
            self._schedule.again(cell)
        else:
            self._finish(cell, row, f" in {duration(answer.seconds)}")

    def _lose(self, cell: Cell, why: str) -> None:
        """After a cell lost its worker, submit the cell again; after `LIVES` losses, let it end as an error."""
        self._lost[cell.id] += 1
        if self._lost[cell.id] < LIVES:
            self._progress.note(f"{cell.in_words}: lost its worker ({why}); another one goes on with it")
            self._schedule.again(cell)
            return
        self._given_up.append((cell, why))
        if self._heard or len(self._given_up) == LIVES:
            self._give_up()

    def _give_up(self) -> None:
        """End cells that lost too many workers as errors; raises `WorkersEnded` if no worker has returned a result."""
        if self._given_up and not self._heard:
            left, planned, why = self._leader.left, self._leader.planned, self._given_up[-1][1]
            raise WorkersEnded(
                f"no worker lived until its first answer ({why}): {left} of {planned} cells are left; the same command "
                "goes on with them"
            )
        worker = self._leader.worker
        while self._given_up:
            cell, why = self._given_up.pop()
            cure = "the same command tries it once more; --workers 1 computes it alone"
            row = Row(
                **planned_row(worker.parts[cell.id], cell),
                status="error",
                reason=f"it lost {LIVES} workers ({why}); {cure}",
                provenance=worker.made_of[cell.id].cell,
            )
            self._finish(cell, row, "")

    def _finish(self, cell: Cell, row: Row, took: str) -> None:
        self._leader.finish(cell, row)
        self._schedule.finish(cell)
        done, total = len(self._leader.rows), self._leader.planned
        rate = (perf_counter() - self._start) / (done - self._before)
        rest = f", about {duration(rate * (total - done))} left" if done < total else ""
        status = row.status.replace("_", " ")
        self._progress.note(f"cell {done} of {total}: {cell.in_words}: {status}{took}{rest}")


def _flags(there: Provenance | None, here: Provenance) -> list[str]:
    machines = ({} if there is None else there.machine), here.machine
    # of a device, only "cpu" or "cuda" is compared, since no flag chooses the kind of GPU
    before, now = ({key: value.partition(",")[0] for key, value in machine.items()} for machine in machines)
    named = {"processes": "torchrun --nproc-per-node"}  # set by no flag of `privkit audit`
    return [f"{named.get(key, f'--{key}')} {value}" for key, value in before.items() if value != now.get(key)]
