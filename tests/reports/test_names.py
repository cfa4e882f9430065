"""Names that a generator makes up, through every writer: its output is read back by the parser of its format."""

import csv
import io
import json
import random
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from privkit.cli.show import say, say_json
from privkit.cli.start import _told
from privkit.errors import tell
from privkit.reports import budgets, charts, ci, columns, escape, page, tables
from privkit.reports.budgets import BudgetRow
from privkit.reports.html import html_run, html_table
from privkit.reports.schema import PlannedCell
from privkit.reports.tables import Table
from privkit.reports.verdict import judge
from privkit.run.progress import Lines, event

PIECES = [
    *("\n::error file=app.py::INJECTED", "::warning::x", "\r::stop-commands::t", "##[error]x", "##vso[task.x]y", "::"),
    *("\n", "\r", "\r\n", "\t", "\0", "\x1b[2J", "\x1b]0;t\x07", "\x9b31m", "\x7f", "\x85", "\x0b", "\u2028", "\u202e"),
    *("\ufffe", "\uffff", "\ufeff", "\ud800", "\udcff", "\U0001fffe", "\U0010ffff", "😀", "é", "ε ≤ 1", "]]>", "&#0;"),
    *("<b>", "</testcase>", "<script>", "&lt;", "&", '"', "'", "<!--", "-->", "<![CDATA[", "<?x?>"),
    *("|", "\\", "\\|", "`", "``", "*", "_", "~~", "[a](b)", "![x](http://a.b)", "[a][b]", "<http://a.b>", "# ", "---"),
    *("=1+1", "+1", "-1", "@SUM(A1)", "=cmd|' /C calc'!A0", ",", ";", '""', "\\input{x}", "$x$", "%", "{", "}", "^"),
    *("batch_shuffle", "mine.stages:Squash:bound=2", " ", "  ", "a" * 50, "C:\\runs", "x::y", "/a/b"),
]
SIZES = [300, pytest.param(10_000, marks=pytest.mark.slow)]
BATCH = 100
SENT = {chr(code) for code in escape.CONTROLS} - {"\n"}
"""What no line of a terminal holds."""


def names(count: int) -> list[str]:
    """So many names: pieces that act somewhere, and characters of every kind."""
    draws = random.Random(24)

    def piece() -> str:
        return draws.choice(PIECES) if draws.random() < 0.8 else chr(draws.randrange(0x110000))

    return ["".join(piece() for _ in range(draws.randint(1, 6))) for _ in range(count)]


def batches(count: int) -> Iterator[list[str]]:
    every = names(count)
    return (every[start : start + BATCH] for start in range(0, count, BATCH))


def obeyed(line: str) -> bool:
    """Whether GitHub's runner takes a line of a log for a command: ActionCommand.TryParseV2 and TryParse."""
    return bool(re.match(r"\s*::[a-z][\w-]*(\s[^\r\n]*?)?::", line, re.IGNORECASE) or re.search(r"##\[[a-z]", line))


def shown(printed: str, lines: int | None = None) -> list[str]:
    """The lines of a terminal: none acts, and there are as many as were printed."""
    found = printed.removesuffix("\n").split("\n")
    assert not set(printed) & SENT
    printed.encode()
    assert not [line for line in found if obeyed(line)]
    assert lines is None or len(found) == lines
    return found


def test_the_parser_of_commands_knows_them() -> None:
    assert all(map(obeyed, ("::error file=app.py::x", "  ::error::x", "a ##[error]b", "::Stop-Commands::t")))
    assert not any(map(obeyed, ("a ::error::b", "error::b", "::", "# [error]")))


@pytest.mark.parametrize("count", SIZES)
def test_lines_of_a_terminal(capsys: pytest.CaptureFixture[str], count: int) -> None:
    log = Lines()
    for name in names(count):
        say(name)
        tell(name)
        log.note(name)
        told = capsys.readouterr()
        shown(told.out, 1)
        shown(told.err, 2)


