"""`privkit papers` compares papers with privkit's results, and `privkit reproduce` repeats their experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privkit.cli.accounting import Json
from privkit.cli.show import say, say_json, show
from privkit.errors import StorageError, UsageError, unknown
from privkit.files.caches import plain_matplotlib
from privkit.run.stopping import keeping
from privkit.settings.table import SETTINGS
from privkit.shared.grouped import grouped

if TYPE_CHECKING:
    from privkit.papers.contract import ComparedClaim, Paper
    from privkit.papers.coverage import Covered
    from privkit.papers.orderings import Judged, Measured
    from privkit.papers.reproduce import Work
    from privkit.papers.reproduced import Reproduced
    from privkit.papers.values import PrintedValue
    from privkit.shared.interval import Interval

_NUMBERS = ("published", "ours", "value", "seeds", "line", "numbers")
"""Headings of the columns that are aligned on the right."""
_STATES = {
    "run": "run in the paper's setting",
    "reduced": "run at reduced size",
    "formula": "recomputed by formula",
    "print": "compared with other printed numbers",
    "proxy": "run on other data",
    "configured": "configured",
    "reason": "with a reason",
}
_OUT = Path("privkit-runs/reproduce")
TextTable = tuple[list[str], list[list[str]]]  # heading and rows of a table


def papers(
    name: Annotated[
        str | None, typer.Argument(metavar="[PAPER]", help="Name of the paper; without it, papers are listed.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="Print the numbers of one table of the paper, such as 'Table 3'.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Run folder (or JSON lines) on which to judge the paper's orderings, or whose models --figures draws. "
            "[the measured ones]"
        ),
    ] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="For every printed number, our evidence or why there is none.")
    ] = False,
    figures: Annotated[Path | None, typer.Option(help="Folder for the paper's figures, drawn as PNG and SVG.")] = None,
    as_json: Json = False,
) -> None:
    """Print the papers' claims beside privkit's results, and which of the papers' orderings were reproduced."""
    from privkit.papers import PAPERS, paper

    if name is None:
        flags = (("--table", table), ("--results", results), ("--coverage", coverage), ("--figures", figures))
        given = [flag for flag, value in flags if value]
        if given:
            raise UsageError(f"{given[0]} belongs to one paper: name it ({', '.join(PAPERS)})")
        _list([paper(one) for one in PAPERS], as_json)
        return
    chosen = paper(name)
    if table is not None:
        _print_values(chosen, table, as_json)
    elif coverage:
        _print_coverage(chosen, as_json)
    elif figures is not None:
        with plain_matplotlib():
            _draw(chosen, figures, results)
    else:
        _print_paper(chosen, results, as_json)


def _list(shown: list[Paper], as_json: bool) -> None:
    from privkit.papers.orderings import orderings
    from privkit.papers.values import printed_values

    rows: list[dict[str, Any]] = [
        {
            "paper": one.name,
            "title": one.title,
            "printed_numbers": len(printed_values(one.name)),
            "orderings": len(orderings(one.name)),
            "experiments": [str(path) for path in one.experiments],
            "presets": [path.stem for path in one.presets],
            "figures": one.pictures,
        }
        for one in shown
    ]
    if as_json:
        say_json(rows)
        return
    for row, one in zip(rows, shown, strict=True):
        row["experiments"], row["presets"] = len(one.experiments), ", ".join(row["presets"])
        row["figures"] = "--figures" if one.pictures else ""
    print_table([name.replace("_", " ") for name in rows[0]], [[*map(str, row.values())] for row in rows])


def _print_values(shown: Paper, table: str, as_json: bool) -> None:
    from privkit.papers.values import printed_values

    values = printed_values(shown.name)
    tables = list(dict.fromkeys(value.table for value in values))
    chosen = [value for value in values if value.table.casefold() == table.casefold()]
    if not chosen:
        raise unknown(f"table of {shown.name}", table, tables)
    if as_json:
        say_json(chosen)
        return
    rows = []
    for value in chosen:
        number = value.note if value.value is None else f"{value.value:g}"
        spread = "" if value.spread is None else f" ± {value.spread:g}"
        rows.append([value.row, value.column, number + spread, value.unit, str(value.line)])
    print_table(["row", "column", "value", "unit or range", "line"], rows)
    say(f"{shown.citation}, {chosen[0].table}; line: the line of the paper's text that has the number")


