"""Prints text, JSON and the result of a run. Text of unknown origin is printed literally, not read as markup."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from privkit.errors import UsageError, tell, unknown
from privkit.reports.escape import console, terminal, terminal_json

AsEvents = Annotated[bool, typer.Option("--json", help="JSON on standard output: one event per line, then the result.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Print only failures, without progress and tables; set the exit code.")
]
Junit = Annotated[Path | None, typer.Option(help="Write cells, checks and gates as JUnit XML.")]
Annotations = Annotated[
    str | None, typer.Option(help="Failures as annotations: github or none. [github inside GitHub Actions]")
]

_LONGEST_NAME = 200  # bytes of a file's name; file systems allow 255, also for the temporary name while it is written


def say(*lines: str) -> None:
    """Print lines. A line break inside a line is escaped, since it can only come from a name of unknown origin."""
    for line in lines:
        typer.echo(terminal(line))


def show(*shown: Any, **style: Any) -> None:
    """Print tables or texts, wrapped at words to the terminal's width, or to 160 characters elsewhere."""
    screen = console(width=None if sys.stdout.isatty() else 160)
    for one in shown:
        screen.print(one, highlight=False, markup=False, **style)


def say_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON. Dataclasses become objects, and infinite numbers and NaN become null."""
    plain = json.loads(json.dumps(value, default=_fields), parse_constant=lambda _: None)
    typer.echo(terminal_json(json.dumps(plain, indent=indent, ensure_ascii=False)))


def _fields(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return json.loads(value.model_dump_json()) if hasattr(value, "model_dump_json") else str(value)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The output options of a command that shows a run. Raises `UsageError` if `junit` is a folder or lies in a
    missing one, and for an unknown kind of annotations."""

    # print events and the result as JSON, one object per line; with `quiet`, print only the result
    as_json: bool = False
    quiet: bool = False  # print only failures
    junit: Path | None = None  # write JUnit XML into this file; None writes none
    # "github" prints failures as annotations of GitHub Actions, "none" does not; None prints them inside GitHub Actions
    annotations: str | None = None

    def __post_init__(self) -> None:
        if self.junit is not None:
            fits = len(os.fsencode(self.junit.name)) <= _LONGEST_NAME and os.path.isdir(self.junit.absolute().parent)
            if not fits or os.path.isdir(self.junit):
                raise UsageError(f"--junit {self.junit} must be a file in a folder that exists; name another one")
        if self.annotations not in (None, "github", "none"):
            raise unknown("kind of annotations", self.annotations, ("github", "none"))

    @contextmanager
    def progress(self) -> Iterator[Any]:
        """A context manager that yields a display of a run's progress."""
        from privkit.run.progress import Events, Progress, progress_display

        if self.quiet or self.as_json:
            yield Progress() if self.quiet else Events()
            return
        with progress_display() as progress:
            yield progress

    def show(self, rows: Sequence[Any], page: Path, verdict: Any) -> NoReturn:
        """Print the results and the verdict of a run, and exit with the verdict's code."""
        from privkit.parts.threats import threats_of
        from privkit.reports.conclusion import conclusions

        threats = threats_of(rows)
        if self.as_json:
            fields = {"event": "result", "report": str(page), "conclusions": conclusions(rows, threats)}
            say_json(fields | {"verdict": verdict, "threats": threats, "rows": list(rows)}, indent=None)
        elif not self.quiet:
            _print_run(list(rows), threats, conclusions(rows, threats), page)
            say(f"run: {verdict.sentence}")
        self.failures(verdict)
        if verdict.exit_code == 3:
            tell(verdict.sentence)
        self._for_ci(threats, verdict, page.parent.parent)
        raise typer.Exit(verdict.exit_code)

    def failures(self, verdict: Any, before: str = "") -> None:
        """Print results that are errors, and failed checks and gates, on standard error, after the text `before`."""
        failed: dict[str, None] = {}
        for cell in verdict.cells:
            if cell.status == "error":
                failed[f"{before}error: {cell.defense} / {cell.attack}, seed {cell.seed}: {cell.reason}"] = None
        for check in verdict.checks:
            if check.met is False:
                seed = "" if check.kind == "gate" or check.seed is None else f", seed {check.seed}"
                failed[f"{before}{check.kind} failed{seed}: {check.sentence}"] = None
        for sentence in failed:
            tell(sentence)

    def _for_ci(self, threats: Any, verdict: Any, run: Path) -> None:
        from privkit.files.paths import inside, root
        from privkit.files.storage import write_bytes
        from privkit.reports import ci
        from privkit.run.records import seconds_of

        if self.junit is not None:
            took = {cell.cell: seconds_of(inside(run, "cells", cell.cell)) or 0.0 for cell in verdict.cells}
            text = ci.junit(verdict, took, threats)
            write_bytes(root(self.junit.parent) / self.junit.name, text.encode())
        actions = os.environ.get("GITHUB_ACTIONS") == "true"
        if self.annotations == "github" or (self.annotations is None and actions):
            print(*ci.github(verdict), sep="\n", file=sys.stderr, flush=True)


