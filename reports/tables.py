"""Tables of results for a terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

from privkit.reports import escape
from privkit.reports.columns import OWN, START
from privkit.reports.origins import origins
from privkit.reports.schema import Metrics, Row, Summary
from privkit.shared.interval import Interval
from privkit.shared.measures import IDENTIFIED, IMAGES, KINDS, MEASURES, OF_RECORDS, floor_title, likeness, measure
from privkit.shared.rounding import rounded_up

if TYPE_CHECKING:
    from rich.table import Table as RichTable

UNKNOWN = "–"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts.

    Attributes:
        headers: the heading of each column.
        rows: the lines, each with one text for each column.
        floor: for each line, whether it belongs to a constant guess or an untrained attack; by default, no line does.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    floor: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.floor:
            object.__setattr__(self, "floor", (False,) * len(self.rows))

    def lines(self, *, floors: bool) -> list[tuple[str, ...]]:
        """The lines of results or, with `floors`, the lines of constant guesses and untrained attacks."""
        return [row for row, floor in zip(self.rows, self.floor, strict=True) if floor == floors]

    def __str__(self) -> str:
        return table_markdown(self, "").strip()

    def _repr_html_(self) -> str:
        from privkit.reports.html import html_table

        return html_table(self)


HEADERS = (
    *("defense", "attack", "seed", measure("accuracy").heading, *(shown.heading for shown in IMAGES.measures)),
    *("worst", "matched", IDENTIFIED.heading, "claim", "kB up"),
)
_PERCEIVED = {one.name: one.heading for kind in KINDS.values() for one in kind.perceived}
"""Measures by feature networks -> headings of their columns, which only runs with these measures have."""
_UNDECLARED_NOTE = (
    "Arrows show which direction is better for the defender. A floor is a guess that ignores the smashed data."
)
_PICTURED = {
    IDENTIFIED.name,
    *(one.name for kind in KINDS.values() if kind.pictures for one in (*kind.measures, *kind.perceived)),
}
"""Measures of pictures, and the measure that all kinds of records share."""


def table(rows: Sequence[Row]) -> Table:
    """The table of all numbers, seed by seed: a line for each of `rows`, then lines for comparison.

    Lines for comparison are guesses without the release (floors) and untrained attacks. Attacks that give scores
    instead of guesses are left out. If rows differ in provenance, such as device or version, a last column names the
    difference.
    """
    held = {name: metric for row in rows for name, metric in row.recovered.get("unaligned", {}).items()}
    own = {name: f"{name} {'↓' if held[name].higher_is_closer else '↑'}" for name in held if name.startswith(OWN)}
    perceived = {name: header for name, header in _PERCEIVED.items() if name in held} | own
    made = origins(rows)
    blank = [UNKNOWN] if made else []
    names = _record_metrics(rows)
    lines: list[tuple[str, ...]] = []
    floor: list[bool] = []
    for seed in dict.fromkeys(row.seed for row in rows):
        group = [row for row in rows if row.seed == seed and not (row.answers and not row.recovered)]
        lines += [
            (
                *(row.defense, row.attack, str(seed), *_numbers(row, names), *_perceived(row.recovered, perceived)),
                *([made[row.cell] or UNKNOWN] if made else []),
            )
            for row in group
        ]
        shown: dict[str, dict[str, set[tuple[str, ...]]]] = {}
        for row in group:
            for key, metrics in row.floors.items():
                shown.setdefault(key, {}).setdefault(row.protocol, set()).add(_measures(metrics, names))
        apart = {key for key, found in shown.items() if any(found[one] != found[row.protocol] for one in found)}
        floors = {
            _floor_name(key, row.defense, row.attack, row.protocol if key in apart else ""): (key, metrics)
            for row in group
            for key, metrics in row.floors.items()
        }
        lines += [
            (
                *(_kind(key), name, str(seed), UNKNOWN, *_measures(metrics, names), UNKNOWN, UNKNOWN),
                *(*_perceived(metrics, perceived), *blank),
            )
            for name, (key, metrics) in floors.items()
        ]
        floor += [False] * len(group) + [True] * len(floors)
    first = (*HEADERS[:4], *(measure(name).heading for name in names), *HEADERS[-4:]) if names else HEADERS
    headers = (*first, *perceived.values(), *(["made of"] if made else []))
    return Table(headers=headers, rows=tuple(lines), floor=tuple(floor))


_SUMMARY_NOTE = (
    "Means over seeds; brackets are 95 % intervals over seeds: Student's, on the logit scale of the quantity's range "
    "(on the log scale for PSNR)."
)
_FEW_SEEDS = 5  # below this number of seeds a summary warns


def summary_table(summaries: Sequence[Summary], rows: Sequence[Row]) -> Table:
    """A table with a line for each of at least one `summaries` (means over seeds). If an attack on a defense has no
    means, because it gave no results, a line gives the status of its `rows`."""
    names = _of_records(name for summary in summaries for name in summary.values)
    columns = {name: measure(name).heading for name in ("accuracy", *(names or [one.name for one in IMAGES.measures]))}
    columns |= {f"matched_{alike}": "matched"} if (alike := likeness(names) if names else IMAGES.likeness) else {}
    columns |= {IDENTIFIED.name: IDENTIFIED.heading} if any(IDENTIFIED.name in one.values for one in summaries) else {}
    columns |= {"auc": measure("auc").title}
    lines = []
    for one in summaries:
        means = (interval(one.values.get(name), measure(name).digits) for name in columns)
        floor_name = _floor_name(one.floor, one.defense, one.attack, one.protocol)
        named = (_kind(one.floor), floor_name) if one.floor else (one.defense, one.attack)
        lines.append((*named, str(len(one.seeds)), *means))
    floor = [bool(summary.floor) for summary in summaries]
    known = {(summary.defense, summary.attack) for summary in summaries if not summary.floor}
    for defense, attack in dict.fromkeys((row.defense, row.attack) for row in rows if row.status != "done"):
        if (defense, attack) not in known:
            own = [row.status for row in rows if (row.defense, row.attack) == (defense, attack)]
            why = next(status for status in own if status != "done").replace("_", " ")
            blank = [UNKNOWN] * (len(columns) - 2)
            lines.insert(place := floor.count(False), (defense, attack, str(own.count("done")), UNKNOWN, why, *blank))
            floor.insert(place, False)
    headers = ("defense", "attack", "seeds", *columns.values())
    return Table(headers=headers, rows=tuple(lines), floor=tuple(floor))


def summary_note(summaries: Sequence[Summary]) -> str:
    """A note for a table of means over seeds: the meaning of the intervals, and a warning below 5 seeds."""
    seeds = min((len(summary.seeds) for summary in summaries), default=_FEW_SEEDS)
    if seeds >= _FEW_SEEDS:
        return _SUMMARY_NOTE
    return (
        f"{_SUMMARY_NOTE} An interval over {seeds} seeds is wide and depends on the assumed distribution over seeds; "
        f"use {_FEW_SEEDS} seeds or more before you call a difference real."
    )


def table_markdown(shown: Table, note: str = IMAGES.note) -> str:
    """The table in GitHub Markdown, with the note below."""
    lines = ["| " + " | ".join(map(escape.markdown, shown.headers)) + " |", "|" + " --- |" * len(shown.headers)]
    lines += ["| " + " | ".join(map(escape.markdown, row)) + " |" for row in shown.rows]
    return "\n".join(lines) + f"\n\n{note}\n"


def table_latex(shown: Table) -> str:
    """The table as a LaTeX booktabs tabular."""
    body = [" & ".join(map(escape.latex, row)) for row in shown.rows]
    first_floor = shown.floor.index(True) if True in shown.floor else len(body)
    lines = [line + r" \\" for line in body]
    if 0 < first_floor < len(lines):
        lines.insert(first_floor, r"\midrule")
    head = " & ".join(map(escape.latex, shown.headers))
    columns = "ll" + "r" * (len(shown.headers) - 2)
    above = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head + r" \\", r"\midrule"]
    return "\n".join([*above, *lines, r"\bottomrule", r"\end{tabular}", ""])


def rich_table(shown: Table, right: Collection[str] | None = None) -> RichTable:
    """The table for a terminal; columns with headers in `right` (default: all but the first two) are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    result = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(shown.headers):
        is_number = number > 1 if right is None else header in right
        result.add_column(Text(escape.terminal(header)), justify="right" if is_number else "left", overflow="fold")
    for row, is_floor in zip(shown.rows, shown.floor, strict=True):
        cells = (Text(escape.terminal(cell)) for cell in row)  # no markup in a name
        result.add_row(*cells, style="dim" if is_floor else None)
    return result