def _print_coverage(chosen: Paper, as_json: bool) -> None:
    from privkit.papers.coverage import STATES, coverage
    from privkit.papers.values import deviations

    covered = list(coverage(chosen.name).covered())
    counts = {state: sum(len(one.values) for one in covered if one.state == state) for state in STATES}
    unlike = deviations(chosen.name)
    if as_json:
        entries = [
            {**asdict(one.entry), "state": one.state, "by": one.by, "numbers": len(one.values)} for one in covered
        ]
        say_json({"paper": chosen.name, "counts": counts, "entries": entries, "deviations": unlike})
        return
    print_table(*coverage_table(covered))
    if unlike:
        say("", "printed settings that the experiments do not use:")
        print_table(*deviations_table(unlike))
    say("printed numbers: " + "; ".join(f"{count} {_STATES[state]}" for state, count in counts.items()))


def _draw(chosen: Paper, folder: Path, run: Path | None) -> None:
    from privkit.papers import PAPERS, paper
    from privkit.reports.figures import save

    if run is not None and not chosen.from_runs:
        raise UsageError(f"{chosen.name} draws no figure of a run: leave --results out")
    pictures = chosen.figures(run)
    if not pictures and chosen.from_runs:
        raise UsageError(f"{chosen.name} draws the models of a run: name its folder with --results")
    if not pictures:
        drawn = [one for one in PAPERS if paper(one).pictures]
        raise UsageError(f"{chosen.name} has no figures; papers with figures: {', '.join(drawn)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in pictures.items():
            picture = draw()
            for kind in ("png", "svg"):
                path = folder / f"{name}.{kind}"
                path.write_bytes(save(picture, kind))
                say(str(path))
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}; name another --figures folder") from error


def _print_paper(chosen: Paper, results: Path | None, as_json: bool) -> None:
    from privkit.papers.orderings import audit_rows, measured, on_record, ordering_verdicts, orderings, recorded
    from privkit.papers.reproduced import tiny_verdicts
    from privkit.papers.summary import three_sentences

    if results is not None and not orderings(chosen.name):
        raise UsageError(f"{chosen.name} publishes no ordering that is judged here: leave --results out")
    comparisons = chosen.comparisons()
    methods: list[Measured] = []
    if orderings(chosen.name):
        sizes = recorded(chosen.name).values()
        methods = list(chain(*sizes)) if results is None else measured(chosen.name, audit_rows(results))
    if results is not None and not any(one.values for one in methods):
        raise UsageError(
            f"no row of {results} belongs to a method of {chosen.name}: audit one of its experiments "
            f"({', '.join(path.name for path in chosen.experiments)})"
        )
    judged = on_record(chosen.name) if results is None else ordering_verdicts(chosen.name, methods)
    tiny = tiny_verdicts(chosen.name) if results is None else None
    if as_json:
        answer = {
            "paper": chosen.name,
            "title": chosen.title,
            "summary": [] if results is not None else [*three_sentences(chosen.name)],
            "claims": comparisons,
            "methods": methods,
            "orderings": [ordering_json(one) for one in judged],
            "tiny": [
                {"source": source, "claim": claim, "verdict": verdict}
                for (source, claim), verdict in (tiny or {}).items()
            ],
            "experiments": [str(path) for path in chosen.experiments],
            "presets": [path.stem for path in chosen.presets],
        }
        say_json(answer)
        return
    say(f"{chosen.title} ({chosen.citation.partition(',')[0]})", "")
    if results is None:
        say(*three_sentences(chosen.name), "")
    print_table(*claims_table(comparisons))
    if judged:
        print_table(*methods_table(methods))
        print_table(*orderings_table(judged, tiny))
        say("brackets: 95 % Student intervals over seeds; differences are of the same seeds")
    if chosen.experiments:
        heading = "experiments, for privkit audit --config FILE --data-root DATA:"
        say("", heading, *(f"  {path}" for path in chosen.experiments))
    if chosen.presets:
        names = ", ".join(path.stem for path in chosen.presets)
        say("", f"the paper's own settings, for privkit audit --preset NAME --data-root DATA: {names}")


