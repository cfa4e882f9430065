"""What functions of one line say of a number, a name or a text."""

from typing import Any

import pytest

from privkit.reports import escape
from privkit.reports.budgets import plain_text
from privkit.reports.charts import AxisScale, epoch_chart
from privkit.reports.columns import START, ends, flat_csv, gated
from privkit.reports.frontier import _options
from privkit.reports.gate import Gate, _digits, must_agree
from privkit.reports.html import html_table
from privkit.reports.origins import differences
from privkit.reports.page import _breakable, _cell
from privkit.reports.schema import Provenance
from privkit.reports.seed_intervals import over_intervals, over_records
from privkit.reports.strongest import undefended, unneeded, without_options
from privkit.reports.tables import Table, _floor_name, of_task, rounds_of, with_prefix
from privkit.shared.interval import Interval


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (plain_text([0.7, 0.3]), "0.7;0.3"),
        (plain_text(None), ""),
        ([text for _, text in AxisScale(low=0, high=1, start=0, end=1).ticks], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (epoch_chart([1.0], "loss"), None),
        (gated("ssim"), "unaligned_ssim"),
        (gated("own_edges"), "unaligned_own_edges"),
        (gated("matched_own_edges_worst"), "matched_own_edges_worst"),
        (gated("sim"), None),
        (flat_csv([{"a": "none", "b": 0.5}, {"a": "=1+1"}]), "a,b\nnone,0.5\n'=1+1,\n"),
        (ends("auc", Interval(value=0.25, low=0.125, high=0.5, n=9, method="m")), (0.75, 0.5, 0.875)),
        (escape.workflow_message("50 %\n\x1b[31m"), r"50 %25%0A\x1b[31m"),
        (escape.markup("a\x00b\uffff <c>"), r"a\x00b\uffff <c>"),
        (escape.terminal_json('"ε \x9b31m"'), r'"ε \u009b31m"'),
        (escape.csv_cell("=1+1"), "'=1+1"),
        (escape.csv_cell(-1.0), -1.0),
        (escape.latex(r"\input{/etc/passwd} 50%"), r"\textbackslash{}input\{/etc/passwd\} 50\%"),
        (escape.markdown("a|b ![x](http://a.b)"), r"a\|b ![x]\(http://a.b)"),
        (escape.figure(r"$\frac$"), r"\$\frac\$"),
        (_options("gaussian_noise:sigma=2.0,clip=1.0+masking:keep=0.2"), ["sigma=2.0", "clip=1.0", "keep=0.2"]),
        ([_digits(value) for value in (0.4, 60258000.6922, 6144.0)], ["0.4000", "6.0258e+07", "6144"]),
        (_cell("0.900 [0.880, 0.920]"), "0.900<small>[0.880, 0.920]</small>"),
        (_breakable("mixup:keep=<1>"), "mixup:<wbr>keep=&lt;1&gt;"),
        (unneeded((), {}), ""),
        (unneeded(("a",), {}), "only if the attack fails on a defense"),
        (without_options("black_box:epochs=5"), "black_box"),
        (without_options("mine:Attack:k=3"), "mine:Attack"),
        (without_options("a:b=1+c@server"), "a+c@server"),
        (undefended("none:protocol=cutmixsl"), True),
        (undefended("masking"), False),
        (rounds_of(1), "1 round of queries"),
        (rounds_of(1052), "1,052 rounds of queries"),
        (_floor_name(START, "none", "white_box", "sl"), "white_box on none before its first step"),
        ([with_prefix(count) for count in (950, 12_345, 3_400_000)], ["950", "12.35 k", "3.40 M"]),
        (of_task("mcc", Interval(value=0.0, low=-0.99999, high=0.99999, n=5, method="m")), "0.000"),
        (round(over_records([1.0] * 100, 0.95, (0.0, 1.0)).low, 3), 0.964),
    ],
)
def test_it_says(found: Any, wanted: Any) -> None:
    assert found == wanted


def test_a_table_as_html_is_escaped() -> None:
    shown = html_table(Table(headers=("a",), rows=(("<1>",),)))
    assert shown == "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;1&gt;</td></tr></tbody></table>"


def test_gates_that_meet_at_their_bound_agree() -> None:
    must_agree([Gate.parse(text) for text in ("ssim<=0.4", "ssim>=0.4", "mse>=0.6")])


def test_changes_of_a_provenance_are_named() -> None:
    old = Provenance(packages={"torch": "2.14.0"}, code={"mine": "ab"})
    new = Provenance(packages={"torch": "2.15.0"}, code={"mine": "cd"})
    assert differences(old, new) == ["the source of mine", "torch (2.14.0 there, 2.15.0 here)"]


def test_seeds_that_agree_are_as_unsure_as_their_records() -> None:
    whole = Interval(value=1.0, low=0.964, high=1.0, n=100, method="Clopper–Pearson")
    assert over_intervals([whole] * 3, 0.95, (0.0, 1.0)).low == pytest.approx(0.979, abs=5e-4)
