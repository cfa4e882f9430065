"""Tables of privacy budgets for readers and for programs, with proven and published ε side by side."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import inf, isfinite
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from privkit.constraints import Checked
from privkit.reports import escape, tables
from privkit.shared.rounding import rounded_down, rounded_up

Kind = Literal["nothing", "differential_privacy"]
_Amount = Annotated[float, Ge(0), Le(inf)]

_ORDERS = (
    "published ε at the Rényi order α > 1 that is best at this δ; the paper states α ≥ 2, and its Table 1 fixes α = 2 "
    "and δ = .5 (published_at_order_2 in .csv and .json)"
)
BUDGETS_NOTE = "ε in nats: rounded up where it is an upper bound, down where it is a lower one."


@dataclass(frozen=True, kw_only=True)
class BudgetRow(Checked):
    """The proven claim for one row of a parameter table, or the error that refused the row.

    Attributes:
        row: number of the row in the parameter table, from 1.
        name: the row's name.
        line: number of the row's line in a CSV file, from 1; None for another format.
        mechanism: name of the mechanism; empty if it could not be read.
        status: "ok", or "error" if the row was refused.
        error: why the row was refused, without the row's number; empty if the row was accepted.
        epsilon: proven upper bound on ε, in nats; `inf` if nothing is proven; None if the row was refused.
        delta: the δ of `epsilon`; None if the row was refused.
        lower: proven lower bound on ε; None if unknown.
        method: the method that gave `epsilon`, in words; empty if the row was refused.
        order: the Rényi order that gave `epsilon`; None if the method uses no order.
        at_grid_edge: whether `order` is the first or the last order that was tried.
        sound: whether `epsilon` is a bound; False if the row was refused.
        statement: the claim in one sentence; empty if the row was refused.
        published: ε at `delta` by the paper's own formula; None if it was not computed or does not apply.
        published_order: the Rényi order at which the paper's formula gives the least ε; None if it uses no order.
        published_at_order_2: ε by the paper's formula at order 2, the order of the paper's table; None if
            `published_order` is None.
        objection: why the published value is not a bound; empty if it is a bound, or if there is no value.
        notes: caveats for the reader, one sentence each.
        given: the row's cells in the parameter table, as pairs (column, text), which CSV and JSON repeat.
        terms: pairs (term, text) of NIST SP 800-226 for JSON; empty if they were not requested.

    Raises:
        ValueError: if a number is NaN or negative, or if status and numbers contradict each other.
    """

    row: int
    name: str
    line: int | None = None
    mechanism: str = ""
    status: Literal["ok", "error"] = "ok"
    error: str = ""
    epsilon: _Amount | None = None
    delta: _Amount | None = None
    lower: _Amount | None = None
    method: str = ""
    order: _Amount | None = None
    at_grid_edge: bool = False
    sound: bool = True
    statement: str = ""
    published: _Amount | None = None
    published_order: _Amount | None = None
    published_at_order_2: _Amount | None = None
    objection: str = ""
    notes: tuple[str, ...] = ()
    given: tuple[tuple[str, str], ...] = ()
    terms: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.status == "error") != bool(self.error) or (self.status == "error") != (self.epsilon is None):
            raise ValueError(
                f"row {self.row}: a row has either an epsilon or status='error' with its sentence, got "
                f"status={self.status!r}, error={self.error!r}, epsilon={self.epsilon!r}"
            )
        if self.status == "error" and self.sound:
            raise ValueError(f"row {self.row}: a refused row has no epsilon that could be sound; give sound=False")

    @property
    def kind(self) -> Kind | None:
        """The kind of the proven claim; None if the row was refused."""
        return _kind(self.epsilon)

    @property
    def published_kind(self) -> Kind | None:
        """The kind of the published formula's claim; None without a published formula."""
        return _kind(self.published)

    @property
    def factor(self) -> float | None:
        """The published ε divided by the proven ε; below 1, the paper claims more than is proven. None if undefined."""
        if self.published is None or not self.epsilon or not isfinite(self.epsilon) or not isfinite(self.published):
            return None
        return self.published / self.epsilon


