"""`privkit audit --grid grid.toml`: defenses × attacks × data × models × seeds, as a folder of runs.

Attacked images, baselines and defended models depend on dataset and model. So a grid has one run for each pair of
dataset and model. Every command for a run folder works on each of these runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from privkit.cli.say import say, say_json
from privkit.errors import UsageError
from privkit.run.plan import cell_counts
from privkit.settings.resolve import resolve
from privkit.settings.table import DEFAULTS

if TYPE_CHECKING:
    from privkit.cli.show import OutputOptions
    from privkit.settings.config import AuditConfig

ASKED = 1000  # cells above which a grid needs --yes
_AXES = ("dataset", "model")


def runs(settings: Mapping[str, Any], out: Path, *, yes: bool) -> dict[Path, AuditConfig]:
    """Plan one run for each pair of dataset and model of a grid: folder in `out` -> configuration. Raises `UsageError`
    if the grid has more than `ASKED` cells (defense, attack, seed) and `yes` is False."""
    axes = [_axis(settings, key) for key in _AXES]
    pairs = [
        {**settings, **{key: value for key, value in zip(_AXES, pair, strict=True) if value is not None}}
        for pair in product(*axes)
    ]
    first = resolve(pairs[0])
    cells = len(pairs) * cell_counts(first)[0]
    if cells > ASKED and not yes:
        raise UsageError(
            f"the grid has {cells:,} cells in {len(pairs):,} runs; shorten a list, or give --yes if that is meant"
        )
    configs = [first, *map(resolve, pairs[1:])]
    names = (f"{config.dataset.name}-{config.model.name}-{config.fingerprint}" for config in configs)
    return {out / re.sub(r"[^\w.-]+", "-", name): config for name, config in zip(names, configs, strict=True)}


def run_grid(
    grid: Mapping[Path, AuditConfig], shown: OutputOptions, *, again: bool, hands: Mapping[str, Any]
) -> NoReturn:
    """Compute a grid's runs in turn, print the verdict of each, and exit with the highest of their exit codes. All runs
    are planned before the first one starts, so that wrong settings are refused at once. `hands` are the arguments
    `workers` and `engine` of `run_audit`."""
    from privkit.audit.run import plan_audit, run_audit
    from privkit.files.storage import make_root
    from privkit.run.stopping import finished_cells, keeping

    for folder, config in grid.items():
        make_root(folder.parent)
        plan_audit(config, out=folder, again=again, **hands)
    verdicts = {}
    for folder, config in grid.items():
        with keeping(lambda at=folder, of=config: finished_cells(at, *cell_counts(of))), shown.progress() as progress:  # type: ignore[misc]
            run = run_audit(config, out=folder, progress=progress, **hands)
        verdicts[folder] = run.verdict
        if shown.as_json:
            say_json({"event": "run", "run": str(folder), "verdict": run.verdict}, indent=None)
        elif not shown.quiet:
            say(f"{folder}: {run.verdict.sentence}")
        shown.failures(run.verdict, f"{folder}: ")
    raise typer.Exit(max(verdict.exit_code for verdict in verdicts.values()))


def _axis(settings: Mapping[str, Any], key: str) -> Sequence[Any]:
    given = settings.get(key, DEFAULTS[key] if key == "dataset" else None)
    if given == []:
        raise UsageError(f"{key} is an empty list; name at least one, or leave it out")
    return given if isinstance(given, list) else [given]
