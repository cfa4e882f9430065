"""Judges a table of a paper on new measurements; results at tiny scale ship with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from privkit.papers import paper
from privkit.papers.contract import ComparedClaim
from privkit.papers.coverage import coverage
from privkit.papers.orderings import Judged, Measured, OrderingVerdict, measured, ordering_verdicts, orderings
from privkit.papers.values import printed, printed_values

Scale = Literal["tiny", "small", "medium", "paper"]
"""Scale of an experiment. "tiny": digits that ship with privkit, seconds per result. "small": the paper's data (in some
papers, digits) at reduced size. "medium": also the paper's network. "paper": as in the paper."""
SCALES: tuple[Scale, ...] = get_args(Scale)


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """A table of a paper, with new measurements and verdicts."""

    paper: str  # the paper's name
    table: str  # the table's name
    scale: Scale  # scale of the measurement
    claims: tuple[ComparedClaim, ...]  # the table's claims by formula and printed numbers, and its effects
    methods: tuple[Measured, ...]  # the measured quantities of each method
    # (method, quantity) -> printed number; accuracies as shares of 1
    published: Mapping[tuple[str, str], float]
    orderings: tuple[Judged, ...]  # the verdict on each printed ordering

    def verdict(self, method: Measured) -> str:
        """Compare a method's printed number with its measured interval: "agrees" if the number lies inside, otherwise
        "differs". The verdict is "other scale" below the paper's scale, and empty without a printed number or an
        interval."""
        number, interval = self.published.get((method.method, method.quantity)), method.interval
        if number is None or interval is None:
            return ""
        if self.scale != "paper":
            return "other scale"
        return "agrees" if interval.low <= number <= interval.high else "differs"


def judged_rows(name: str, table: str, scale: Scale, rows: Sequence[Mapping[str, Any]]) -> Reproduced:
    """Judge a table of a paper on the result rows that `measure_cell` returned at this scale."""
    found = measured(name, rows)
    return Reproduced(
        paper=name,
        table=table,
        scale=scale,
        claims=tuple(comparisons(name, table, rows)),
        methods=tuple(one for one in found if one.values),
        published=_published(name, table),
        # below the paper's scale, a verdict says nothing of the printed difference
        orderings=tuple(
            replace(one, verdict="ordering agrees") if scale != "paper" and one.verdict == "agrees" else one
            for one in ordering_verdicts(name, found)
            if one.ordering.source == table
        ),
    )


@cache
def committed() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The result rows at tiny scale that ship with the package, by (paper, table), with seconds, machine and date."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in (files("privkit.papers") / "tiny.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault((row.pop("paper"), row.pop("table")), []).append(row)
    return found


def tiny_verdicts(name: str) -> dict[tuple[str, str], OrderingVerdict]:
    """The verdicts on a paper's orderings at tiny scale, by (table, claim), from result rows that ship with privkit."""
    of_tables = [
        judged_rows(name, table, "tiny", rows).orderings for (own, table), rows in committed().items() if own == name
    ]
    return {(one.ordering.source, one.ordering.claim): one.verdict for judged in of_tables for one in judged}


def tables(name: str) -> list[str]:
    """Names of the tables and figures of a paper, in order."""
    named = [value.table for value in printed_values(paper(name).name)]
    named += [one.table for one in coverage(name).entries]
    return list(dict.fromkeys(named + [one.source for one in orderings(name)]))


def claim_patterns(name: str, table: str) -> list[str]:
    """Patterns of the claims that a table supports, with * for any text."""
    entries = (entry for entry in coverage(name).entries if entry.table == table)
    return [f"{table},*", *(pattern for entry in entries for pattern in entry.claims)]


def comparisons(name: str, table: str, rows: Sequence[Mapping[str, Any]]) -> list[ComparedClaim]:
    """The compared claims that a table supports. Claims on differences between runs are judged on `rows` alone, and
    left out if these runs are not among `rows`."""
    effects, patterns = paper(name).effects, claim_patterns(name, table)
    anew = list(effects.comparisons(rows)) if effects is not None and rows else []
    shown = [*(one for one in paper(name).comparisons() if one.basis != "reduced"), *anew]
    return [one for one in shown if any(fnmatchcase(one.claim, pattern) for pattern in patterns)]


def _published(name: str, table: str) -> dict[tuple[str, str], float]:
    numbers = {}
    for one in orderings(name):
        if one.source == table and one.numbers is not None:
            for method, (row, column) in zip((one.better, one.worse), one.numbers, strict=True):
                scale = 100 if one.quantity == "accuracy" else 1
                numbers[method, one.quantity] = printed(name, table, row, column) / scale
    return numbers
