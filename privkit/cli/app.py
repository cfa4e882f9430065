"""The command line: parse and dispatch; nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from privkit.cli.accounting import COMMANDS
from privkit.cli.check import check
from privkit.cli.compare import compare
from privkit.cli.describe import describe as describe_part
from privkit.cli.described import described
from privkit.cli.frontier import frontier
from privkit.cli.ledger import ledger
from privkit.cli.new import new
from privkit.cli.papers import papers
from privkit.cli.record import record
from privkit.cli.reproduce import reproduce
from privkit.cli.say import say, say_json
from privkit.cli.show import Annotations, Events, Junit, Quiet, Shown
from privkit.cli.whole import seed as seed_
from privkit.cli.whole import whole
from privkit.errors import UsageError, unknown
from privkit.files.paths import root
from privkit.parts.registry import TABLES, as_written
from privkit.run.stopping import finished_cells, keeping
from privkit.settings.resolve import DATA_ROOT_VARIABLE, DEFAULTS, read_toml, resolve
from privkit.settings.values import as_workers

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich's takes longer to import than the help may
    pretty_exceptions_enable=False,
    help="What a split-learning defense proves, what attacks recover from it, and what it costs.\n\n"
    "Exit codes: 0 clean, 1 a gate failed, 2 bad usage or configuration, 3 cells errored or are missing, a file is "
    "damaged or could not be written, or memory ran out, 70 an internal fault, 130, 143 and 129 stopped by Ctrl-C, "
    "SIGTERM and SIGHUP.",
)


def _default(key: str) -> str:
    """A setting's default, for its help."""
    value = DEFAULTS[key]
    return f" [{', '.join(map(str, value)) if isinstance(value, list) else value}]"


def _version(wanted: bool) -> None:
    """Print the version."""
    if wanted:
        from privkit import __version__

        typer.echo(f"privkit {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command; without a command, the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def audit(
    recorded: Annotated[
        Path | None,
        typer.Option(help="Folder of a recording (privkit.Recorder) to audit, in place of a training here."),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help="Module of yours that a recording may build its segments and its defense from; repeatable. [none]"
        ),
    ] = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(help="NAME or NAME:key=value,…, or your own module:object; repeatable." + _default("defense")),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:key=value,…, your own module:object, all, or auto (the strongest known quick ones); "
            "repeatable." + _default("attack")
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="NAME or NAME:key=value,… such as folder:path=DIR or arrays:path=FILE, or your own module:object."
            + _default("dataset")
        ),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help=f"Folder of the official datasets. [${DATA_ROOT_VARIABLE}]")
    ] = None,
    download: Annotated[
        bool | None, typer.Option("--download", help="Fetch missing official files into the data root.")
    ] = None,
    skip_bad_rows: Annotated[
        bool | None,
        typer.Option("--skip-bad-rows", help="Leave out bad rows of text files; the results say how many."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="NAME or NAME:key=value,…, or your own by import path: module:object or two segments, "
            "package.Lower:package.Upper." + _default("model")
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="NAME or NAME:key=value,… such as psl:clients=4. [sl; cutmixsl for a defense that mixes clients]"
        ),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="iid or dirichlet:alpha=0.1." + _default("partition"))] = None,
    seed: Annotated[
        list[int] | None, typer.Option(parser=seed_, help="Repeatable: everything once a seed." + _default("seed"))
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, or cuda:0, cuda:1, …." + _default("device"))
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="smoke, quick, small, medium or large, or NAME:key=value,…." + _default("budget"))
    ] = None,
    training: Annotated[str | None, typer.Option(help="key=value,… such as batch_size=50,optimizer=sgd.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ at which ε is given." + _default("delta"))] = None,
    auxiliary: Annotated[
        str | None,
        typer.Option(help="The adversary's images: disjoint, training or a dataset." + _default("auxiliary")),
    ] = None,
    victims: Annotated[
        str | None, typer.Option(help="Attacked images: private or test. [private; test if auxiliary=training]")
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(help="What the adversary may ask: rounds=100,copies=false, or rounds=0 for nothing. [any number]"),
    ] = None,
    tune: Annotated[
        str | None,
        typer.Option(
            help="Choose the fields of attacks on the adversary's own images, such as trials=20,share=.25; needs "
            "privkit[tune]. [attacks as given]"
        ),
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(help="Part of a split release that the adversary holds (part_1, …); repeatable. [all]"),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="Network for F-SIM and identification (embedded, dlib, timm:MODEL, torchvision:MODEL, file:PATH), "
            "lpips:alex, or classifier (trained on auxiliary images, or classifier:PATH), which recognizes guesses; "
            "repeatable. A PATH is a TorchScript program, and it is run."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Your own metric of images, module:object; its column is own_NAME; repeatable."),
    ] = None,
    threads: Annotated[int | None, typer.Option(parser=whole, help="CPU threads. [all usable, at most 8]")] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(help="Condition on every defended row, such as 'ssim<=0.4'; exit 1 if unmet; repeatable."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A paper's own settings (privkit papers lists them); --config and flags override them."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with these settings; flags override it.")] = None,
    grid: Annotated[
        Path | None,
        typer.Option(help="TOML file as --config, whose dataset and model may be lists: one run for each pair."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Begin a grid of more than 1000 cells.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; the same command resumes it. [privkit-runs/DATASET-HASH]")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            parser=whole,
            help="Processes of this machine that share the cells, the threads and the GPUs; with --engine, the cells "
            "that it is given at once.",
        ),
    ] = 1,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Where cells are computed: dask, dask:ADDRESS, submitit:partition=gpu,time=240 (Slurm), mpi, or your "
            "own module:factory of a futures Executor. [processes of this machine]"
        ),
    ] = None,
    cell_seconds: Annotated[
        float | None, typer.Option(help="Seconds after which a cell ends as an error. [no limit]")
    ] = None,
    cell_memory: Annotated[
        str | None, typer.Option(help="Memory at which a cell ends as an error, such as 4GiB. [no limit]")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Recompute what rests on changed data, code, versions, device or threads.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the cells and an estimate; train nothing. Your own parts are imported."),
    ] = False,
    junit: Junit = None,
    annotations: Annotations = None,
    quiet: Quiet = False,
    as_json: Events = False,
) -> None:
    """Train the defended models, attack them, account for them and write a report.

    The undefended baseline is always a row of the table. Run the same command again to resume.
    """
    shown = Shown(as_json=as_json, quiet=quiet, junit=junit, annotations=annotations)
    as_workers(workers)
    flags: dict[str, Any] = {
        "recorded": str(recorded) if recorded else None,
        "trust": trust,
        "defense": defense,
        "attack": attack,
        "dataset": dataset,
        "data_root": str(data_root) if data_root else None,
        "download": download,
        "skip_bad_rows": skip_bad_rows,
        "model": model,
        "protocol": protocol,
        "partition": partition,
        "delta": delta,
        "seed": seed,
        "device": device,
        "budget": budget,
        "training": training,
        "auxiliary": auxiliary,
        "victims": victims,
        "queries": queries,
        "tune": tune,
        "features": features,
        "metric": metric,
        "parts": parts,
        "threads": threads,
        "cell_seconds": cell_seconds,
        "cell_memory": cell_memory,
        "gate": gate,
    }
    if config and grid:
        raise UsageError("give --config or --grid, not both: a grid file holds the same settings")
    source = config or grid
    settings = read_toml(source) if source else {}
    given = {**settings, **{key: value for key, value in flags.items() if value not in (None, [])}}
    if preset:
        from privkit.papers import presets

        given = presets.overridden(presets.preset(preset), given)
    if grid:
        hands: dict[str, Any] = {"workers": workers, "engine": engine}
        _audit_grid(given, out or Path("privkit-runs") / grid.stem, yes, dry_run, shown, again, hands)
        return
    if out:
        from privkit.run.ledger import check_usable

        check_usable(root(out))  # before settings are read, which imports torch
    resolved = resolve(given)
    if dry_run:
        from privkit.cli.estimate import preview

        say(*preview(resolved, out).split("\n"))
        return
    from privkit.audit.run import default_folder, run_audit
    from privkit.audit.worker import pick_device
    from privkit.run.plan import plan
    from privkit.training.together import joined

    folder = out or default_folder(resolved)
    with joined(pick_device(resolved.device).type, workers, engine) as leads:
        if not leads:
            return
        with keeping(lambda: finished_cells(folder, len(plan(resolved)))), shown.progress() as progress:
            run = run_audit(resolved, out=out, progress=progress, again=again, workers=workers, engine=engine)
    shown.show(run.rows, run.report, run.verdict)


