"""The report: one self-contained HTML page, and the same tables and figures as files."""

from __future__ import annotations

import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from privkit.reports import answers, columns, conclusion, escape, frontier, sections, tables, threats
from privkit.reports.charts import Chart, Told, area_chart, score_charts
from privkit.reports.frontier import epsilon_range, frontier_chart
from privkit.reports.gallery import Pictures, gallery
from privkit.reports.origins import mixture
from privkit.reports.schema import Manifest, Row, Summary
from privkit.reports.tables import Table
from privkit.reports.verdict import Verdict
from privkit.shared.measures import FLOORS, OF_RECORDS
from privkit.shared.threat_models import THREAT_MODELS, threat_name

Write = Callable[[Path, bytes], None]

STRIPS = "reconstructions.svg"  # the pictures of a run in one figure


@dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report. Data of single cells (attack, defense and seed) are dictionaries by the cell's id."""

    rows: Sequence[Row]  # the result rows (one for each attack, defense and seed), at least one
    summaries: Sequence[Summary]  # means over seeds; empty if there is one seed
    threats: Sequence[threats.ThreatVerdict]
    manifest: Manifest
    verdict: Verdict
    pictures: Mapping[str, Pictures] = field(default_factory=dict)  # the first attacked images, and the guesses at them
    # the first token sequences or table rows as text, each with the guess at it
    texts: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    left_out: bool = False  # whether pictures and texts are left out on purpose
    told: Mapping[str, Told] = field(default_factory=dict)  # scores of attacks on labels, members or canaries
    # the command that runs this experiment alone; empty if the run was started in Python
    commands: Mapping[str, str] = field(default_factory=dict)


class _Sheet(NamedTuple):
    title: str
    table: Table | None
    note: str
    csv: str


def render(report: Report, folder: Path, write: Write) -> Path:
    """Write the page `index.html`, `tables/` and `figures/` of a `report` into `folder`, and return the page's path.
    `write` gets the path and the content of each file."""
    rows, mixed = report.rows, mixture(report.rows)
    found = frontier.frontier(rows, least=0)
    sheets = _sheets(report)
    _write_tables(sheets, report.verdict, mixed, folder, write)
    drawn = _drawn(report, found)
    for name, lines in drawn.items():
        write(folder / "figures" / f"{name}.svg", standalone(lines).encode())
    pictures = gallery(rows, report.pictures)
    if pictures.blocks:
        strips = environment().get_template("strips.svg.j2").render(gallery=pictures)
        write(folder / "figures" / STRIPS, strips.encode())
    script = environment().get_template("script.js.j2").render()
    page = (
        environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            rows=rows,
            done=[row for row in rows if row.status == "done"],
            several=len({row.seed for row in rows}) > 1,
            mixed=mixed,
            command=shlex.join(report.manifest.argv),
            sheets=sheets,
            frontier=found,
            epsilons=epsilon_range(found) if found else None,
            drawn=drawn,
            conclusions=conclusion.conclusions(rows, report.threats),
            cards=sections.cards(rows, report.summaries, found),
            gallery=pictures,
            script=Markup(script),
            script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        )
    )
    path = folder / "index.html"
    write(path, page.encode())
    return path


def _sheets(report: Report) -> dict[str, _Sheet]:
    rows, summaries, curve = report.rows, report.summaries, frontier.frontier(report.rows)
    sheets = {
        "threats": _Sheet(
            "Falls or holds, by threat model",
            threats.threats_table(report.threats),
            threats.THREATS_NOTE,
            threats.threats_csv(report.threats),
        ),
        "seeds": _Sheet(
            "Over seeds",
            tables.summary_table(summaries, rows) if summaries else None,
            tables.summary_note(summaries),
            columns.seeds_csv(summaries),
        ),
        "audit": _Sheet("All numbers", tables.table(rows), tables.note_of(rows), columns.to_csv(rows, report.verdict)),
        "answers": _Sheet(
            "Labels, members and canaries",
            answers.answers_table(rows),
            answers.ANSWERS_NOTE,
            columns.answers_csv(rows, "auc"),
        ),
        "orders": _Sheet(
            "Recovery of the order", answers.orders_table(rows), answers.ORDER_NOTE, columns.answers_csv(rows, "direct")
        ),
    }
    if curve:
        shown, csv = frontier.frontier_table(curve), frontier.frontier_csv(curve)
        sheets["frontier"] = _Sheet("Privacy against accuracy", shown, frontier.FRONTIER_NOTE, csv)
    return {name: sheet for name, sheet in sheets.items() if sheet.table is not None}


def _write_tables(sheets: Mapping[str, _Sheet], verdict: Verdict, mixed: str, folder: Path, write: Write) -> None:
    judged = [" ".join(said.split()) for said in (f"Verdict: {verdict.sentence}.", *verdict.failures, mixed) if said]
    remarks = "".join(f"% {escape.latex(said)}\n" for said in judged)
    for name, sheet in sheets.items():
        assert sheet.table is not None
        remark = f"{sheet.note}\n\n{escape.markdown(' '.join(judged))}"
        write(folder / "tables" / f"{name}.csv", sheet.csv.encode())
        write(folder / "tables" / f"{name}.md", tables.table_markdown(sheet.table, remark).encode())
        write(folder / "tables" / f"{name}.tex", f"{remarks}{tables.table_latex(sheet.table)}".encode())


def _drawn(report: Report, found: frontier.Frontier | None) -> dict[str, list[tuple[str, list[Chart]]]]:
    rows = report.rows
    drawn: dict[str, list[tuple[str, list[Chart]]]] = {}
    if found is not None:
        drawn["frontier"] = [("", [frontier_chart(found)])]
    if report.told:
        proven_first = sorted(rows, key=lambda row: row.limits is None)
        told = ((row, report.told[row.cell]) for row in proven_first if row.cell in report.told)
        drawn["scores"] = [(label(row), list(score_charts(scores))) for row, scores in told]
    if curves := {label(row): row.auc_curve for row in rows if row.auc_curve}:
        drawn["auc"] = [("", [area_chart(curves)])]
    return drawn


def standalone(lines: Sequence[tuple[str, Sequence[Chart]]]) -> str:
    """Charts as the text of one SVG file; each line is a label and the charts below it."""
    return environment().get_template("figure.svg.j2").render(lines=lines)


def label(row: Row) -> str:
    """The name of a result row where several rows are shown together: defense, attack and seed."""
    return f"{row.defense} / {row.attack}, seed {row.seed}"


@cache
def environment() -> Environment:
    """The environment of the templates, in which all text is escaped, and control characters are shown as escapes."""
    environment = Environment(
        loader=PackageLoader("privkit.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape.markup(value) if type(value) is str else value,
    )
    environment.filters |= {"cell": _cell, "breakable": _breakable}
    environment.globals |= {
        **{"tables": tables, "threats": threats, "sections": sections, "label": label, "threat_name": threat_name},
        "names": {name: measure.title for name, measure in OF_RECORDS.items()},
        "floor_names": {name: floor.title for name, floor in FLOORS.items()},
        "models": THREAT_MODELS,
    }
    return environment


def _cell(text: str) -> Markup:
    found = re.fullmatch(r"(-?[\d.e+-]+) (\[[^\]]*\])", text)
    return Markup("{}<small>{}</small>").format(*found.groups()) if found else _breakable(text)


def _breakable(text: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=[:,+_/])(?=\w|<)", escape.markup(text)))
