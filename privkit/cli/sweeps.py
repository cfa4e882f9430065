"""Several settings in one command: `privkit frontier`, and `privkit audit --grid`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from privkit.cli.flags import with_flags
from privkit.cli.show import OutputOptions, say, say_json
from privkit.errors import UsageError, shortened, unknown
from privkit.parts.registry import Component, parse, read_options, read_part, split_options
from privkit.run.plan import cell_counts
from privkit.run.stopping import finished_cells, keeping
from privkit.settings.pairing import split_protocol
from privkit.settings.resolve import resolve
from privkit.settings.table import DEFAULTS

if TYPE_CHECKING:
    from privkit.settings.config import AuditConfig

ASKED = 1000  # cells above which a grid needs --yes
_AXES = ("dataset", "model")
_RUN = ("junit", "annotations", "quiet", "as_json")
"""Flags that control how a run is shown; they apply to new and to finished runs."""


def frontier(audit: Callable[..., Any], report: Callable[..., Any]) -> Callable[..., None]:
    """Make the command `frontier`, which has the flags of the command `audit`, and `--vary` and `--from`."""

    def command(
        vary: Annotated[
            list[str] | None,
            typer.Option(help="KEY=VALUE,VALUE,…: an option of the defense and its values; repeatable for a grid."),
        ] = None,
        from_: Annotated[
            Path | None, typer.Option("--from", help="Draw the frontier of a finished run instead of a new one.")
        ] = None,
        **flags: Any,
    ) -> None:
        """Audit a defense at several strengths, and plot accuracy against the strongest attack's recovery, with ε as
        color.

        This is an audit of several defenses, so the same command resumes it, and `privkit verify` checks its folder.
        """
        if from_ is not None:
            defaults = {name: flag.default for name, flag in inspect.signature(audit).parameters.items()}
            _of_run(from_, vary, {name: value for name, value in flags.items() if value != defaults[name]})
            report(from_, **{name: flags[name] for name in _RUN})
            return
        from privkit.papers.presets import preset_settings

        given = flags["defense"] or (preset_settings(flags["config"]).get("defense") if flags["config"] else None)
        if not given or not vary:
            raise UsageError(
                "frontier needs a defense and its strengths, such as --defense gaussian_noise --vary "
                "sigma=.1,.3,.7,1.5; or name a finished run with --from"
            )
        given = given if isinstance(given, list | tuple) else [given]
        audit(**flags | {"defense": [label for one in given for label in varied(one, vary)]})

    return with_flags(command, inspect.signature(audit).parameters.values())


def varied(defense: Any, vary: Sequence[str]) -> list[Any]:
    """List a defense with every combination of the option values in `vary`, without repetition: as labels, or as tables
    if the defense names its protocol. A text of `vary` is "key=value,value,…". In a chain of defenses, the values are
    set in the defense that has the option."""
    own, protocol = split_protocol(defense)
    component = parse("defenses", own)
    stages = component.stages or (component,)
    axes = [_axis(text, component.label, stages) for text in vary]
    if doubled := {name for name, _ in axes if [other for other, _ in axes].count(name) > 1}:
        raise UsageError(f"--vary names {min(doubled)} twice; put all its values into one --vary")
    found: dict[str, Any] = {}
    for values in product(*(options for _, options in axes)):
        changes: dict[str, Any] = {name: value for one in values for name, value in one.items()}
        parts = [_changed(stage, changes) for stage in stages]
        label = parse("defenses", parts).label
        found[label] = label if protocol is None else [{**parts[0], "protocol": protocol}, *parts[1:]]
    return list(found.values())


def _axis(text: str, label: str, stages: Sequence[Component]) -> tuple[str, list[dict[str, Any]]]:
    """Parse "key=value,value,…" into the option's name and a table {option: value} for each value."""
    key, equals, values = text.partition("=")
    key = key.strip()
    options = [read_options(text, f"{key}={value}") for value in split_options(values) if value.strip()]
    if not equals or not key or len(options) < 2:
        raise UsageError(f"--vary takes an option and at least two values, such as sigma=.1,.3; got {shortened(text)}")
    having = [stage for stage in stages if key in _names(stage)]
    if not having:
        raise unknown(f"option of {label}", key, [name for stage in stages for name in _names(stage)])
    if len(having) > 1:
        names = " and ".join(stage.name for stage in having)
        raise UsageError(f"{names} both have an option {key}: name the settings one by one with privkit audit")
    if key in read_part(having[0].label, placed=True)[1]:
        raise UsageError(f"{having[0].label} and --vary {text} both set {key}; leave it out of the defense")
    return key, options


def _names(stage: Component) -> list[str]:
    return [field.name for field in fields(stage.spec)]


def _changed(stage: Component, changes: Mapping[str, Any]) -> dict[str, Any]:
    name, options = read_part(stage.label, placed=True)
    return {"name": name, **options, **{key: value for key, value in changes.items() if key in _names(stage)}}


def _of_run(run: Path, vary: Sequence[str] | None, flags: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a finished run has no frontier, or if a flag is given that applies only to a new run."""
    from privkit.reports.frontier import frontier as found
    from privkit.run.records import read_rows

    settings = ["vary"] if vary else []
    settings += [name for name, value in flags.items() if value and name not in _RUN]
    if settings:
        raise UsageError(
            f"--from reads a finished run with its own settings; leave out --{settings[0].replace('_', '-')}"
        )
    rows = read_rows(run)
    if found(rows) is None:
        raise UsageError(
            f"{run} has no frontier: it needs two defended settings, each with an accuracy and an attack that "
            f"reconstructs records; audit more settings with privkit frontier --defense … --vary …"
        )


def grid_runs(settings: Mapping[str, Any], out: Path, *, yes: bool) -> dict[Path, AuditConfig]:
    """Plan one run for each pair of dataset and model of a grid: folder in `out` -> configuration. Raises `UsageError`
    if the grid has more than `ASKED` cells (defense, attack, seed) and `yes` is False."""
    axes = [_grid_axis(settings, key) for key in _AXES]
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

    for folder, config in grid.items():
        make_root(folder.parent)
        plan_audit(config, folder, again=again, **hands)
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


def _grid_axis(settings: Mapping[str, Any], key: str) -> Sequence[Any]:
    given = settings.get(key, DEFAULTS[key] if key == "dataset" else None)
    if given == []:
        raise UsageError(f"{key} is an empty list; name at least one, or leave it out")
    return given if isinstance(given, list) else [given]
