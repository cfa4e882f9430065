"""Tables of the rows: for a terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privkit.reports import escape
from privkit.reports.columns import OWN, START
from privkit.reports.origins import origins
from privkit.reports.schema import Metrics, Row, Summary
from privkit.shared.interval import Interval

if TYPE_CHECKING:
    from rich.table import Table as RichTable

FLOOR_NAMES = {
    "mid_grey": "mid-grey",
    "mean_image": "mean image",
    "most_frequent_token": "most frequent token",
    "most_frequent_by_place": "most frequent token of each place",
    "column_mean": "mean or most frequent of each column",
}
UNKNOWN = "–"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Text cells under headers; `floor` marks the rows that are floors or starts, and not results."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    floor: tuple[bool, ...]

    def lines(self, *, floors: bool) -> list[tuple[str, ...]]:
        """The results, or the floors and starts."""
        return [row for row, floor in zip(self.rows, self.floor, strict=True) if floor == floors]

    def __str__(self) -> str:
        """Markdown."""
        return markdown(self, "").strip()

    def _repr_html_(self) -> str:
        """For a notebook."""
        from privkit.reports.html import html_table

        return html_table(self)


HEADERS = (
    "defense",
    "attack",
    "seed",
    "accuracy ↑",
    "MSE ↑",
    "PSNR ↓",
    "SSIM ↓",
    "worst",
    "matched",
    "claim",
    "kB up",
)
NOTE = (
    "Arrows point to what a defender wishes. Images in [0, 1], PSNR in dB. Brackets are 95 % intervals over images. "
    "Worst is the SSIM of the image that was recovered best; matched is the SSIM after guesses are assigned to images "
    "inside each message by the truth, an upper bound. A claim is proven if privkit ran the mechanism itself, and "
    "declared if somebody else says what was run. kB up: smashed data an image and round. A floor is a guess made "
    "without the release; a start is the attack before its first step, and it may know the client's segment."
)


RECORD_METRICS = {
    "token_accuracy": "token accuracy ↓",
    "rouge_l": "ROUGE-L ↓",
    "exact": "exact ↓",
    "cells": "cells ↓",
    "dense_error": "dense error ↑",
    "dense_mse": "dense MSE ↑",
    "categories": "categories ↓",
}
"""Metrics of token sequences and table rows, which stand in the place of those of images."""
RECORD_NOTE = (
    "Arrows point to what a defender wishes. Exact: share of sequences recovered whole. Cells: share of cells "
    "recovered, dense ones to a twentieth of their column's range. Dense error: mean absolute error as a share of that "
    "range. kB up: smashed data a record and round. A floor is a guess made without the release."
)


PERCEIVED = {"f_sim": "F-SIM ↓", "identified": "ID ↓", "lpips": "LPIPS ↑", "recognized": "recognized ↓"}
"""Metrics of feature networks, which have columns where a run has them."""


def table(rows: Sequence[Row]) -> Table:
    """One line a row, and the floors and starts of each seed below it; rows of scores have a table of their own.

    Where rows are not made alike (another device, another version), a last column says in what they differ.
    """
    held = {name: metric for row in rows for name, metric in row.recovered.get("unaligned", {}).items()}
    own = {name: f"{name} {'↓' if held[name].higher_is_closer else '↑'}" for name in held if name.startswith(OWN)}
    perceived = {name: header for name, header in PERCEIVED.items() if name in held} | own
    looks = list(perceived)
    made = origins(rows)
    names = record_metrics(rows)
    lines: list[tuple[str, ...]] = []
    floor: list[bool] = []
    for seed in dict.fromkeys(row.seed for row in rows):
        group = [row for row in rows if row.seed == seed and not (row.answers and not row.recovered)]
        lines += [
            (
                *(row.defense, row.attack, str(seed), *_numbers(row, names), *_perceived(row.recovered, looks)),
                *([made[row.cell] or UNKNOWN] if made else []),
            )
            for row in group
        ]
        floors = {
            floor_name(key, row.defense, row.attack): (key, metrics)
            for row in group
            for key, metrics in row.floors.items()
        }
        lines += [
            (
                *(_kind(key), name, str(seed), UNKNOWN),
                *_measures(metrics, names),
                *(UNKNOWN, UNKNOWN),
                *_perceived(metrics, looks),
                *([UNKNOWN] if made else []),
            )
            for name, (key, metrics) in floors.items()
        ]
        floor += [False] * len(group) + [True] * len(floors)
    first = (*HEADERS[:4], *(RECORD_METRICS[name] for name in names), *HEADERS[-2:]) if names else HEADERS
    headers = (*first, *perceived.values(), *(["made of"] if made else []))
    return Table(headers=headers, rows=tuple(lines), floor=tuple(floor))


SUMMARY_NOTE = (
    "Means over seeds; brackets are 95 % intervals over seeds: Student's, on the logit scale of the quantity's range "
    "(on the log scale for PSNR)."
)
FEW_SEEDS = 5
"""Below this number of seeds a summary warns."""


def summary_table(summaries: Sequence[Summary]) -> Table:
    """One line a defense and attack, over the seeds."""
    held = {name for summary in summaries for name in summary.values}
    of_records = {name: (header, 3) for name, header in RECORD_METRICS.items() if name in held}
    columns = {"accuracy": ("accuracy ↑", 3), **(of_records or SUMMARY_METRICS), "auc": ("AUC", 3)}
    lines = [
        (
            _kind(summary.floor) if summary.floor else summary.defense,
            floor_name(summary.floor, summary.defense, summary.attack) if summary.floor else summary.attack,
            str(len(summary.seeds)),
            *(interval(summary.values.get(name), digits) for name, (_, digits) in columns.items()),
        )
        for summary in summaries
    ]
    headers = ("defense", "attack", "seeds", *(header for header, _ in columns.values()))
    return Table(headers=headers, rows=tuple(lines), floor=tuple(bool(summary.floor) for summary in summaries))


def summary_note(summaries: Sequence[Summary]) -> str:
    """What the intervals are, and a warning where they are over few seeds.

    >>> row = Summary(defense="none", attack="black_box", seeds=(0, 1), values={})
    >>> "An interval over 2 seeds is wide" in summary_note([row])
    True
    """
    seeds = min((len(summary.seeds) for summary in summaries), default=FEW_SEEDS)
    if seeds >= FEW_SEEDS:
        return SUMMARY_NOTE
    return (
        f"{SUMMARY_NOTE} An interval over {seeds} seeds is wide and rests on the assumed shape of their law; use "
        f"{FEW_SEEDS} seeds or more before you call a difference real."
    )


SUMMARY_METRICS = {"mse": ("MSE ↑", 4), "psnr": ("PSNR ↓", 1), "ssim": ("SSIM ↓", 3), "matched_ssim": ("matched", 3)}
"""Metric of images -> header and digits; `RECORD_METRICS` stand in their place for other records."""


def markdown(shown: Table, note: str = NOTE) -> str:
    """GitHub Markdown."""
    lines = ["| " + " | ".join(map(escape.markdown, shown.headers)) + " |", "|" + " --- |" * len(shown.headers)]
    lines += ["| " + " | ".join(map(escape.markdown, row)) + " |" for row in shown.rows]
    return "\n".join(lines) + f"\n\n{note}\n"


def latex(shown: Table) -> str:
    """A booktabs tabular."""
    body = [" & ".join(map(escape.latex, row)) for row in shown.rows]
    first_floor = shown.floor.index(True) if True in shown.floor else len(body)
    lines = [line + r" \\" for line in body]
    if 0 < first_floor < len(lines):
        lines.insert(first_floor, r"\midrule")
    head = " & ".join(map(escape.latex, shown.headers))
    columns = "ll" + "r" * (len(shown.headers) - 2)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def rich_table(shown: Table) -> RichTable:
    """For a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    result = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(shown.headers):
        result.add_column(Text(escape.terminal(header)), justify="left" if number < 2 else "right", overflow="fold")
    for row, is_floor in zip(shown.rows, shown.floor, strict=True):
        cells = (Text(escape.terminal(cell)) for cell in row)  # no markup in a name
        result.add_row(*cells, style="dim" if is_floor else None)
    return result


