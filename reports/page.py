"""The report: one self-contained HTML page, and the same tables and figures as files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from privkit.reports import answers, columns, escape, figures, frontier, tables
from privkit.reports.figures import Pictures
from privkit.reports.frontier_figure import frontier_figure
from privkit.reports.origins import mixture
from privkit.reports.schema import Manifest, Provenance, Row, Summary
from privkit.reports.score_figures import Told, auc_figure, score_figure
from privkit.reports.strongest import strongest
from privkit.reports.tables import Table
from privkit.reports.threats import NOTE as THREATS_NOTE
from privkit.reports.threats import ThreatVerdict, threats_csv, threats_table
from privkit.reports.verdict import Verdict
from privkit.threat_models import shown

Write = Callable[[Path, bytes], None]


def render(
    rows: Sequence[Row],
    summaries: Sequence[Summary],
    threats: Sequence[ThreatVerdict],
    manifest: Manifest,
    pictures: Mapping[str, Pictures],
    texts: Mapping[str, Sequence[tuple[str, str]]],
    told: Mapping[str, Told],
    verdict: Verdict,
    folder: Path,
    write: Write,
) -> Path:
    """Write the report.

    Args:
        rows: of the run, in its order.
        summaries: over seeds, empty where there is one seed.
        threats: the verdicts under each threat model.
        manifest: of the run.
        pictures: cell id -> its first images; cells without pictures are left out of the figure.
        texts: cell id -> its first token sequences or table rows in words, and the guesses at them; likewise.
        told: cell id -> its scores, for attacks that answer a question; likewise.
        verdict: on the run.
        folder: where `index.html`, `tables/` and `figures/` go.
        write: stores one file.

    Returns:
        The page's path.
    """
    table, mixed = tables.table(rows), mixture(rows)
    judged = " ".join(" ".join((f"Verdict: {verdict.sentence}.", *verdict.failures, mixed)).split())
    summary = tables.summary_table(summaries) if summaries else None
    summary_note = tables.summary_note(summaries) if summaries else ""
    curve = frontier.frontier(rows, summaries)
    others: dict[str, tuple[Table | None, str]] = {
        "answers": (answers.answers_table(rows), answers.NOTE),
        "orders": (answers.orders_table(rows), answers.ORDER_NOTE),
        "frontier": (frontier.frontier_table(curve) if curve else None, frontier.NOTE),
    }
    every = {
        "audit": (table, tables.note_of(rows)),
        "threats": (threats_table(threats), THREATS_NOTE),
        **others,
        "seeds": (summary, summary_note),
    }
    sheets = {
        "audit": lambda: columns.to_csv(rows, verdict),
        "answers": lambda: columns.answers_csv(rows, "auc"),
        "orders": lambda: columns.answers_csv(rows, "direct"),
        "frontier": lambda: frontier.to_csv(curve) if curve else "",
        "threats": lambda: threats_csv(threats),
        "seeds": lambda: columns.seeds_csv(summaries),
    }
    for name, (made, note) in every.items():
        if made is not None:
            write(folder / "tables" / f"{name}.csv", sheets[name]().encode())
            remark = f"{note}\n\n{escape.markdown(judged)}"
            write(folder / "tables" / f"{name}.md", tables.markdown(made, remark).encode())
            write(folder / "tables" / f"{name}.tex", f"% {escape.latex(judged)}\n{tables.latex(made)}".encode())

    images = {}
    strips = {_label(row, rows): pictures[row.cell] for row in rows if row.cell in pictures}
    drawn = {"reconstructions": figures.reconstructions(strips)} if strips else {}
    if curve is not None:
        drawn["frontier"] = frontier_figure(curve)
    if told:
        drawn["scores"] = score_figure(
            {_label(row, rows).replace("\n", " / "): told[row.cell] for row in rows if row.cell in told}
        )
    if curves := {_label(row, rows).replace("\n", " / "): row.auc_curve for row in rows if row.auc_curve}:
        drawn["auc"] = auc_figure(curves)
    for name, figure in (drawn | {"curves": figures.curves(rows)}).items():
        png = figures.save(figure, "png")
        write(folder / "figures" / f"{name}.png", png)
        write(folder / "figures" / f"{name}.svg", figures.save(figure, "svg"))
        images[name] = "data:image/png;base64," + base64.b64encode(png).decode()

    environment = Environment(
        loader=PackageLoader("privkit.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "counted": tables.counted,
        "interval": tables.interval,
        "proven": tables.proven,
        "shown": shown,
    }
    best_rows = strongest(rows)
    best = {made.row.cell: made.attacks for made in best_rows}
    page = environment.get_template("report.html.j2").render(
        rows=rows,
        cards=[row for row in rows if (row.seed == rows[0].seed and row.cell in best) or row.status != "done"],
        mounted=best,
        done=[row for row in rows if row.status == "done"],
        proofs=list({(row.defense, row.seed): row for row in rows if row.status == "done"}.values()),
        baselines={
            (made.row.seed, made.row.protocol): made.row
            for made in best_rows
            if made.row.defense in ("none", f"none:protocol={made.row.protocol}")
        },
        floor_names=tables.FLOOR_NAMES,
        manifest=manifest,
        mixed=mixed,
        verdict=verdict,
        made_of=_made_of(rows),
        table=table,
        note=tables.note_of(rows),
        threats=threats,
        threats_note=THREATS_NOTE,
        others=others,
        texts=texts,
        told={made.row.cell: made.told for made in best_rows},
        elsewhere={made.row.cell: made.elsewhere for made in best_rows},
        summary=summary,
        summary_note=summary_note,
        images=images,
    )
    path = folder / "index.html"
    write(path, page.encode())
    return path


def _made_of(rows: Sequence[Row]) -> list[tuple[str, Provenance]]:
    """What rows are made of, once for all rows that are made of the same, with their names."""
    groups: list[tuple[list[str], Provenance]] = []
    for row in rows:
        name = f"{row.defense} / {row.attack}, seed {row.seed}"
        same = next((names for names, provenance in groups if provenance == row.provenance), None)
        if same is None:
            groups.append(([name], row.provenance))
        else:
            same.append(name)
    return [("; ".join(names), provenance) for names, provenance in groups]


def _label(row: Row, rows: Sequence[Row]) -> str:
    """A row's name in the figure, as short as the run allows."""
    label = row.defense
    if len({other.attack for other in rows}) > 1:
        label += f"\n{row.attack}"
    if len({other.seed for other in rows}) > 1:
        label += f"\nseed {row.seed}"
    return escape.figure(label)
