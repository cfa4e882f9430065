"""Measure a table of a paper anew: its methods are audited, and stand beside the printed numbers.

Which audits a table needs follows from the paper's orderings: their methods, found in its experiments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from privkit.audit.run import run_audit
from privkit.config import AuditConfig
from privkit.errors import UsageError, unknown
from privkit.papers import PAPERS, paper
from privkit.papers.contract import Comparison
from privkit.papers.coverage import coverage
from privkit.papers.orderings import (
    QUANTITIES,
    Judged,
    Measured,
    judge,
    measured,
    orderings,
    wanted,
    without_protocol,
)
from privkit.papers.values import printed, printed_values
from privkit.run.progress import Progress, Silent
from privkit.settings import read_toml, resolve

Scale = Literal["tiny", "small", "paper"]
"""On embedded digits in seconds a cell; at the reduced size of the paper's own data; or as in the paper."""
SCALES: tuple[Scale, ...] = get_args(Scale)
_TINY: Mapping[str, Any] = {
    "dataset": "digits",
    "auxiliary": "disjoint",
    "victims": "private",
    "budget": "smoke:private=200,auxiliary=400,test=200,victims=100,epochs=3",
    "seed": [0, 1, 2],
    "threads": 1,
}
"""What replaces settings of an experiment at tiny scale."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """One cell that a published ordering needs.

    Attributes:
        experiment: its configuration, such as cutmixsl/table_2_small.
        config: an audit of this cell alone.
        row: what the result says of itself: the method's own data and model, whatever the scale.
        quantities: what is recorded.
    """

    experiment: str
    config: AuditConfig
    row: dict[str, Any]
    quantities: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """A table of a paper, measured anew.

    Attributes:
        paper: its name.
        table: the table.
        scale: at which it was measured.
        claims: what is computed, without an audit.
        methods: what was measured of each method, with `published` beside it.
        published: (method, quantity) -> printed number, as a share where the paper prints per cent.
        orderings: the verdict on each printed ordering.
    """

    paper: str
    table: str
    scale: Scale
    claims: tuple[Comparison, ...]
    methods: tuple[Measured, ...]
    published: Mapping[tuple[str, str], float]
    orderings: tuple[Judged, ...]

    def verdict(self, method: Measured) -> str:
        """Whether the printed number lies in the measured interval; a smaller scale has other numbers by itself."""
        number, interval = self.published.get((method.method, method.quantity)), method.interval
        if number is None or interval is None:
            return ""
        if self.scale != "paper":
            return "other scale"
        return "agrees" if interval.low <= number <= interval.high else "differs"


def work(experiment: str, path: Path, changes: Mapping[str, Any], judged: str = "") -> Iterator[Work]:
    """The cells of an experiment that some ordering of a paper needs, method by method.

    Args:
        experiment: its name, such as cutmixsl/table_2_small.
        path: its file.
        changes: settings in place of its own; the rows keep its data and model all the same.
        judged: the paper whose orderings count; that of the experiment unless named.
    """
    judged = judged or experiment.partition("/")[0]
    settings = read_toml(path)
    parts = zip(resolve({**settings, **_root(changes)}).parts, resolve({**settings, **changes}).parts, strict=True)
    for named, part in parts:
        for defense in part.defenses:
            for attack in part.attacks:
                for seed in part.seeds:
                    row = {
                        "defense": without_protocol(defense.label),
                        "attack": attack.label,
                        "protocol": part.protocol.label,
                        "dataset": named.dataset.label,
                        "model": named.model.label,
                        "partition": part.partition.label,
                        "auxiliary": named.auxiliary,
                        "seed": seed,
                    }
                    if quantities := wanted(judged, row):
                        alone = replace(part, defenses=(defense,), attacks=(attack,), seeds=(seed,), also=())
                        yield Work(experiment=experiment, config=alone, row=row, quantities=quantities)


def measure(one: Work, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Run a cell, and its row with the quantities.

    Raises:
        UsageError: if the cell has no result.
    """
    run = run_audit(one.config, out=out / one.config.fingerprint, progress=progress)
    (row,) = run.rows
    trained = row.status == "not_applicable" and set(one.quantities) == {"accuracy"}  # which needs no attack
    if row.status != "done" and not trained:
        raise UsageError(f"{row.cell} is {row.status}: {row.reason}")
    return {**one.row, **{name: round(QUANTITIES[name](row) or 0.0, 6) for name in one.quantities}}


