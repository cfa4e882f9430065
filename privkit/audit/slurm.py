"""Workers of a run as an array of Slurm jobs, by submitit; a job starts again after time-out or preemption."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privkit.errors import UsageError, one_line

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

_DEFAULTS = {"job_name": "privkit", "time": 60}
"""Parameters of sbatch in submitit's names; the time is in minutes."""


@dataclass(frozen=True, kw_only=True)
class Help:
    """What a job does: it works on a run. submitit stores it beside the run and reads it in the job.

    Attributes:
        run: folder of the run.
        device: as `privkit.audit.worker.join` takes it.
        trust: likewise.
    """

    run: str
    device: str | None = None
    trust: tuple[str, ...] = ()

    def __call__(self) -> int:
        """Work until each cell has a row."""
        from privkit.audit.worker import join
        from privkit.run.progress import Lines

        return join(self.run, device=self.device, progress=Lines(), trust=self.trust)

    def checkpoint(self) -> DelayedSubmission:
        """At the time limit or before a preemption: the same job once more, since the run folder keeps what is done."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(
    run: Path, workers: int, device: str | None, given: Mapping[str, Any], trust: Sequence[str] = ()
) -> list[str]:
    """Submit workers of a run as one array.

    Args:
        run: its folder, which all nodes see; submitit's files and the logs go to RUN.slurm beside it.
        workers: how many jobs.
        device: of each worker.
        given: parameters of sbatch in submitit's names, such as partition, time (minutes), gpus_per_node, mem.

    Returns:
        The numbers of the jobs.

    Raises:
        UsageError: if submitit or Slurm is not there, or a parameter is unknown or refused.
    """
    submitit, home, parameters = _prepared(run, workers, given, trust)
    try:
        executor = submitit.SlurmExecutor(folder=home)
        executor.update_parameters(**parameters, array_parallelism=workers, additional_parameters={"requeue": True})
        with executor.batch():
            jobs = [
                executor.submit(Help(run=os.path.abspath(run), device=device, trust=tuple(trust)))
                for _ in range(workers)
            ]
        return [str(job.job_id) for job in jobs]
    except (RuntimeError, ValueError, NameError, submitit.core.utils.FailedJobError) as error:
        raise UsageError(
            f"Slurm did not take the workers ({one_line(error)}); mend --sbatch, or print the script with "
            "--print-sbatch and submit it yourself"
        ) from None


def script(run: Path, workers: int, device: str | None, given: Mapping[str, Any], trust: Sequence[str] = ()) -> str:
    """The script with which `sbatch` starts the same workers, without submitit's files.

    Raises:
        UsageError: as of `submit`; no Slurm is needed.
    """
    submitit, home, parameters = _prepared(run, workers, given, trust)
    command = [sys.executable, "-m", "privkit", "work", os.path.abspath(run), *(["--device", device] if device else [])]
    command += [word for name in trust for word in ("--trust", name)]
    text: str = submitit.slurm.slurm._make_sbatch_string(
        command=shlex.join(command),
        folder=home,
        map_count=workers,
        array_parallelism=workers,
        additional_parameters={"requeue": True, "signal": "TERM@90"},
        **parameters,
    )
    return text.replace("export SUBMITIT_EXECUTOR=slurm\n", f"cd {shlex.quote(str(Path.cwd()))}\n")


def _prepared(
    run: Path, workers: int, given: Mapping[str, Any], trust: Sequence[str]
) -> tuple[Any, Path, dict[str, Any]]:
    """The module submitit, its folder and the parameters of sbatch, checked."""
    from privkit.audit.worker import planned

    if not 1 <= workers <= 10_000:
        raise UsageError(f"--slurm is a number of workers from 1 to 10000, got {workers}")
    _, manifest = planned(run, trust)
    submitit = _imported()
    known = set(submitit.SlurmExecutor._valid_parameters()) - {"array_parallelism", "additional_parameters"}
    if strange := sorted(set(given) - known):
        raise UsageError(f"unknown parameter of --sbatch {strange[0]!r} (allowed: {', '.join(sorted(known))})")
    parameters = {**_DEFAULTS, "cpus_per_task": manifest.threads, **given}
    place = Path(os.path.abspath(run))  # its links stay: a node may resolve them otherwise
    return submitit, place.with_name(f"{place.name}.slurm"), parameters


def _imported() -> Any:
    """The module submitit, which sets up logging in its jobs alone: here that would close the handlers of others."""
    level = "SUBMITIT_LOG_LEVEL"
    ours = level not in os.environ
    os.environ.setdefault(level, "NOCONFIG")
    try:
        return import_module("submitit")
    except ImportError:
        raise UsageError("workers through Slurm need the package submitit: pip install 'privkit[slurm]'") from None
    finally:
        if ours:
            del os.environ[level]
