"""An audit: plan the cells, run those that are not finished, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from privkit.audit.cell import run_cell
from privkit.audit.probe import check_shapes
from privkit.audit.report import build
from privkit.audit.seed_data import open_data, prepare
from privkit.audit.stale import refresh
from privkit.caches import use_own_caches
from privkit.config import AuditConfig
from privkit.errors import UsageError
from privkit.metrics.perception import Perception
from privkit.reports.schema import Row
from privkit.reports.verdict import Verdict
from privkit.run.folder import RunFolder
from privkit.run.ingredients import ingredients
from privkit.run.plan import Cell, plan
from privkit.run.progress import Progress, Silent
from privkit.run.provenance import circumstances, default_threads, manifest
from privkit.run.stopping import finished_cells
from privkit.run.verdict import verdict_of, write_verdict
from privkit.settings import resolve
from privkit.torch_utils.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from pandas import DataFrame

    from privkit.reports.tables import Table


@dataclass(frozen=True, kw_only=True)
class AuditRun:
    """A finished audit.

    Attributes:
        rows: one a cell, in the order of the plan.
        folder: the run on disk.
        report: its HTML page.
        verdict: on cells, checks and gates, as in `verdict.json`.
    """

    rows: tuple[Row, ...]
    folder: Path
    report: Path
    verdict: Verdict

    @property
    def failures(self) -> tuple[str, ...]:
        """Checks and gates that were not met, a sentence each."""
        return self.verdict.failures

    @property
    def exit_code(self) -> int:
        """0 clean, 1 a gate failed, 3 some cells errored."""
        return self.verdict.exit_code

    def table(self) -> Table:
        """The table of the report: means over seeds if there are several, else a line a row; floors stand below."""
        from privkit.audit.scoring import over_seeds
        from privkit.reports import tables

        summaries = over_seeds(self.rows)
        return tables.summary_table(summaries) if summaries else tables.table(self.rows)

    def to_pandas(self) -> DataFrame:
        """Every number: one line a row, the columns of `report/tables/audit.csv`; what a row lacks is missing.

        Raises:
            UsageError: if pandas is not installed.
        """
        from privkit.reports.columns import record

        try:
            from pandas import DataFrame
        except ImportError:
            raise UsageError("run.to_pandas() needs pandas; pip install 'privkit[pandas]'") from None
        return DataFrame([record(row) for row in self.rows])

    def _repr_html_(self) -> str:
        """For a notebook: the verdict, the tables and the first reconstructions."""
        from privkit.audit.scoring import over_seeds
        from privkit.reports import answers, html, tables

        summaries = over_seeds(self.rows)
        note = tables.summary_note(summaries) if summaries else tables.note_of(self.rows)
        others = (
            (answers.answers_table(self.rows), answers.NOTE),
            (answers.orders_table(self.rows), answers.ORDER_NOTE),
        )
        shown = [(self.table(), note), *((made, text) for made, text in others if made is not None)]
        return html.html_run(shown, self.verdict, self.report)


def run_audit(
    config: AuditConfig | None = None,
    *,
    out: Path | str | None = None,
    progress: Progress | None = None,
    again: bool = False,
    **settings: Any,
) -> AuditRun:
    """Run an audit, or go on with one that was interrupted.

    Args:
        config: what to run; or give its settings as keywords, as in a configuration file (`defense="batch_shuffle"`).
        out: the run folder; None for one named after the configuration under ./privkit-runs.
        progress: told what happens; silent by default.
        again: recompute models and cells whose data, code, versions or device changed; False refuses them.
        **settings: keys of `privkit.settings.KEYS`.

    Returns:
        The rows, the folder and the report's page.

    Raises:
        PrivkitError: with one sentence, for anything that is wrong with the configuration, the data or the folder.

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
    if config is None:
        config = resolve(settings)
    elif settings:
        raise UsageError("give a configuration or its settings, not both")
    use_own_caches()  # before anything that may compile
    keep_freed_memory()
    check_batches(config)
    device = pick_device(config.device)
    folder_path = Path(out) if out is not None else default_folder(config)
    if not (folder_path / "manifest.json").exists():  # else it was checked when the run began
        for part in config.parts if config.recording is None else ():
            check_shapes(part, open_data(part)[0])
    fresh = manifest(config, threads=config.threads or default_threads())
    progress = progress or Silent()
    with RunFolder(folder_path, fresh) as folder:
        threads, torch_threads = config.threads or folder.manifest.threads, torch.get_num_threads()
        if folder.unlocked:
            progress.note(folder.unlocked)
        torch.set_num_threads(threads)  # the manifest's on resume: other counts round otherwise
        try:
            rows = _run_cells(config, folder, device, threads, progress, again)
            page = build(folder.path, rows, config.gates)
        except KeyboardInterrupt as stopped:
            kept = finished_cells(folder.path, len(plan(config)))
            stopped.add_note(f"{kept}; go on with the same call and out={str(folder.path)!r}")
            raise
        finally:
            torch.set_num_threads(torch_threads)
        verdict = verdict_of(folder.manifest, rows, config.gates)
    return AuditRun(rows=tuple(rows), folder=folder.path, report=page, verdict=verdict)


