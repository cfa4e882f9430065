"""The command line, with the commands on runs, such as `audit`, `report` and `compare`, which only dispatch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from privkit import __version__
from privkit.cli.accounting import COMMANDS, Json
from privkit.cli.flags import EachOnce, flag_of, whole_number, with_flags
from privkit.cli.papers import papers, reproduce
from privkit.cli.parts import check, list_, new
from privkit.cli.parts import describe as describe_part
from privkit.cli.show import Annotations, AsEvents, Junit, OutputOptions, Quiet, say, say_json, show
from privkit.cli.start import uncollected
from privkit.cli.sweeps import frontier, grid_runs, run_grid
from privkit.errors import UsageError
from privkit.files.paths import root
from privkit.run.plan import cell_counts
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
    if command.engine:
        from privkit.run.engines import check_engine

        check_engine(command.engine)
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
    from privkit.training.together import joined

    folder = command.out or default_folder(config)
    with joined(pick_device(config.device).type, command.workers or 1, command.engine) as leads:
        if not leads:
            return
        with keeping(lambda: finished_cells(folder, *cell_counts(config))), shown.progress() as progress:
            how: dict[str, Any] = {"workers": command.workers, "engine": command.engine, "again": command.again}
            run = run_audit(config, out=command.out, progress=progress, **how)
    shown.show(run.rows, run.report, run.verdict)


def _audit_grid(given: Mapping[str, Any], command: CommandFlags, out: Path, shown: OutputOptions) -> None:
    if shown.junit is not None:
        raise UsageError(
            "a grid has a verdict for each run; leave out --junit, and use privkit report RUN --junit FILE"
        )
    runs = grid_runs(given, out, yes=command.yes)
    if command.dry_run:
        from privkit.cli.estimate import preview

        for folder, config in runs.items():
            say(str(folder), *preview(config, folder).split("\n"))
    else:
        run_grid(runs, shown, again=command.again, hands={"workers": command.workers, "engine": command.engine})


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
    from privkit.run.ledger import alone
    from privkit.run.records import last_verdict, read_rows

    shown = OutputOptions(as_json=as_json, quiet=quiet, junit=junit, annotations=annotations)
    with alone(run):
        page = build(run, pictures=not no_pictures)
        rows, verdict = read_rows(run), last_verdict(run)
    shown.show(rows, page, verdict)


@app.command()
def evidence(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write a run's measurements, proofs and gaps as HTML and JSON, for an impact assessment or a model card.

    The exit code is that of the run, or 3 if `privkit verify` finds a fault in the folder.
    """
    from privkit.audit.report import write_evidence
    from privkit.run.ledger import alone

    with alone(run):
        found = write_evidence(run)
    say(f"evidence: {run / 'evidence.html'} and {run / 'evidence.json'}", f"run: {found.audited.state}")
    raise typer.Exit(found.audited.exit_code)


app.command("frontier")(frontier(audit, report))


@app.command()
def verify(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Check every file of a run folder; exit 3 if one is damaged, missing or misplaced."""
    from privkit.run.verify import examine

    examination = examine(run)
    say(*(f"{path}: {what}" for path, what in examination.faults), examination.sentence)
    raise typer.Exit(examination.exit_code)


app.command("list")(list_)


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another run folder, on the same data.")],
    as_json: Json = False,
) -> None:
    """Compare run B with run A: differences with intervals, a paired test over records, and differences in settings."""
    from privkit.audit.compare import compare as compared
    from privkit.reports.comparison import COMPARISON_NOTE, comparison_table
    from privkit.reports.tables import rich_table

    found = compared(first, second)
    if as_json:
        say_json(found)
        return
    show(f"A: {found.first}", f"B: {found.second}", rich_table(comparison_table(found)))
    show(COMPARISON_NOTE, style="dim")
    same = ("the same",)
    told = {"configuration": found.configuration or same, "made of": found.made_of or same}
    for title, lines in {**told, "not compared": found.unpaired}.items():
        show(*(f"{title}: {line}" for line in lines))


def place(run: Annotated[Path, typer.Argument(help="A run folder.")], as_json: Json = False) -> None:
    """Compare a run with the defenses in the registry, by accuracy and by the share of records that attacks identify.

    The registry is a table of results of privkit's defenses at several strengths, on the same data under the strongest
    quick attacks.
    """
    from privkit.audit.report import placed
    from privkit.reports.registry import REGISTRY_NOTE, place_table
    from privkit.reports.tables import rich_table

    places, remarks = placed(run)
    if as_json:
        say_json({"places": places, "remarks": remarks})
        return
    show(*(f"{one.sentence}." for one in places), soft_wrap=True)
    show(rich_table(place_table(places)))
    show(*remarks, REGISTRY_NOTE, style="dim")


def record(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Option(help="Folder of the recording, new or empty.")],
    defense: Annotated[str | None, typer.Option(help="Defense of the run, as its table shows it. [the last]")] = None,
    seed: Annotated[int | None, typer.Option(parser=whole_number, help="Seed of the run. [the first]")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the official datasets.")] = None,
) -> None:
    """Write a run's trained model as a recording: its releases, weights, the attacked records and the adversary's
    records.

    `privkit audit --recorded` on the recording gives the numbers of the run, on a CPU bit for bit. The recording
    contains the attacked images, so share it only if others may see them.
    """
    from privkit.audit.export import export

    recording = export(run, out, defense=defense, seed=seed, data_root=data_root)
    described, rounds = recording.description, f"{recording.description.rounds} rounds"
    say(
        f"{out}: {rounds if described.rounds > 1 else '1 round'} of {described.name}, {len(recording.truth)} true and "
        f"{len(recording.own)} own {recording.domain.records}; audit it with privkit audit --recorded {out}"
    )


for command in (*COMMANDS, papers, compare, place, describe_part, new, check, reproduce, record):
    app.command()(command)


def main() -> NoReturn:
    """Run the command line, and exit with its exit code; see `privkit.cli.start`."""
    from privkit.cli.start import main as start

    start()
