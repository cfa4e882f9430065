"""Names that act: a formula in a spreadsheet, a command in LaTeX, an escape sequence, markup, a figure's formula."""

import csv
import io
import re
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privkit.audit.run import AuditRun
from privkit.errors import tell
from privkit.parts.threats import threats_of
from privkit.reports import budgets, columns, escape, figures, tables
from privkit.reports.budgets import BudgetRow
from privkit.reports.page import render
from privkit.reports.schema import Row
from privkit.run.progress import Lines
from tests.reports.grids import grid

HOSTILE = [
    "[/bold]",
    "[bold",
    r"$\frac$",
    r"$\frac{1}{2",
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    r"\input{/etc/passwd}",
    r"\write18{touch x}",
    "[1]",
    "50% #1 & ~ ^ _ {",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "\u202egnp.exe",
    "a\nb",
    "a|b",
    "<script>alert(1)</script>",
    "![x](http://a.b)",
    "_hidden",
]
MEANT = {*"$%<\n\x1b\x9b\u202e"}
"""Characters that mean something in a figure or on a page; names without them are tried in the slow tests."""
MEANT_FIRST: list[str] = sorted(HOSTILE, key=MEANT.isdisjoint)


def named(row: Row, name: str) -> Row:
    """The same row of a defense and an attack of this name."""
    return row.model_copy(update={"defense": name, "attack": name, "reason": name, "notes": (name,)})


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_in_every_writer(small_run: AuditRun, capsys: pytest.CaptureFixture[str], name: str) -> None:
    rows = [named(row, name) for row in small_run.rows]
    shown = tables.table(rows)
    budget = [BudgetRow(row=1, name=name, epsilon=1.0, mechanism=name, notes=(name,))]
    escape.console(200).print(tables.rich_table(shown))
    escape.console(200).print(tables.rich_table(budgets.budget_table(budget)))
    escape.console(200).print(name, highlight=False, markup=False)
    tell(name)
    Lines().note(name)
    printed = "".join(capsys.readouterr())
    assert not set(printed) & {chr(code) for code in escape.CONTROLS} - {"\n", "\t"}
    for text in (columns.to_csv(rows), "".join(budgets.csv_text(budget))):
        for record in csv.reader(io.StringIO(text, newline="")):
            assert not [cell for cell in record if cell.startswith(("=", "+", "@", "\t", "\r", "-1"))]
    for text in (tables.table_latex(shown), budgets.budget_latex(budget)):
        assert not re.search(r"\\(input|write|frac)", text)
        assert not re.search(r"^\[", text, re.MULTILINE)
    for text in (tables.table_markdown(shown), budgets.budget_markdown(budget)):
        assert "<script" not in text
        assert "](" not in text


def test_an_import_path_is_no_picture(small_run: AuditRun, capsys: pytest.CaptureFixture[str]) -> None:
    shown = tables.table([named(small_run.rows[0], "hushed:Hushed:sigma=2")])
    escape.console(400).print(tables.rich_table(shown))
    escape.console(200).print("hushed:Hushed:sigma=2", highlight=False, markup=False)
    assert capsys.readouterr().out.count("hushed:Hushed:sigma=2") > 1


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("name", MEANT_FIRST, ids=ascii)
def test_names_in_figures_and_on_the_page(name: str, tmp_path: Path) -> None:
    one = grid(("none", name), ("black_box", "canaries"), 1)
    rows = [named(row, name) if row.defense == name else row for row in one.rows]
    files: dict[str, str] = {}
    report = replace(one, rows=rows, threats=threats_of(rows))
    render(report, tmp_path, lambda path, data: files.update({path.name: data.decode(errors="replace")}))
    for file in ("index.html", "frontier.svg", "scores.svg", "reconstructions.svg"):
        assert "<script>alert" not in files[file]
        assert not set(files[file]) & {chr(code) for code in escape.CONTROLS} - {"\n", "\t"}
        if file.endswith("svg"):
            ElementTree.fromstring(files[file])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a missing glyph
        curve = figures.BudgetCurve(label=name, values=np.arange(1.0, 3), epsilon=np.arange(1.0, 3))
        drawn = figures.curves([curve], title="", subtitle="", xlabel="")
        figures.save(drawn, "svg")


@given(text=st.text())
def test_latex_of_any_text_has_no_open_command(text: str) -> None:
    found = escape.latex(text)
    bare = re.sub(r"\\(textbackslash|textasci\w+|text\w+)\{\}|\\[{}$_%#&]|\$\\?[\w_^]+\$|\$-\$|^\{\[\}", "", found)
    assert not set(bare) & set("\\{}$_%#&^~")


@pytest.mark.needs("pdflatex")
def test_latex_compiles(small_run: AuditRun, tmp_path: Path) -> None:
    rows = [named(small_run.rows[0], name) for name in HOSTILE if name.isascii()]
    body = tables.table_latex(tables.table(rows))
    (tmp_path / "t.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs,textcomp}\begin{document}" + body + r"\end{document}"
    )
    done = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stdout[-2000:]
