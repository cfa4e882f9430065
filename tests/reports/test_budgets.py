"""Tables and pictures of privacy budgets: every number survives, nothing is rounded to the wrong side or cut off."""

import ast
import csv
import dataclasses
import io
import json
import subprocess
from math import inf, nan
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from privkit.reports import budgets, figures
from privkit.reports.budgets import BudgetRow
from privkit.reports.figures import BudgetCurve
from privkit.reports.tables import rich_table

GOOD = BudgetRow(
    row=1, name="DP-MixSL", mechanism="dp_mixsl", epsilon=4.377178095681228, delta=1e-5, lower=4.377178095681228,
    method="exact Gaussian profile", statement="(ε = 4.377, δ = 1e-05)", published=2.0, published_order=1.27,
    objection="λ is random",
)  # fmt: skip
BAD = BudgetRow(row=2, name="mine", status="error", error="sigma must be a finite number > 0, got -1.0", sound=False)
NOTHING = BudgetRow(row=3, name="none", mechanism="gaussian", epsilon=inf)
ROWS = [GOOD, BAD, NOTHING]

FLOATS = st.one_of(st.none(), st.floats(0, 1e300), st.just(inf))
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


@st.composite
def rows(draw: st.DrawFn) -> BudgetRow:
    failed = draw(st.booleans())
    return BudgetRow(
        row=draw(st.integers(1, 10**6)),
        name=draw(TEXT),
        mechanism=draw(TEXT),
        status="error" if failed else "ok",
        sound=not failed,
        error="row 1: no" if failed else "",
        epsilon=None if failed else draw(st.floats(0, allow_nan=False)),
        delta=draw(st.one_of(st.none(), st.floats(1e-300, 0.9))),
        published=draw(FLOATS),
        objection=draw(TEXT),
        notes=tuple(draw(st.lists(TEXT, max_size=2))),
        at_grid_edge=draw(st.booleans()),
        order=draw(st.one_of(st.none(), st.floats(1.01, 64))),
    )