def coverage_table(covered: list[Covered]) -> TextTable:
    """The heading and one row for each entry of a coverage file: some numbers of a table, and our evidence on them."""
    rows = []
    for one in covered:
        places = [one.entry.rows, one.entry.columns] if one.values else ["", ""]
        rows.append([one.entry.table, *places, str(len(one.values) or ""), one.state, one.by])
    return ["table", "rows", "columns", "numbers", "state", "by"], rows


def deviations_table(unlike: Sequence[PrintedValue]) -> TextTable:
    """The heading and one row for each printed setting that our experiments do not use, with the reason."""
    rows = [[one.row, one.column, _number(one.value), one.note] for one in unlike]
    return ["row", "setting", "printed", "why not"], rows


def claims_table(comparisons: Sequence[ComparedClaim]) -> TextTable:
    """The heading and one row for each claim: the paper's number (printed, or by its formula), our number, their
    quantity, verdict and reason."""
    heading = ["claim", "by the paper", "ours", "quantity", "verdict", "why"]
    return heading, [
        [one.claim, _number(one.published), _number(one.ours), one.quantity, one.verdict, one.why]
        for one in comparisons
    ]


def methods_table(methods: list[Measured]) -> TextTable:
    """The heading and one row for each method that was run: its mean over seeds with a 95 % interval. The size of the
    runs is shown for results that come with privkit."""
    rows = []
    for one in (one for one in methods if one.values):
        rows.append([one.method, one.size or "", one.quantity, str(len(one.values)), _mean_text(one)])
    return ["method", "size", "quantity", "seeds", "value"], rows


def orderings_table(judged: list[Judged], tiny: Mapping[tuple[str, str], str] | None = None) -> TextTable:
    """The heading and one row for each published ordering ("A is better than B"), with our verdict. `tiny` maps
    (source, claim) to the verdict at tiny scale; if it is given, a row also has the size of the runs, the further
    seeds, and this verdict."""
    heading = ["published ordering", "source", "quantity", "published", "difference", "verdict"]
    rows = []
    for one in judged:
        what, published = one.ordering, "" if one.published is None else f"{one.published:+.3f}"
        row = [what.claim, what.source, what.quantity, published, interval_text(one.difference, sign="+"), one.verdict]
        if tiny is not None:
            ran = "" if one.verdict == "not run" else one.size or ""
            row += [ran, _new_seeds(one), tiny.get((what.source, what.claim), "not run")]
        rows.append(row)
    return [*heading, *([] if tiny is None else ["size", "new seeds", "at tiny scale"])], rows


def _new_seeds(one: Judged) -> str:
    """How many further seeds an ordering needs, and whether they were run; empty if the first three seeds decide it."""
    if one.needed == 0 or one.verdict in ("not run", "at the floor"):
        return ""
    if one.needed is None or one.hours is None:
        return "more than 10,000 needed"
    return f"{one.needed} run" if one.anew else f"{one.needed} needed, {one.hours:.1f} h"


def ordering_json(one: Judged) -> dict[str, Any]:
    """The fields of an ordering and its verdict, for JSON."""
    found = {"published": one.published, "difference": one.difference, "verdict": one.verdict}
    size = {"size": one.size} if one.size else {}
    return {**asdict(one.ordering), **found, "new_seeds_needed": one.needed, **size}


def interval_text(interval: Interval | None, *, sign: str = "") -> str:
    """An interval's value and limits as text, such as "0.500 [0.400, 0.600]"; empty if there is no interval."""
    if interval is None:
        return ""
    return f"{interval.value:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def _mean_text(one: Measured) -> str:
    return interval_text(one.interval) or f"{fmean(one.values.values()):.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table for people to read."""
    from privkit.reports.tables import Table, rich_table

    show(rich_table(Table(headers=tuple(header), rows=tuple(map(tuple, rows))), right=_NUMBERS))