def record_metrics(rows: Sequence[Row]) -> list[str]:
    """Metrics of the rows' records if these are no images; otherwise nothing."""
    held = {
        name for row in rows for floor in (row.recovered, *row.floors.values()) for name in floor.get("unaligned", {})
    }
    return [name for name in RECORD_METRICS if name in held]


def note_of(rows: Sequence[Row]) -> str:
    """What the columns of `table` are."""
    return RECORD_NOTE if record_metrics(rows) else NOTE


def _numbers(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    """The numeric cells of a row; why there are no metrics of guesses stands in the first of them."""
    first, *others = _measures(row.recovered, names)
    if row.status != "done":
        first = row.status.replace("_", " ")
    sent = f"{row.costs.bytes_up / 1000:.1f}" if row.costs else UNKNOWN
    return (interval(row.accuracy), first, *others, claim(row), sent)


def _measures(metrics: dict[str, Metrics], names: Sequence[str]) -> tuple[str, ...]:
    """The metrics of these names with their intervals, or of images: MSE, PSNR, SSIM, its worst and its matched one."""
    if names:
        return tuple(interval(metrics.get("unaligned", {}).get(name)) for name in names)
    own, matched = metrics.get("unaligned", {}), metrics.get("matched", {})
    ssim = own.get("ssim")
    return (
        number(own.get("mse"), 4),
        number(own.get("psnr"), 1),
        interval(ssim),
        UNKNOWN if ssim is None else f"{ssim.worst:.2f}",
        number(matched.get("ssim"), 3),
    )


def _perceived(metrics: dict[str, Metrics], names: Sequence[str]) -> list[str]:
    """What feature networks see, unaligned."""
    return [number(metrics.get("unaligned", {}).get(name), 3) for name in names]


def floor_name(name: str, defense: str, attack: str) -> str:
    """How a floor is shown, and the start of an attack, which may know the segment and so be no floor.

    >>> floor_name(START, "none", "white_box")
    'white_box on none before its first step'
    """
    return f"{attack} on {defense} before its first step" if name == START else FLOOR_NAMES.get(name, name)


def _kind(name: str) -> str:
    """What the first column says of a line that is no result: a guess without the release, or an attack's start."""
    return "start" if name == START else "floor"


def claim(row: Row) -> str:
    """What is proven or declared, in a table cell."""
    found = row.certificate
    if found is None:
        return UNKNOWN
    if found.kind == "permutation_count":
        return f"{found.standing}: 10^{found.quantities['log10_permutations']:.0f} orders, no DP"
    if found.kind == "differential_privacy":
        only = " (labels only)" if found.covers == "labels" else ""
        return f"{found.standing}: ε={found.epsilon:.3g} at δ={found.delta:.0e}{only}"
    return "nothing"


def number(found: Interval | None, digits: int) -> str:
    """A value without its interval."""
    return UNKNOWN if found is None else f"{found.value:.{digits}f}"


def counted(operations: int) -> str:
    """A number of operations in a reader's unit.

    >>> counted(950), counted(12_345), counted(3_400_000)
    ('950', '12.35 k', '3.40 M')
    """
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if operations >= size:
            return f"{operations / size:.2f} {unit}"
    return str(operations)


def interval(found: Interval | None, digits: int = 3) -> str:
    """A value with its interval."""
    if found is None:
        return UNKNOWN
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