def needed_cells(name: str, table: str, scale: Scale, data_root: str | None = None) -> list[Work]:
    """The cells behind a table: those of experiments whose method stands in one of its orderings.

    Below the paper's scale, reduced experiments of other papers count as well: several papers print the same methods.

    Raises:
        UsageError: if the paper has no such table, or no audit stands behind it.
    """
    _known(name, table)
    methods = {(own, one.quantity) for one in orderings(name) if one.source == table for own in (one.better, one.worse)}
    named = {entry.experiment for entry in coverage(name).entries if entry.table == table}
    chosen = {
        f"{one}/{path.stem}": path
        for one in (name, *(other for other in PAPERS if other != name))
        for path in paper(one).experiments
        if (one == name and path.stem in named if scale == "paper" else path.stem.endswith("_small"))
    }
    root: dict[str, Any] = {} if data_root is None else {"data_root": data_root}
    cells: dict[tuple[Any, ...], Work] = {}
    for experiment, path in chosen.items():
        own = list(work(experiment, path, root, name))
        needed = [_methods(name, one) & methods for one in own]
        if scale == "tiny" and any(needed):
            own = list(work(experiment, path, root | _shrunk(read_toml(path)), name))
        for one, found in zip(own, needed, strict=True):
            if found:
                cells.setdefault(tuple(one.row.values()), one)
    return list(cells.values())


def reproduce(
    name: str,
    table: str,
    *,
    scale: Scale = "tiny",
    data_root: str | None = None,
    out: Path | str = "privkit-runs/reproduce",
    progress: Progress | None = None,
) -> Reproduced:
    """Measure a table of a paper, or go on with it.

    Args:
        name: of the paper.
        table: as `privkit papers NAME --coverage` lists it.
        scale: "tiny" on embedded digits, "small" at reduced size on the paper's data, or "paper".
        data_root: folder of the official datasets; not needed at tiny scale.
        out: where the runs are kept; finished cells are not run again.
        progress: told what happens.

    Raises:
        UsageError: if there is no such paper, table or scale, or nothing in the table can be measured; it says why.
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    progress = progress or Silent()
    cells = needed_cells(name, table, scale, data_root)
    patterns = [pattern for entry in coverage(name).entries if entry.table == table for pattern in entry.claims]
    claims = [one for one in paper(name).comparisons() if one.claim in _matching(patterns, one.claim)]
    if not cells and not claims:
        raise UsageError(_why_not(name, table, scale))
    rows = []
    for number, one in enumerate(cells, start=1):
        called = f"{one.row['defense']}, {one.row['protocol']}, seed {one.row['seed']}"
        progress.cell(number, len(cells), called)
        rows.append(measure(one, Path(out) / scale))
        progress.ended("done")
    mine = [one for one in orderings(name) if one.source == table]
    found = measured(name, rows)
    judged = [one for one in judge(name, found) if one.ordering in mine]
    return Reproduced(
        paper=name,
        table=table,
        scale=scale,
        claims=tuple(claims),
        methods=tuple(one for one in found if one.values),
        published=_published(name, table),
        orderings=tuple(judged),
    )


def _methods(name: str, one: Work) -> set[tuple[str, str]]:
    """The methods and quantities of the paper's orderings that a cell is of."""
    row = {**one.row, **dict.fromkeys(one.quantities, 0.0)}
    return {(each.method, each.quantity) for each in measured(name, [row]) if each.values}


def _root(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The data root alone, if there is one."""
    return {key: value for key, value in changes.items() if key == "data_root"}


def _shrunk(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in place of an experiment's own, for digits in seconds a cell."""
    model = str(settings.get("model", ""))
    cut = "embedding" if "cut=embedding" in model else "block1"
    small = {"model": f"vit_micro:cut={cut}"} if model.startswith(("vit", "t2t", "pit")) else {}
    data = {"dataset": settings["dataset"]} if settings.get("dataset") in ("digits", "tiny_digits") else {}
    return {**_TINY, **small, **data}


def _matching(patterns: Sequence[str], claim: str) -> set[str]:
    """The claim, if a pattern means it."""
    from fnmatch import fnmatchcase

    return {claim} if any(fnmatchcase(claim, pattern) for pattern in patterns) else set()


def _known(name: str, table: str) -> None:
    """Refuse a table that the paper does not have."""
    tables = {value.table for value in printed_values(paper(name).name)}
    tables |= {one.table for one in coverage(name).entries} | {one.source for one in orderings(name)}
    if table not in tables:
        raise unknown(f"table of {name}", table, tables)


def _published(name: str, table: str) -> dict[tuple[str, str], float]:
    """The printed number of each method, as a share where the paper prints per cent."""
    numbers = {}
    for one in orderings(name):
        if one.source == table and one.numbers is not None:
            for method, (row, column) in zip((one.better, one.worse), one.numbers, strict=True):
                scale = 100 if one.quantity == "accuracy" else 1
                numbers[method, one.quantity] = printed(name, table, row, column) / scale
    return numbers


def _why_not(name: str, table: str, scale: Scale) -> str:
    """Why nothing of a table is measured, and what to do."""
    entries = [entry for entry in coverage(name).entries if entry.table == table]
    files = dict.fromkeys(f"{entry.experiment}.toml" for entry in entries if entry.experiment)
    if files:
        return (
            f"no ordering of {name}, {table}, can be judged at scale {scale}; audit its experiment instead: "
            f"privkit audit --config FILE with {' or '.join(files)} (privkit papers {name} lists the files)"
        )
    reasons = " ".join(dict.fromkeys(entry.reason for entry in entries if entry.reason))
    return f"nothing of {name}, {table}, is measured by an audit: {reasons or 'it prints no number'}"
