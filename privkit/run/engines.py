"""What computes the cells of a run: any `concurrent.futures.Executor`, named by `--engine`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from privkit.errors import PrivkitError, UsageError, one_line, unknown
from privkit.files.import_path import imported
from privkit.parts.registry import read_options
from privkit.run.jobs import Jobs
from privkit.run.processes import Processes, main_hidden


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run asks of its engine.

    Attributes:
        devices: of each worker, as many as workers.
        threads: of each worker.
        run: the run folder.
    """

    devices: Sequence[str]
    threads: int
    run: Path


Factory = Callable[[str, Wanted], Iterator[Executor]]
"""Of an engine: what stands behind its name and a colon, and what the run asks."""


def _dask(address: str, wanted: Wanted) -> Iterator[Executor]:
    """A Dask cluster: the one at an address, or as many processes of this machine as there are workers."""
    distributed = _module("distributed", "dask")
    with ExitStack() as closes:
        if not address:
            logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a lost worker is told by the run
            # a run counts the workers that a cell loses: Dask tells each, and of one cell
            told = {"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-saturation": 1.0}
            with main_hidden(), import_module("dask").config.set(told):
                cluster = distributed.LocalCluster(
                    n_workers=len(wanted.devices), threads_per_worker=1, dashboard_address=None
                )
            closes.callback(cluster.close)
        client = distributed.Client(address or cluster)
        closes.callback(client.close)
        yield client.get_executor(pure=False)


def _mpi(given: str, wanted: Wanted) -> Iterator[Executor]:
    """The processes of `mpiexec -n N python -m mpi4py.futures -m privkit audit --engine mpi`."""
    yield _module("mpi4py.futures", "mpi").MPIPoolExecutor()


def _submitit(given: str, wanted: Wanted) -> Iterator[Executor]:
    """Jobs of Slurm, or processes of this machine with `cluster=local`."""
    options = {"cpus_per_task": wanted.threads, **read_options(given, given, "submitit")}
    yield Jobs(wanted.run.with_name(f"{wanted.run.name}.jobs"), options)


ENGINES: dict[str, Factory] = {"dask": _dask, "mpi": _mpi, "submitit": _submitit}
"""Name -> what makes its executor; without a name, the processes of `--workers` compute."""


@contextmanager
def engine(named: str | None, wanted: Wanted) -> Iterator[Executor]:
    """The executor of a run, which ends with the block, whatever it does.

    Args:
        named: NAME or NAME:… of `ENGINES`, or module:factory of an executor; None for processes of this machine.
        wanted: what the run asks.

    Raises:
        UsageError: if there is no such engine, or it does not start.
    """
    name, colon, rest = (named or "").partition(":")
    if named and name not in ENGINES and not colon:
        raise unknown("engine", named, [*ENGINES, "module:factory"])
    with ExitStack() as closes:
        try:
            if named is None:
                executor: Executor = Processes(wanted.devices)
            elif name in ENGINES:
                executor = closes.enter_context(contextmanager(ENGINES[name])(rest, wanted))
            else:
                executor = imported("the engine", named)()
        except PrivkitError:
            raise
        except Exception as error:
            raise UsageError(f"--engine {named} did not start ({one_line(error)})") from None
        if not isinstance(executor, Executor):
            raise UsageError(f"--engine {named} gave {type(executor).__name__}, which is no futures Executor")
        closes.callback(executor.shutdown, wait=False)
        yield executor


def _module(name: str, extra: str) -> Any:
    """A package of an extra."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UsageError(f"--engine {extra} needs the package {package}: pip install 'privkit[{extra}]'") from None