def _audit_grid(
    given: Mapping[str, Any],
    out: Path,
    yes: bool,
    dry_run: bool,
    shown: Shown,
    again: bool,
    hands: Mapping[str, Any],
) -> None:
    """The runs of a grid: estimated or computed."""
    from privkit.cli import grid

    if shown.junit is not None:
        raise UsageError(
            "a grid has a verdict for each run; leave out --junit, and use privkit report RUN --junit FILE"
        )
    runs = grid.runs(given, out, yes=yes)
    if dry_run:
        from privkit.cli.estimate import preview

        for folder, config in runs.items():
            say(str(folder), *preview(config, folder).split("\n"))
    else:
        grid.audit(runs, shown, again=again, hands=hands)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    junit: Junit = None,
    annotations: Annotations = None,
    quiet: Quiet = False,
    as_json: Events = False,
) -> None:
    """Write a run folder's report again, print its table, and exit as the run did: 1 if a gate failed, 3 if cells
    errored or are missing."""
    from privkit.audit.report import build
    from privkit.run.records import read_rows
    from privkit.run.verdict import last_verdict

    shown = Shown(as_json=as_json, quiet=quiet, junit=junit, annotations=annotations)
    page = build(run)
    shown.show(read_rows(run), page, last_verdict(run))


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
    kind: Annotated[str | None, typer.Argument(help="|".join(TABLES))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List what there is, with options and defaults; of one kind, with what each option may be. `privkit describe NAME`
    says what each option means."""
    if kind is not None and kind not in TABLES:
        raise unknown("kind", kind, TABLES)
    about = ("text", "source")
    tables = {
        name: [{key: value for key, value in entry.items() if key not in about} for entry in described(name)]
        for name in ([kind] if kind else TABLES)
    }
    if as_json:
        say_json(tables, default=str)
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
    """The options of a part: each on a line of its own with what is allowed, or all on one."""
    written = {key: f"{key}={as_written(value)}" for key, value in entry["options"].items()}
    if apart:
        return [": ".join(filter(None, [text, entry["allowed"].get(key)])) for key, text in written.items()]
    return [f"options: {', '.join(written.values())}"] if written else []


for command in (*COMMANDS, ledger, papers, compare, describe_part, new, check, reproduce, record):
    app.command()(command)


def main() -> NoReturn:
    """Run the command line; see `privkit.cli.start`."""
    from privkit.cli.start import main as start

    start()