def _record_metrics(rows: Sequence[Row]) -> list[str]:
    return _of_records(
        name for row in rows for floor in (row.recovered, *row.floors.values()) for name in floor.get("unaligned", {})
    )


def _of_records(names: Iterable[str]) -> list[str]:
    held = dict.fromkeys(names)
    undeclared = [name for name in held if name not in MEASURES and not name.startswith((OWN, "matched_"))]
    return [name for name in OF_RECORDS if name in held and name not in _PICTURED] + undeclared


def rounds_of(queries: int) -> str:
    """The number of rounds in which an attack sent queries, as text."""
    return f"{queries:,} round{'s' * (queries != 1)} of queries"


def note_of(rows: Sequence[Row]) -> str:
    """The note below `table`, which explains its columns."""
    names = _record_metrics(rows) or [one.name for one in IMAGES.measures]
    return next((kind.note for kind in KINDS.values() if names[0] in kind.directions), _UNDECLARED_NOTE)


def _numbers(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    first, *others = _measures(row.recovered, names)
    if row.status != "done":
        first = row.status.replace("_", " ")
    sent = f"{row.costs.bytes_up / 1000:.1f}" if row.costs else UNKNOWN
    return (interval(row.accuracy), first, *others, claim_text(row), sent)


def _measures(metrics: dict[str, Metrics], names: Sequence[str]) -> tuple[str, ...]:
    own, matched = metrics.get("unaligned", {}), metrics.get("matched", {})
    identified = interval(own.get(IDENTIFIED.name), 2)
    if names:
        numbers = [interval(own.get(name), measure(name).digits) for name in names]
        return (*numbers, number(matched.get(likeness(list(matched))), 3), identified)
    shown, alike = [one for one in IMAGES.measures if one.name != IMAGES.likeness], own.get(IMAGES.likeness)
    return (
        *(number(own.get(one.name), one.digits) for one in shown),
        interval(alike),
        UNKNOWN if alike is None else f"{alike.worst:.2f}",
        number(matched.get(IMAGES.likeness), 3),
        identified,
    )


def _perceived(metrics: dict[str, Metrics], names: Iterable[str]) -> list[str]:
    return [number(metrics.get("unaligned", {}).get(name), 3) for name in names]


def _floor_name(name: str, defense: str, attack: str, protocol: str) -> str:
    return f"{attack} on {defense} before its first step" if name == START else floor_title(name, protocol)


def _kind(name: str) -> str:
    """The first column of a reference value: "start" (an untrained attack) or "floor" (a guess without the release)."""
    return "start" if name == START else "floor"


def claim_text(row: Row) -> str:
    """The proven or declared claim as the text of a table cell."""
    found = row.certificate
    if found is None:
        return UNKNOWN
    if found.kind == "permutation_count":
        exponent = floor(found.quantities["log10_permutations"] + 1e-8)  # 1e-8: the rounding of sums of logarithms
        return f"{found.standing}: 10^{exponent} orders, no DP"
    if found.kind == "differential_privacy":
        only = " (labels only)" if found.covers == "labels" else ""
        useless = f", {row.remark}" if row.remark else ""
        epsilon, delta = rounded_up(found.epsilon, 3), rounded_up(found.delta or 0.0, 1)
        return f"{found.standing}: ε={epsilon} at δ={delta}{only}{useless}"
    return "nothing"


def number(found: Interval | None, digits: int) -> str:
    """A value without its interval as text; a dash for None."""
    return UNKNOWN if found is None else f"{found.value:.{digits}f}"


def with_prefix(operations: int) -> str:
    """A number of operations as text, shortened by the prefix k (thousand) or M (million)."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if operations >= size:
            return f"{operations / size:.2f} {unit}"
    return str(operations)


def of_task(name: str, found: Interval) -> str:
    """A measure of the model's task as text, with its interval unless this is the measure's whole range."""
    low, high = measure(f"task_{name}").within
    idle = round(found.low, 3) <= low and round(found.high, 3) >= high
    return number(found, 3) if idle else interval(found)


def interval(found: Interval | None, digits: int = 3) -> str:
    """A value with its interval as text, such as "0.500 [0.400, 0.600]"; a dash for None."""
    if found is None:
        return UNKNOWN
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