def default_folder(config: AuditConfig) -> Path:
    """Where a run goes that was given no folder: the same configuration finds its own again."""
    return Path("privkit-runs") / f"{config.dataset.name}-{config.fingerprint}"


def pick_device(name: str) -> torch.device:
    """The device of a run; "auto" takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda, but torch sees no CUDA device; use --device cpu or auto")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def check_batches(config: AuditConfig) -> None:
    """Refuse batch sizes at which a defense does nothing, before any work."""
    for part in config.parts:
        for defense in part.defenses:
            if part.training.batch_size < defense.spec.smallest_batch:
                raise UsageError(
                    f"{defense.name} needs batches of at least {defense.spec.smallest_batch} images, got "
                    f"batch_size={part.training.batch_size}: a smaller batch mixes nothing"
                )


def _run_cells(
    config: AuditConfig, folder: RunFolder, device: torch.device, threads: int, progress: Progress, again: bool
) -> list[Row]:
    """Every cell of the plan, skipping what is finished and still is what this command would compute."""
    cells, perception = plan(config), Perception.of(config.features, device, config.own_metrics)
    here = circumstances(device.type, threads)
    planned = [(part, plan(replace(part, also=()))) for part in config.parts]
    made_of = {cell: made for part, own in planned for cell, made in ingredients(part, own, perception, here).items()}
    rows, mended = folder.finished(cell.id for cell in cells)
    for sentence in mended:
        progress.note(sentence)
    for part, own in planned:
        if superseded := refresh(part, folder, own, rows, made_of, again=again):
            progress.note(superseded)
            rows, _ = folder.finished(cell.id for cell in cells)
    folder.take(threads)
    write_verdict(folder.path, verdict_of(folder.manifest, _ordered(cells, rows), config.gates))
    for seed, (part, own) in product(config.seeds, planned):
        pending = [cell for cell in own if cell.seed == seed and cell.id not in rows]
        if not pending:
            continue
        seed_data = prepare(part, seed, device, perception)
        if seed_data.dropped:
            progress.note(f"seed {seed}: {seed_data.dropped} auxiliary images are private or attacked ones; left out")
        for warning in seed_data.warnings:
            progress.note(f"seed {seed}: {warning}")
        for cell in pending:
            progress.cell(len(rows) + 1, len(cells), f"{cell.defense.label} / {cell.attack.label}, seed {cell.seed}")
            row = run_cell(part, cell, seed_data, folder, progress, made_of[cell.id].on(seed_data.hashes))
            rows[cell.id] = folder.finish(row)
            write_verdict(folder.path, verdict_of(folder.manifest, _ordered(cells, rows), config.gates))
            if row.status != "done":
                progress.note(f"{row.defense} / {row.attack}, seed {row.seed}: {row.status}: {row.reason}")
            progress.ended(row.status)
    return _ordered(cells, rows)


def _ordered(cells: Sequence[Cell], rows: Mapping[str, Row]) -> list[Row]:
    """The rows that there are, in the order of the plan."""
    return [rows[cell.id] for cell in cells if cell.id in rows]
