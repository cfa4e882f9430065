"""`privkit frontier`: audit one defense at several strengths, and draw its privacy–accuracy frontier."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from privkit.cli.flags import with_flags
from privkit.errors import UsageError, shortened, unknown
from privkit.parts.registry import Component, parse, read_options, read_part, split_options

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


def varied(defense: Any, vary: Sequence[str]) -> list[str]:
    """List a defense with every combination of the option values in `vary`, each as its label, without repetition. A
    text of `vary` is "key=value,value,…". In a chain of defenses, the values are set in the defense that has the
    option."""
    component = parse("defenses", defense)
    stages = component.stages or (component,)
    axes = [_axis(text, component.label, stages) for text in vary]
    if doubled := {name for name, _ in axes if [other for other, _ in axes].count(name) > 1}:
        raise UsageError(f"--vary names {min(doubled)} twice; put all its values into one --vary")
    labels = []
    for values in product(*(options for _, options in axes)):
        changes: dict[str, Any] = {name: value for one in values for name, value in one.items()}
        parts = [_changed(stage, changes) for stage in stages]
        labels.append(parse("defenses", parts if len(parts) > 1 else parts[0]).label)
    return list(dict.fromkeys(labels))


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