@pytest.mark.parametrize("count", SIZES)
def test_tables_of_a_terminal_that_is_narrow(capsys: pytest.CaptureFixture[str], count: int) -> None:
    """A line that is broken where a name has a space, or in the middle of a word, begins with whatever follows."""
    for batch in batches(count):
        console = escape.console(40)
        table = Table(headers=(batch[0], "b"), rows=tuple((name, name) for name in batch), floor=(False,) * len(batch))
        console.print(tables.rich_table(table))
        budget = [BudgetRow(row=1, name=name, epsilon=1.0) for name in batch]
        console.print(tables.rich_table(budgets.budget_table(budget)))
        for name in batch:
            console.print(name, highlight=False, markup=False)
        shown(capsys.readouterr().out)


@pytest.mark.parametrize("count", SIZES)
def test_json_of_a_terminal(capsys: pytest.CaptureFixture[str], count: int) -> None:
    for name in names(count):
        say_json({name: name})
        event("note", text=name)
        value, line = capsys.readouterr().out.split("\n}\n")
        assert json.loads(value + "}") == {name: name}
        assert json.loads(line) == {"event": "note", "text": name}
        shown(f"{value}\n{line}")


def test_the_command_line_has_one_way_to_its_output() -> None:
    """`say` and the tables' console; the help, the version and a stream of JSON are escaped by themselves."""
    others = {"context.get_help()", 'f"privkit {__version__}"', "text, nl=False"}
    others |= {"terminal(line)", "terminal_json(json.dumps(plain, indent=indent, ensure_ascii=False))"}
    for path in Path(say.__code__.co_filename).parent.glob("*.py"):
        printed = set(re.findall(r"(?:typer\.echo|(?<![\w.])print)\((.*)\)$", path.read_text(), re.MULTILINE))
        assert path.name == "start.py" or {one for one in printed if "sys.stderr" not in one} <= others


def test_the_trace_of_an_internal_fault(capsys: pytest.CaptureFixture[str]) -> None:
    for name in names(20):
        _told(AttributeError(name))
    shown(capsys.readouterr().err)


@pytest.mark.parametrize("count", SIZES)
def test_what_ci_systems_read(count: int) -> None:
    empty = judge([PlannedCell(cell="c", model="m", defense="d", attack="a", seed=0)], [], [], run="r")
    for batch in batches(count):
        cells = tuple(
            empty.cells[0].model_copy(update={"defense": name, "attack": name, "reason": name, "status": "error"})
            for name in batch
        )
        verdict = empty.model_copy(update={"cells": cells})
        cases = list(ElementTree.fromstring(ci.junit(verdict).encode()))
        assert [case.attrib["classname"] for case in cases] == [escape.markup(name) for name in batch]
        assert [case[0].attrib["message"] for case in cases] == [escape.markup(name) for name in batch]
        lines = ci.github(verdict)
        assert len(lines) == len(batch)
        for line, name in zip(lines, batch, strict=True):
            command, _, data = line[2:].partition("::")
            assert command == "error title=privkit"
            assert not set(line) & (SENT - {"\t"} | {"\n"})
            told = data.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
            assert told == f"{escape.markup(name)} / {escape.markup(name)}, seed 0: {escape.markup(name)}"
            line.encode()


class Page(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(decl)

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(data)

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)