def reproduce(
    name: Annotated[str, typer.Argument(metavar="PAPER", help="Name of the paper, as privkit papers lists it.")],
    table: Annotated[str, typer.Argument(help="A table or figure, such as 'Table 3'.")],
    scale: Annotated[
        str,
        typer.Option(
            help="tiny (embedded digits), small (reduced size; the paper's data or, for patch_splitnn and "
            "images of patch_shuffling, digits), medium (the paper's network as well, for a GPU) or paper."
        ),
    ] = "tiny",
    data_root: Annotated[Path | None, typer.Option(help=SETTINGS["data_root"].help)] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs; the repeated command resumes them.")] = _OUT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the experiments and an estimate; run none.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a table of a paper: each method's number beside the printed one, and a verdict on each ordering."""
    from privkit.papers import reproduce as reproducing
    from privkit.papers.reproduced import SCALES
    from privkit.run.progress import progress_display

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    root = None if data_root is None else str(data_root)
    if dry_run:
        _preview(reproducing.planned_cells(name, table, scale, root), scale, out / scale)
        return
    with keeping(lambda: f"{out} keeps the finished cells"), progress_display() as progress:
        found = reproducing.reproduce(name, table, scale=scale, data_root=root, out=out, progress=progress)
    if as_json:
        say_json(_json(found))
        return
    say(f"{found.paper}, {found.table}, scale {found.scale}")
    if found.claims:
        print_table(*claims_table(list(found.claims)))
    if found.methods:
        print_table(*_methods(found))
        print_table(*orderings_table(list(found.orderings)))
        say("brackets: 95 % Student intervals over seeds; differences are of the same seeds")
    if found.methods and found.scale != "paper":
        say("at another scale than the paper's only the orderings can be compared, not the numbers")


def _preview(cells: Sequence[Work], scale: str, out: Path) -> None:
    groups = grouped(cells, lambda one: replace(one.config, seeds=(0,)).fingerprint)
    ordered = [one for group in groups.values() for one in group]
    if not cells:
        say(f"0 cells at scale {scale}: the claims are compared by formula or printed numbers, without a run")
        return
    from privkit.cli.estimate import estimate

    seeds = [tuple(one.row["seed"] for one in group) for group in groups.values()]
    found = estimate([replace(group[0].config, seeds=own) for group, own in zip(groups.values(), seeds, strict=True)])
    for one, (_, timed) in zip(ordered, found.cells, strict=True):
        config, row = one.config, one.row
        parts = [config.dataset.label, config.model.label, row["protocol"], row["partition"]]
        parts += [f"auxiliary {config.auxiliary}", f"seed {row['seed']}", f"of {one.experiment}"]
        say(f"{row['defense']} / {row['attack']}, {', '.join(parts)}: about {timed.seconds:.0f} s")
    say(f"{len(cells)} cells at scale {scale}, {found.sentence}; run folders in {out}", *found.needs)


def _methods(found: Reproduced) -> TextTable:
    rows = []
    for one in found.methods:
        printed = found.published.get((one.method, one.quantity))
        published = "" if printed is None else f"{printed:.3f}"
        rows.append([one.method, one.quantity, published, _mean_text(one), str(len(one.values)), found.verdict(one)])
    return ["method", "quantity", "published", "ours", "seeds", "verdict"], rows


def _json(found: Reproduced) -> dict[str, Any]:
    methods = [
        asdict(one) | {"published": published, "interval": one.interval, "verdict": found.verdict(one)}
        for one in found.methods
        for published in [found.published.get((one.method, one.quantity))]
    ]
    about = {"paper": found.paper, "table": found.table, "scale": found.scale, "claims": found.claims}
    return about | {"methods": methods, "orderings": list(map(ordering_json, found.orderings))}
