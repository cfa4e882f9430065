"""`privkit work`: one more worker for a run that `privkit audit` planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from privkit.cli.say import say
from privkit.cli.show import Events, Quiet, Shown
from privkit.cli.whole import whole
from privkit.errors import UsageError
from privkit.parts.registry import read_options


def work(
    run: Annotated[list[Path], typer.Argument(help="Run folders, done one after another.")],
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, or cuda:0, cuda:1, …. [as the audit was told]")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="As of privkit audit; a run folder cannot say it. Repeatable."),
    ] = None,
    slurm: Annotated[
        int | None,
        typer.Option(parser=whole, help="Start so many workers as an array of Slurm jobs; needs privkit[slurm]."),
    ] = None,
    sbatch: Annotated[
        str | None,
        typer.Option(help="Parameters of the jobs, such as partition=gpu,gpus_per_node=1,time=240 (minutes),mem=16GB."),
    ] = None,
    print_sbatch: Annotated[
        bool, typer.Option("--print-sbatch", help="Print the script that starts these jobs; submit nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: Events = False,
) -> None:
    """Help to compute a run: take cells that nobody does, until each has a row.

    Start as many as you like, in several shells, on several machines that share the folder, through srun or as a
    Kubernetes Job. A worker that is killed loses the cell that it was at, and another one takes it. Exit code 0 says
    that each cell has a row; privkit report RUN gives the verdict.
    """
    if slurm is None and (sbatch or print_sbatch):
        raise UsageError("--sbatch and --print-sbatch need the number of workers: give --slurm N")
    shown = Shown(quiet=quiet, as_json=as_json)
    for folder in run:
        if slurm is None:
            _join(folder, device, trust or [], shown)
        else:
            parameters = read_options(sbatch, sbatch, "sbatch") if sbatch else {}
            _submit(folder, slurm, device, trust or [], parameters, print_sbatch)


def _submit(
    run: Path,
    workers: int,
    device: str | None,
    trust: Sequence[str],
    parameters: Mapping[str, Any],
    print_sbatch: bool,
) -> None:
    """Start workers through Slurm, or print how."""
    from privkit.audit.slurm import script, submit

    if print_sbatch:
        say(*script(run, workers, device, parameters, trust).split("\n"))
    else:
        jobs = submit(run, workers, device, parameters, trust)
        say(f"submitted {', '.join(jobs)}; privkit report {run} gives the verdict once they end")


def _join(run: Path, device: str | None, trust: Sequence[str], shown: Shown) -> None:
    """Work on one run."""
    from privkit.audit.worker import join
    from privkit.run.records import read_manifest
    from privkit.run.stopping import finished_cells, keeping

    manifest = read_manifest(run)
    planned = len(manifest.cells) if manifest else 0
    with keeping(lambda: finished_cells(run, planned)), shown.progress() as progress:
        join(run, device=device, progress=progress, trust=trust)
        progress.note(f"{run}: each of {planned} cells has a row; privkit report {run} gives the verdict")