def _print_run(rows: list[Any], threats: Any, conclusions: Sequence[Any], page: Path) -> None:
    from privkit.reports.origins import mixture
    from privkit.reports.tables import rich_table
    from privkit.reports.threats import MEANING, told
    from privkit.shared.grouped import grouped

    for one in conclusions:
        first, *below = one.lines
        show(first, style="bold red" if one.tone == "bad" else "bold")
        show(*below)
    if threats:
        show(*told(threats))
        show(MEANING, style="dim")
    for number, (table, note) in enumerate(_tables(rows, page)):
        if table is not None:
            show(rich_table(table))
        if number == 0 and (mixed := mixture(rows)):
            show(mixed)
        if table is not None:
            show(note, style="dim")
    proofs = {
        f"{row.defense}: {row.certificate.statement}{'; it ' * bool(row.remark)}{row.remark}": None
        for row in rows
        if row.certificate
    }
    show(*proofs)
    for group in grouped(rows, lambda row: (row.defense, row.seed)).values():
        first, *others = map(_said, group)
        shared = [line for line in first if others and all(line in one for one in others)]
        title = [(f"{group[0].defense}, seed {group[0].seed}, under each attack", None)] if shared else []
        for text, style in (*title, *shared, *(line for row in group for line in _remarks(row, shared))):
            show(text, style=style)
    show(f"report: {page}", soft_wrap=True)


def _said(row: Any) -> dict[tuple[str, str | None], None]:
    """The remarks on a result row, line by line, each with its style."""
    bound = row.empirical_bound.statement if row.empirical_bound else ""
    told = [(f"  {text}", None) for text in (*filter(None, [bound]), *row.notes)]
    noted = [(f"  note: {caveat}", "dim") for caveat in row.caveats if not bound.startswith(caveat)]
    return dict.fromkeys([*told, *noted])


def _remarks(row: Any, shared: Sequence[tuple[str, str | None]]) -> Iterator[tuple[str, str | None]]:
    told = [line for line in _said(row) if line not in shared]
    if told:
        yield f"{row.defense} / {row.attack}, seed {row.seed}", None
    yield from told
    if row.status != "done":
        yield f"{row.defense} / {row.attack}: {row.status.replace('_', ' ')}: {row.reason}", None


def _tables(rows: list[Any], page: Path) -> Iterator[tuple[Any, str]]:
    """Yield each table (None if it is empty) with its note. The first table shows means over seeds, or single rows."""
    from privkit.reports.answers import run_tables
    from privkit.reports.frontier import FRONTIER_NOTE, frontier, frontier_table
    from privkit.reports.seed_intervals import over_seeds

    (numbers, note), *others = run_tables(rows)
    if over_seeds(rows):
        note = f"{note} One line per seed: {page.parent / 'tables' / 'audit.md'}"
    yield numbers if numbers.rows else None, note  # None if no attack reconstructs records
    yield from others
    if found := frontier(rows):
        yield frontier_table(found), FRONTIER_NOTE
