"""The commands `audit`, `report`, `evidence`, `verify` and `list`: they only parse and dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from privkit import __version__
from privkit.cli.accounting import COMMANDS
from privkit.cli.compare import compare, place, record
from privkit.cli.flags import EachOnce, flag_of, with_flags
from privkit.cli.frontier import frontier
from privkit.cli.papers import papers
from privkit.cli.parts import check, described, new
from privkit.cli.parts import describe as describe_part
from privkit.cli.reproduce import reproduce
from privkit.cli.say import say, say_json
from privkit.cli.show import Annotations, AsEvents, Junit, OutputOptions, Quiet
from privkit.cli.start import uncollected
from privkit.errors import UsageError, unknown
from privkit.files.paths import root
from privkit.parts.registry import PART_TABLES, as_written
from privkit.run.stopping import finished_cells, keeping
from privkit.settings.resolve import read_toml, resolve
from privkit.settings.table import FLAGS, SETTINGS, CommandFlags, checked

if TYPE_CHECKING:
    from privkit.settings.config import AuditConfig

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # plain help, since importing rich takes too long
    pretty_exceptions_enable=False,
    help="What a split-learning defense proves, what attacks recover from it, and what it costs.\n\n"
    "Exit codes: 0 clean, 1 a gate failed, 2 bad usage or configuration, 3 cells errored or are missing, a file is "
    "damaged or could not be written, or memory ran out, 70 an internal fault, 130, 143 and 129 stopped by Ctrl-C, "
    "SIGTERM and SIGHUP.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"privkit {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def audit(
    junit: Junit = None, annotations: Annotations = None, quiet: Quiet = False, as_json: AsEvents = False, **flags: Any
) -> None:
    """Train the defended models, attack them, compute their privacy guarantees, and write a report.

    The undefended baseline is always included. Run the same command again to resume.
    """
    shown = OutputOptions(as_json=as_json, quiet=quiet, junit=junit, annotations=annotations)
    command = checked(CommandFlags, flags)
    given = _given(command, {name: flags[name] for name in SETTINGS if flags[name] not in (None, [])})
    if command.grid:
        _audit_grid(given, command, command.out or Path("privkit-runs") / command.grid.stem, shown)
        return
    if command.out:
        from privkit.run.ledger import check_usable

        check_usable(root(command.out))  # before settings are read, which imports torch
    with uncollected():
        config = resolve(given)
        if command.dry_run:
            from privkit.cli.estimate import preview
    if command.dry_run:
        say(*preview(config, command.out).split("\n"))
    else:
        _run(config, command, shown)


app.command("audit", cls=EachOnce)(with_flags(audit, map(flag_of, FLAGS)))


def _given(command: CommandFlags, flags: Mapping[str, Any]) -> dict[str, Any]:
    if command.config and command.grid:
        raise UsageError("give --config or --grid, not both: a grid file holds the same settings")
    source = command.config or command.grid
    given = {**(read_toml(source) if source else {}), **flags}
    named = given.pop("preset", None)
    if command.preset or named:
        from privkit.papers import presets

        return presets.overridden(presets.preset(str(command.preset or named)), given)
    return given


def _run(config: AuditConfig, command: CommandFlags, shown: OutputOptions) -> None:
    from privkit.audit.run import default_folder, run_audit
    from privkit.audit.worker import pick_device
    from privkit.run.plan import cell_counts
    from privkit.training.together import joined

    folder = command.out or default_folder(config)
    with joined(pick_device(config.device).type, command.workers or 1, command.engine) as leads:
        if not leads:
            return
        with keeping(lambda: finished_cells(folder, *cell_counts(config))), shown.progress() as progress:
            run = run_audit(config, out=command.out, progress=progress, again=command.again, **_hands(command))
    shown.show(run.rows, run.report, run.verdict)


def _hands(command: CommandFlags) -> dict[str, Any]:
    return {"workers": command.workers, "engine": command.engine}


def _audit_grid(given: Mapping[str, Any], command: CommandFlags, out: Path, shown: OutputOptions) -> None:
    from privkit.cli import grid

    if shown.junit is not None:
        raise UsageError(
            "a grid has a verdict for each run; leave out --junit, and use privkit report RUN --junit FILE"
        )
    runs = grid.runs(given, out, yes=command.yes)
    if command.dry_run:
        from privkit.cli.estimate import preview

        for folder, config in runs.items():
            say(str(folder), *preview(config, folder).split("\n"))
    else:
        grid.run_grid(runs, shown, again=command.again, hands=_hands(command))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    junit: Junit = None,
    annotations: Annotations = None,
    quiet: Quiet = False,
    as_json: AsEvents = False,
    no_pictures: Annotated[
        bool,
        typer.Option(
            "--no-pictures", help="Leave private records and guesses out of RUN/report, so that it can be published."
        ),
    ] = False,
) -> None:
    """Write a run folder's report again, and print its table.

    The exit code is that of the run: 1 if a gate (a condition that you set) failed, 3 if results are errors or missing.
    """
    from privkit.audit.report import build
    from privkit.run.records import last_verdict, read_rows

    shown = OutputOptions(as_json=as_json, quiet=quiet, junit=junit, annotations=annotations)
    page = build(run, pictures=not no_pictures)
    shown.show(read_rows(run), page, last_verdict(run))


@app.command()
def evidence(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write a run's measurements, proofs and gaps as HTML and JSON, for an impact assessment or a model card.

    The exit code is that of the run, or 3 if `privkit verify` finds a fault in the folder.
    """
    from privkit.audit.report import write_evidence

    found = write_evidence(run)
    say(f"evidence: {run / 'evidence.html'} and {run / 'evidence.json'}", f"run: {found.audited.state}")
    raise typer.Exit(found.audited.exit_code)


app.command("frontier")(frontier(audit, report))


@app.command()
def verify(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Check every file of a run folder; exit 3 if one is damaged, missing or misplaced."""
    from privkit.run.verify import examine

    examination = examine(run)
    for path, what in examination.faults:
        say(f"{path}: {what}")
    say(examination.sentence)
    raise typer.Exit(examination.exit_code)


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Argument(help="|".join(PART_TABLES))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List all parts (defenses, attacks, …) with their options and defaults; for one kind, also the allowed values.
    `privkit describe NAME` explains the options."""
    if kind is not None and kind not in PART_TABLES:
        raise unknown("kind", kind, PART_TABLES)
    about = ("text", "source")
    tables = {
        name: [{key: value for key, value in entry.items() if key not in about} for entry in described(name)]
        for name in ([kind] if kind else PART_TABLES)
    }
    if as_json:
        say_json(tables)
        return
    for name, entries in tables.items():
        say(name)
        width = max(14, *(len(entry["name"]) for entry in entries))
        for entry in entries:
            domain = f"[{entry['domain']}] " if "domain" in entry else ""
            say(f"  {entry['name']:<{width}} {domain}{entry['summary']}")
            for line in _option_lines(entry, apart=kind is not None):
                say(f"  {'':<{width}} {line}")


def _option_lines(entry: Mapping[str, Any], *, apart: bool) -> list[str]:
    written = {key: f"{key}={as_written(value)}" for key, value in entry["options"].items()}
    if apart:
        return [": ".join(filter(None, [text, entry["allowed"].get(key)])) for key, text in written.items()]
    return [f"options: {', '.join(written.values())}"] if written else []


for command in (*COMMANDS, papers, compare, place, describe_part, new, check, reproduce, record):
    app.command()(command)


def main() -> NoReturn:
    """Run the command line, and exit with its exit code; see `privkit.cli.start`."""
    from privkit.cli.start import main as start

    start()