_APART = ("given", "terms")
FIELDS = (*(field.name for field in fields(BudgetRow) if field.name not in _APART), "kind", "published_kind", "factor")
"""Columns of CSV and keys of JSON. Columns of the parameter table with other names follow these fields."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")  # text that a spreadsheet reads as a number


def plain_text(value: object) -> str:
    """A cell of a parameter table as text; semicolons separate the items of a list, and None is an empty text."""
    return ";".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def csv_text(rows: Iterable[BudgetRow]) -> Iterator[str]:
    """Yield the table as CSV: a header, then one line for each row with all fields, unrounded. The first row determines
    which columns of the parameter table follow the fields. Infinities are "inf", missing values are empty."""
    rows, out = iter(rows), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    first = next(rows, None)
    columns = () if first is None else tuple(_read(first))
    writer.writerow([*FIELDS, *columns])
    yield out.getvalue()
    for row in () if first is None else chain([first], rows):
        out.seek(0)
        out.truncate()
        own = ["; ".join(value) if isinstance(value, tuple) else value for value in _record(row).values()]
        read = _read(row)
        texts = [read.get(name, "") for name in columns]
        others = [text if _NUMBER.fullmatch(text) else escape.csv_cell(text) for text in texts]  # −1 is no formula
        writer.writerow([*map(escape.csv_cell, own), *others])
        yield out.getvalue()


def json_text(rows: Iterable[BudgetRow]) -> Iterator[str]:
    """Yield a JSON list, one object at a time, with all fields, unrounded; an infinite ε is null, and its kind is
    "nothing"."""
    start = "["
    for row in rows:
        record = {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in (_record(row) | _read(row)).items()
        } | ({"terms": dict(row.terms)} if row.terms else {})
        yield f"{start}\n{escape.terminal_json(json.dumps(record, ensure_ascii=False, allow_nan=False))}"
        start = ","
    yield "[]\n" if start == "[" else "\n]\n"


def budget_table(rows: Sequence[BudgetRow], compare: bool = False) -> tables.Table:
    """A table with one line for each of `rows`; numbers in brackets point to `remarks`. `compare` adds the published ε
    and its ratio to the proven ε."""
    numbers = {sentence: number for number, sentence in enumerate(remarks(rows, compare), 1)}
    headers = ("name", "mechanism", "ε", *(("ε published", "published/sound") if compare else ()), "δ", "ε at least")
    lines = []
    for row in rows:
        published: tuple[str, ...] = ()
        if compare:
            published = (
                _shown(row.published, lambda value, digits: f"{value:.{digits}g}")
                + ("" if row.published_order is None else f" (α = {row.published_order:.3g})")
                + _marked(_objections(row), numbers),
                tables.UNKNOWN if row.factor is None else f"{row.factor:.3g}",
            )
        own = "error" if row.status == "error" else _shown(row.epsilon, rounded_up)
        delta = tables.UNKNOWN if row.delta is None else rounded_up(row.delta, 3)
        proven = (own + _marked(_own_remarks(row), numbers), *published, delta, _shown(row.lower, rounded_down))
        cells = (row.name, row.mechanism, *proven, row.method or tables.UNKNOWN)
        lines.append(tuple(" ".join(cell.split()) for cell in cells))
    return tables.Table(headers=(*headers, "method"), rows=tuple(lines))


def remarks(rows: Iterable[BudgetRow], compare: bool = False) -> list[str]:
    """The sentences below the table, each once: errors, caveats and, with `compare`, objections to published values."""
    notes: dict[str, None] = {}
    for row in rows:
        notes |= dict.fromkeys([*_own_remarks(row), *(_objections(row) if compare else ())])
    return list(notes)


def budget_markdown(rows: Sequence[BudgetRow], compare: bool = False) -> str:
    """The table in GitHub Markdown, with the remarks below."""
    said = [f"\n{escape.markdown(line)}" for line in _numbered(rows, compare)]
    return tables.table_markdown(budget_table(rows, compare), "\n".join([BUDGETS_NOTE, *said]))


def budget_latex(rows: Sequence[BudgetRow], compare: bool = False) -> str:
    """The table as a booktabs tabular, with the remarks below."""
    body = tables.table_latex(budget_table(rows, compare))
    said = [escape.latex(line) for line in (BUDGETS_NOTE, *_numbered(rows, compare))]
    return body + "".join(rf"\par{{\footnotesize {line}}}" + "\n" for line in said)


def _kind(epsilon: float | None) -> Kind | None:
    return None if epsilon is None else "differential_privacy" if isfinite(epsilon) else "nothing"


def _record(row: BudgetRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}


def _read(row: BudgetRow) -> dict[str, str]:
    return {name: text for name, text in row.given if name not in FIELDS}


def _own_remarks(row: BudgetRow) -> list[str]:
    edge = [f"the best order {row.order:g} is at the edge of those tried"] if row.at_grid_edge and row.order else []
    return [*([row.error] if row.error else []), *row.notes, *edge]


def _objections(row: BudgetRow) -> list[str]:
    said = [] if row.published_order is None else [_ORDERS]
    said += ["the published ε undercuts the sound one"] if row.factor is not None and row.factor < 1 else []
    return [*said, *([f"the published value is no bound: {row.objection}"] if row.objection else [])]


def _marked(sentences: Sequence[str], numbers: dict[str, int]) -> str:
    return "".join(f" [{numbers[sentence]}]" for sentence in sentences)


def _numbered(rows: Sequence[BudgetRow], compare: bool) -> list[str]:
    return [f"[{number}] {sentence}" for number, sentence in enumerate(remarks(rows, compare), 1)]


def _shown(value: float | None, rounded: Callable[[float, int], str]) -> str:
    if value is None:
        return tables.UNKNOWN
    if not isfinite(value):
        return "∞"
    return rounded(value, 5)