@pytest.mark.parametrize("count", SIZES)
def test_html_and_svg(count: int) -> None:
    panel = charts.epoch_chart([1.0, 2.0], "loss")
    assert panel is not None
    for batch in batches(count):
        table = Table(headers=("a",), rows=tuple((name,) for name in batch), floor=(False,) * len(batch))
        read = Page(html_table(table))
        assert read.cells == [escape.markup(name) for name in batch]
        assert set(read.tags) == {"table", "thead", "tr", "th", "tbody", "td"}
        verdict = judge([], [], [], run="r").model_copy(update={"failures": tuple(batch), "sentence": batch[0]})
        assert set(Page(html_run([], verdict, Path("page.html"))).tags) == {"p", "b", "ul", "li", "code"}
        shapes = tuple(charts.Shape(kind="line c0", points="0,0 1,1", name=name) for name in batch)
        mark = {"x": 1.0, "y": 1.0, "x_limits": (0.0, 1.0), "y_limits": (0.0, 1.0), "kind": "m", "strength": None}
        marks = tuple(charts.Mark(name=name, label=name, **mark) for name in batch)  # type: ignore[arg-type]
        chart = charts.Chart(
            title=batch[0], x=panel.x, y=panel.y, x_label=batch[1], y_label=batch[2],
            shapes=shapes, marks=marks, words=((1.0, 1.0, batch[3]),),
        )  # fmt: skip
        drawn = ElementTree.fromstring(page.standalone([(name, [chart]) for name in batch[:2]]).encode())
        space = "{http://www.w3.org/2000/svg}"
        kinds = {element.tag.removeprefix(space) for element in drawn.iter()}
        assert kinds == {*("svg", "style", "rect", "text", "line", "polyline", "title", "g", "circle")}
        titles = {element.text or "" for element in drawn.iter(f"{space}title")}
        assert titles == {escape.markup(name) for name in batch}


@pytest.mark.parametrize("count", SIZES)
def test_csv(count: int) -> None:
    for batch in batches(count):
        text = columns.flat_csv([{"defense": name, "n": number} for number, name in enumerate(batch)])
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert rows == [["defense", "n"], *([escape.csv_cell(name), str(n)] for n, name in enumerate(batch))]
        budget = "".join(budgets.csv_text(BudgetRow(row=1, name=name, epsilon=1.0) for name in batch))
        assert [row[1] for row in csv.reader(io.StringIO(budget, newline=""))][1:] == [row[0] for row in rows[1:]]
        for written in (text, budget):
            assert not [line for line in shown(written, 1 + len(batch)) if line.startswith(("=", "+", "@", "-"))]
            written.encode()


@pytest.mark.parametrize("count", SIZES)
def test_markdown(count: int) -> None:
    parser = MarkdownIt("commonmark").enable("table")
    for batch in batches(count):
        table = Table(headers=(batch[0], "b"), rows=tuple((name, "end") for name in batch), floor=(False,) * len(batch))
        text = tables.table_markdown(table, "note")
        shown(text)
        text.encode()
        tokens = parser.parse(text)
        inside = [token for token in tokens if token.type == "inline"]
        assert len(inside) == 2 + 2 * len(batch) + 1
        assert all(token.content == "end" for token in inside[3:-1:2])
        parts = {part.type for token in inside for part in token.children or ()}
        assert not {part.partition("_")[0] for part in parts} & {"link", "image", "html"}, parts


@pytest.mark.parametrize("count", SIZES)
def test_latex(count: int) -> None:
    """No command is open, each row has its cells, and none begins with what a line break takes for its argument."""
    for batch in batches(count):
        table = Table(headers=("a", "b"), rows=tuple((name, "end") for name in batch), floor=(False,) * len(batch))
        text = tables.table_latex(table)
        shown(text)
        text.encode()
        body = text.split("\\midrule\n")[1].split("\n\\bottomrule")[0].split("\n")
        assert len(body) == len(batch)
        for line in body:
            name, _, end = line.rpartition(" & ")
            assert end == r"end \\"
            bare = re.sub(r"\\(textbackslash|textasci\w+|text\w+)\{\}|\\[{}$_%#&]|\$\\?[\w_^]+\$|\$-\$", "", name)
            assert not set(re.sub(r"^\{[\[*]\}", "", bare)) & set("\\{}$_%#&^~")
            assert not name.startswith(("[", "*"))