@pytest.mark.slow
@given(given_rows=st.lists(rows(), max_size=5))
def test_json_is_json_and_keeps_every_digit(given_rows: list[BudgetRow]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    read = json.loads("".join(budgets.json_text(given_rows)), parse_constant=refuse)
    assert [set(one) for one in read] == [set(budgets.FIELDS)] * len(given_rows)
    for one, row in zip(read, given_rows, strict=True):
        assert one["epsilon"] == (row.epsilon if row.epsilon != inf else None)
        assert one["kind"] == {None: None, inf: "nothing"}.get(row.epsilon, "differential_privacy")
        assert (one["name"], one["notes"], one["delta"]) == (row.name, list(row.notes), row.delta)


@given(given_rows=st.lists(rows(), max_size=5))
def test_csv_keeps_every_digit(given_rows: list[BudgetRow]) -> None:
    read = list(csv.DictReader(io.StringIO("".join(budgets.csv_text(given_rows)), newline="")))
    assert len(read) == len(given_rows)
    for one, row in zip(read, given_rows, strict=True):
        assert set(one) == set(budgets.FIELDS)
        assert one["epsilon"] == ("" if row.epsilon is None else repr(row.epsilon))
        assert one["published"] == ("" if row.published is None else repr(row.published))


def test_writers_stream() -> None:
    def endless() -> Any:
        while True:
            yield GOOD

    for text in (budgets.csv_text(endless()), budgets.json_text(endless())):
        assert sum(len(next(text)) for _ in range(1000)) > 1000


@given(given_rows=st.lists(rows(), min_size=1, max_size=5), compare=st.booleans())
def test_any_row_is_shown_in_one_line(given_rows: list[BudgetRow], compare: bool) -> None:
    shown = budgets.budget_table(given_rows, compare)
    assert len(shown.rows) == len(given_rows)
    assert {len(line) for line in shown.rows} == {len(shown.headers)}
    Console(file=io.StringIO(), width=200).print(rich_table(shown))  # markup in a name is text
    table = budgets.budget_markdown(given_rows, compare).splitlines()[: 2 + len(given_rows)]
    unescaped = {line.replace(r"\|", "").count("|") for line in table}
    assert unescaped == {len(shown.headers) + 1}
    body = budgets.budget_latex(given_rows, compare)
    assert body.count(r"\\" + "\n") == len(given_rows) + 1


def test_what_the_table_says() -> None:
    shown = budgets.budget_table(ROWS, compare=True)
    good, bad, nothing = (dict(zip(shown.headers, line, strict=True)) for line in shown.rows)
    assert good["ε"] == "4.3772"  # up
    assert good["ε at least"] == "4.3771"  # down
    assert budgets.budget_table([dataclasses.replace(GOOD, delta=1.2341e-5)]).rows[0][3] == "1.24e-05"  # up
    assert good["ε published"] == "2 (α = 1.27) [1] [2] [3]"
    assert good["published/sound"] == "0.457"
    assert bad["ε"] == "error [4]"
    assert nothing["ε"] == "∞"
    order, *others = budgets.remarks(ROWS, compare=True)
    assert "its Table 1 fixes α = 2" in order
    assert others == [
        "the published ε undercuts the sound one",
        "the published value is no bound: λ is random",
        BAD.error,
    ]
    assert budgets.remarks(ROWS) == [BAD.error]
    assert "[4] sigma must be" in budgets.budget_markdown(ROWS, compare=True)
    assert "ε published" not in budgets.budget_table(ROWS).headers


@given(epsilon=st.floats(1e-6, 1e9))
def test_upper_bounds_are_rounded_up_and_lower_bounds_down(epsilon: float) -> None:
    row = BudgetRow(row=1, name="x", epsilon=epsilon, lower=epsilon)
    shown = dict(zip(*(lambda t: (t.headers, t.rows[0]))(budgets.budget_table([row])), strict=True))
    assert epsilon * (1 - 1e-4) <= float(shown["ε at least"]) <= epsilon <= float(shown["ε"]) <= epsilon * (1 + 1e-4)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"epsilon": nan}, "epsilon must be a number >= 0"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"published": nan}, "published must be"),
        ({"epsilon": None}, "either an epsilon or status='error'"),
        ({"error": "no"}, "either an epsilon"),
        ({"status": "error"}, "either an epsilon"),
    ],
)
def test_refuses_rows_that_contradict_themselves(changes: dict[str, Any], match: str) -> None:
    given_fields: dict[str, Any] = {"row": 1, "name": "x", "epsilon": 1.0}
    with pytest.raises(ValueError, match=match):
        BudgetRow(**(given_fields | changes))


def test_the_factor_is_a_number_or_absent() -> None:
    for epsilon, published in ((0.0, 1.0), (inf, 1.0), (1.0, inf), (1.0, None)):
        assert BudgetRow(row=1, name="x", epsilon=epsilon, published=published).factor is None
    assert BudgetRow(row=1, name="x", epsilon=4.0, published=2.0).factor == 0.5


