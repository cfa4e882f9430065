"""Runs an audit: plans cells (one defense, attack and seed each), computes unfinished ones, and reports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from privkit.audit.contained import contained, is_own_part, runs_own_code
from privkit.audit.lead import AHEAD, Dispatch, Leader
from privkit.audit.probe import check_shapes
from privkit.audit.report import build
from privkit.audit.seed_data import open_data
from privkit.audit.worker import CellWorker, check_precision, devices, pick_device
from privkit.errors import UsageError
from privkit.files.caches import use_own_caches
from privkit.reports import answers, html
from privkit.reports.columns import flat_record
from privkit.reports.schema import Row
from privkit.reports.tables import Table
from privkit.reports.verdict import Verdict
from privkit.run.engines import Wanted
from privkit.run.engines import engine as opened
from privkit.run.ledger import RunLedger
from privkit.run.plan import cell_counts
from privkit.run.progress import Progress
from privkit.run.provenance import default_threads, manifest
from privkit.run.records import verdict_of
from privkit.run.stopping import finished_cells
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve
from privkit.settings.values import as_count
from privkit.torch_utils.freed_memory import keep_freed_memory
from privkit.training.distributed import joined_processes

if TYPE_CHECKING:
    from pandas import DataFrame

    from privkit.reports.conclusion import Conclusion

_MOST_WORKERS = 4  # largest default number of workers; in the default audit each took 1.04 GB of memory


@dataclass(frozen=True, kw_only=True)
class AuditRun:
    """Holds the results of a finished audit.

    Attributes:
        rows: the results, one for each defense, attack and seed, in the order in which the audit planned them.
        folder: the run folder, which holds all files of the run.
        report: path of the report's HTML page.
        verdict: the verdict on results, checks and gates (the user's pass/fail conditions), as in `verdict.json`.
    """

    rows: tuple[Row, ...]
    folder: Path
    report: Path
    verdict: Verdict

    @property
    def failures(self) -> tuple[str, ...]:
        """Describe each failed check and gate (a user's pass/fail condition) in one sentence; empty if all passed."""
        return self.verdict.failures

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command `privkit audit`: 0 if all is well, 1 if a check or a gate (a user's
        pass/fail condition) failed, 3 if results are errors or missing.
        """
        return self.verdict.exit_code

    @property
    def conclusions(self) -> list[Conclusion]:
        """Draw the conclusions on each defense that stand at the top of the report."""
        from privkit.parts.threats import threats_of
        from privkit.reports.conclusion import conclusions

        return conclusions(self.rows, threats_of(self.rows))

    def table(self) -> Table:
        """Build the report's table: means over several seeds, or one line per result if the run has one seed. Attacks
        that make a constant guess are at the bottom.
        """
        return answers.run_tables(self.rows)[0][0]

    def to_pandas(self) -> DataFrame:
        """Return all numbers as a data frame, with one line for each defense, attack and seed.

        It has the columns of `report/tables/audit.csv`; a number that a result lacks is NaN.

        Raises:
            UsageError: if pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise UsageError("run.to_pandas() needs pandas; pip install 'privkit-sl[pandas]'") from None
        return DataFrame([flat_record(row) for row in self.rows])

    def _repr_html_(self) -> str:
        return html.html_run(answers.run_tables(self.rows), self.verdict, self.report)


def run_audit(
    config: AuditConfig | None = None,
    *,
    out: Path | str | None = None,
    progress: Progress | None = None,
    again: bool = False,
    workers: int | None = 1,
    engine: str | None = None,
    **settings: Any,
) -> AuditRun:
    """Run an audit: train each defended model, attack its releases, and write a report. An interrupted run continues.

    Args:
        config: the configuration; None if its settings are given as keywords, as in a configuration file
            (`defense="batch_shuffle"`).
        out: the run folder; None for a folder under ./privkit-runs that is named after the configuration.
        progress: an object that shows the progress; None shows nothing.
        again: whether to recompute models and results whose data, code, versions or device changed. If False, such a
            change raises an error.
        workers: the number of local processes that share the work, the threads and the devices. None takes one for each
            result, at most 4 and at most the number of threads, and a single one on a GPU, with an engine or with the
            user's own code. With an engine, `workers` is the number of results that are submitted at once; 1 means
            1,000.
        engine: where results are computed: "dask", "mpi", "submitit" (Slurm) with options as on the command line, or
            the user's own "module:factory" of an executor; None for this machine.
        **settings: settings of the audit, such as `attack`, `dataset` and `budget`; their names are in
            `privkit.settings.table.KEYS`. Also `trust`, the modules from which a recording may build its networks.

    Returns:
        The results, the verdict, and the paths of the run folder and the report.

    Raises:
        PrivkitError: if the configuration, the data or the folder is faulty; the message is one sentence.

    >>> import tempfile
    >>> small = {"attack": "mean_image", "dataset": "tiny_digits", "budget": "smoke", "threads": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = run_audit(defense="patch_shuffle", out=folder + "/run", **small)
    >>> [row.defense for row in run.rows]
    ['none', 'patch_shuffle']
    >>> run.table().headers[:4]
    ('defense', 'attack', 'seed', 'accuracy ↑')
    >>> run.to_pandas()["unaligned_mse"].between(0, 0.3).all().item()
    True
    """
    if config is not None and settings:
        raise UsageError("give a configuration or its settings, not both")
    config = resolve(settings) if config is None else config
    with _led(config, out, progress, again, workers, engine) as (leader, workers):
        try:
            if workers == 1 and engine is None:
                leader.work_here()
            elif leader.left:
                ahead = AHEAD if engine and workers == 1 else workers
                each = devices(leader.worker.device.type, workers)
                wanted = Wanted(devices=each, threads=leader.worker.threads, run=leader.ledger.path)
                with opened(engine, wanted) as executor:
                    Dispatch(leader, executor, ahead).work()
        except KeyboardInterrupt as stopped:
            folder = leader.ledger.path
            kept = finished_cells(folder, leader.planned)
            stopped.add_note(f"{kept}; go on with the same call and out={str(folder)!r}")
            raise
        leader.close()
        rows = leader.ordered
        page = build(leader.ledger.path, rows, config.gates)
        verdict = verdict_of(leader.ledger.manifest, rows, config.gates)
    return AuditRun(rows=tuple(rows), folder=leader.ledger.path, report=page, verdict=verdict)


def plan_audit(
    config: AuditConfig, out: Path, *, again: bool = False, workers: int | None = 1, engine: str | None = None
) -> Path:
    """Check the settings of an audit and create its run folder, in which `run_audit` then computes the results."""
    with _led(config, out, None, again, workers, engine) as (leader, _):
        return leader.ledger.path


@contextmanager
def _led(
    config: AuditConfig,
    out: Path | str | None,
    progress: Progress | None,
    again: bool,
    workers: int | None,
    engine: str | None,
) -> Iterator[tuple[Leader, int]]:
    """Check folder, plan and data, and open the run; yields its leader and the number of workers."""
    use_own_caches()  # before anything that may compile
    keep_freed_memory()
    check_batches(config)
    device, progress = pick_device(config.device), progress or Progress()
    check_precision(config, device)
    if workers not in (1, None) or engine is not None:
        check_workers(config, 1 if workers is None else workers)
    folder_path = Path(out) if out is not None else default_folder(config)
    if not os.path.exists(folder_path / "manifest.json"):  # else it was checked when the run began
        for part in config.parts if config.recording is None else ():
            with contained() if runs_own_code(part) else nullcontext():
                check_shapes(part, open_data(part)[0])
    processes, threads = shared_out(config, device, workers, engine)
    with RunLedger(folder_path, manifest(config, threads=threads)) as ledger:
        if ledger.unlocked:
            progress.note(ledger.unlocked)
        if not config.threads and threads != ledger.manifest.threads:
            threads = ledger.manifest.threads
            processes = workers or min(processes, max(1, default_threads() // threads))
        worker = CellWorker(config=config, device=device, threads=threads, progress=progress)
        leader = Leader(worker=worker, ledger=ledger)
        leader.open(again=again)
        yield leader, processes


def shared_out(config: AuditConfig, device: torch.device, workers: int | None, engine: str | None) -> tuple[int, int]:
    """The number of worker processes of a run, and of CPU threads of each.

    If `workers` is None, there are as many processes as results, but at most 4 and at most the number of threads. There
    is one process on a GPU, under torchrun, with an engine, with an explicit number of threads, or for a user's own
    code.
    """
    threads = config.threads or default_threads()
    if workers is None:
        whole = config.threads or device.type != "cpu" or joined_processes()[1] > 1 or not config.settings
        own = any(map(runs_own_code, config.parts)) or any(is_own_part(one.spec) for one in config.every_attack)
        workers = 1 if engine or whole or own else min(_MOST_WORKERS, threads, cell_counts(config)[0])
    shared = workers if engine in (None, "dask") else 1  # other workers have machines of their own
    return workers, max(1, threads // shared)


def check_workers(config: AuditConfig, workers: int) -> None:
    """Raise `UsageError` if workers cannot compute this run."""
    as_count("workers")(workers)
    if ":" in config.device:
        raise UsageError(f"workers share all GPUs, got --device {config.device}; use --device cuda")
    if not config.settings:
        raise UsageError("workers read a run's settings; make the configuration with privkit.settings.resolve.resolve")


def default_folder(config: AuditConfig) -> Path:
    """The run folder if `out` is not given; the same configuration always gets the same folder."""
    return Path("privkit-runs") / f"{config.dataset.name}-{config.fingerprint}"


def check_batches(config: AuditConfig) -> None:
    """Raise `UsageError` for a batch size at which a defense has no effect."""
    for part in config.parts:
        for defense in part.defenses:
            if part.training.batch_size < defense.spec.smallest_batch:
                raise UsageError(
                    f"{defense.name} needs batches of at least {defense.spec.smallest_batch} records, got "
                    f"batch_size={part.training.batch_size}: on a smaller batch it has no effect"
                )