@pytest.mark.needs("pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    odd = BudgetRow(row=4, name=r"[a] 50% $x_1$ {b} \c ~ ^ # & <", mechanism="m", epsilon=1.0, method="√T·μ ⌈λN⌉")
    text = budgets.budget_latex([*ROWS, odd], compare=True)
    page = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + text + r"\end{document}"
    (tmp_path / "t.tex").write_text(page)
    done = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stdout[-2000:]


# pictures


def curve(**changes: Any) -> BudgetCurve:
    given: dict[str, Any] = {
        "label": "DP-SL",
        "values": np.arange(1.0, 6.0),
        "epsilon": np.array([9.0, 8, 7, 6, 5]),
        "published": np.array([6.0, 5, 4, 3, 2]),
        "sound": np.array([True, True, False, False, False]),
    }
    return BudgetCurve(**(given | changes))


def drawn(*given_curves: BudgetCurve, **changes: Any) -> Any:
    words: dict[str, Any] = {"title": "ε against k", "subtitle": "δ = 1e-5, σ = 1", "xlabel": "k", "whole": True}
    return figures.curves(given_curves, **(words | changes))


def test_lines_are_the_arrays_in_one_color_a_mechanism() -> None:
    one, two = curve(), curve(label="DP-MixSL", epsilon=np.array([4.0, 3, 2, 1, 0.9]), published=None, sound=None)
    figure = drawn(one, two)
    (axis,) = figure.axes
    found = {(str(line.get_color()), str(line.get_linestyle())): line.get_ydata() for line in axis.get_lines()}
    assert np.array_equal(found[(figures.COLORS[0], "-")], one.epsilon)
    assert one.published is not None
    assert np.array_equal(found[(figures.COLORS[0], "--")], one.published)
    assert np.array_equal(found[(figures.COLORS[1], "-")], two.epsilon)
    assert [text.get_text() for text in axis.texts] == ["DP-MixSL", "DP-SL as published", "DP-SL"]  # bottom to top
    assert axis.get_title(loc="left") == "δ = 1e-5, σ = 1"
    crosses = [line for line in axis.get_lines() if line.get_marker() == "x"]
    assert np.isnan(crosses[0].get_ydata()[:2]).all()
    assert np.array_equal(crosses[0].get_ydata()[2:], [4, 3, 2])
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key == ["sound (proven upper bound)", "as published", "published, a bound", "published, no bound"]


def test_axes_are_logarithmic_where_asked_for() -> None:
    wide = np.array([1e4, 1e3, 1e2, 10, 1])
    assert drawn(curve()).axes[0].get_yscale() == "linear"
    assert drawn(curve(epsilon=wide)).axes[0].get_yscale() == "log"
    assert drawn(curve(epsilon=wide), log_x=True).axes[0].get_xscale() == "log"
    zero = drawn(curve(epsilon=np.array([1e4, 1e3, 1, 0, 0])), log_x=True).axes[0]
    assert zero.get_yscale() == "symlog"
    assert zero.get_ylim()[0] == 0
    assert drawn(curve(epsilon=np.zeros(5), published=None)).axes[0].get_yscale() == "linear"


@pytest.mark.slow
@given(heights=st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=8))
def test_labels_keep_apart(heights: list[float]) -> None:
    figure = drawn(
        *(curve(label=f"m{i}", epsilon=np.full(5, h), published=None, sound=None) for i, h in enumerate(heights))
    )
    at = sorted(text.xyann[1] for text in figure.axes[0].texts)
    assert len(at) == len(heights)
    assert np.all(np.diff(at) >= 0.05)


def test_gaps_and_single_points() -> None:
    gap = curve(epsilon=np.array([9, inf, nan, 6, inf]), published=None, sound=None)
    axis = drawn(gap, whole=False).axes[0]
    assert np.isnan(axis.get_lines()[0].get_ydata()).tolist() == [False, True, True, False, True]
    assert figures.save(drawn(curve(epsilon=np.full(5, inf), published=None, sound=None)), "png")
    one = curve(values=np.ones(1), epsilon=np.ones(1), published=None, sound=None)
    assert drawn(one, whole=False).axes[0].get_lines()[1].get_marker() == "o"


@pytest.mark.slow
def test_equal_arrays_are_equal_pictures() -> None:
    for kind in ("png", "svg"):
        first, again = (figures.save(drawn(curve()), kind) for _ in range(2))
        assert len(first) == len(again) > 1000
    assert figures.save(drawn(curve()), "png") == figures.save(drawn(curve()), "png")


def test_refuses_arrays_of_other_shapes() -> None:
    for name in ("epsilon", "published", "sound"):
        with pytest.raises(ValueError, match=rf"{name} must have shape \[5\], got \[4\]"):
            curve(**{name: np.zeros(4)})
    with pytest.raises(ValueError, match="has no points"):
        curve(values=np.zeros(0), epsilon=np.zeros(0), published=None, sound=None)
    with pytest.raises(ValueError, match="at least one curve"):
        drawn()


@pytest.mark.parametrize("report", [budgets, figures])
def test_knows_neither_accountants_nor_the_core(report: ModuleType) -> None:
    tree = ast.parse(Path(str(report.__file__)).read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    own = [module for module in modules if module.startswith("privkit")]
    assert own
    assert all(module.startswith(("privkit.reports", "privkit.shared", "privkit.constraints")) for module in own)
