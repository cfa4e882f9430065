"""What became of every number that a paper prints: measured, configured, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from privkit.errors import UsageError
from privkit.files.toml_text import parse_toml
from privkit.papers import paper
from privkit.papers.orderings import judge, measured, read_rows
from privkit.papers.values import PrintedValue, printed_values

State = Literal["measured", "configured", "reason"]
"""A committed result with a verdict; a configuration for `privkit audit`; a sentence why neither can be had."""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What covers some printed numbers of a paper, or one of its figures; read from `coverage.toml` in its folder.

    Attributes:
        table: table, figure or section; one without printed numbers is a figure that is only drawn.
        rows: pattern of its rows, with * for any text.
        columns: pattern of its columns.
        claims: patterns of claims of `Paper.comparisons`, each of which must have a verdict.
        methods: methods of the paper, each of which must be in an ordering that was run.
        experiment: configuration in the paper's folder `experiments`, without its ending.
        settings: settings that replace those of the configuration, such as the model.
        reason: why there is no better coverage, in a sentence.
    """

    table: str
    rows: str = "*"
    columns: str = "*"
    claims: Sequence[str] = ()
    methods: Sequence[str] = ()
    experiment: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def matches(self, value: PrintedValue) -> bool:
        """Whether the entry covers a printed number."""
        return (
            value.table == self.table and fnmatchcase(value.row, self.rows) and fnmatchcase(value.column, self.columns)
        )


@dataclass(frozen=True, kw_only=True)
class Covered:
    """An entry and its state.

    Attributes:
        entry: the entry.
        state: the best state that it can show.
        by: the claims, methods, configuration or reason behind it.
        values: printed numbers that are its own: no better entry covers them.
    """

    entry: Entry
    state: State
    by: str
    values: tuple[PrintedValue, ...]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """All entries of a paper, in their order."""

    paper: str
    entries: tuple[Entry, ...]

    @cached_property
    def verdicts(self) -> frozenset[str]:
        """Claims with a verdict."""
        return frozenset(one.claim for one in paper(self.paper).comparisons())

    @cached_property
    def run(self) -> frozenset[str]:
        """Methods that are in an ordering that was run."""
        judged = judge(self.paper, measured(self.paper, read_rows()))
        return frozenset(
            name for one in judged if one.verdict != "not run" for name in (one.ordering.better, one.ordering.worse)
        )

    def state(self, entry: Entry) -> State | None:
        """The best state that an entry can show; None if it shows nothing."""
        found = [any(fnmatchcase(claim, pattern) for claim in self.verdicts) for pattern in entry.claims]
        found += [name in self.run for name in entry.methods]
        if found and all(found):
            return "measured"
        return "configured" if entry.experiment else "reason" if entry.reason else None

    def covered(self) -> Iterator[Covered]:
        """Every entry that shows something. A number with several entries counts for the best, then for the first."""
        states = [(entry, state) for entry in self.entries if (state := self.state(entry)) is not None]
        ranked = sorted(states, key=lambda pair: STATES.index(pair[1]))
        owner = {
            value: next((entry for entry, _ in ranked if entry.matches(value)), None)
            for value in printed_values(self.paper)
        }
        for entry, state in states:
            values = tuple(value for value, own in owner.items() if own is entry)
            figure = not any(value.table == entry.table for value in owner)
            if values or figure:
                yield Covered(entry=entry, state=state, by=_by(entry, state), values=values)

    def missing(self) -> tuple[PrintedValue, ...]:
        """Printed numbers that no entry covers."""
        shown = {value for one in self.covered() for value in one.values}
        return tuple(value for value in printed_values(self.paper) if value not in shown)


@cache
def coverage(name: str) -> Coverage:
    """What became of every number that a paper prints.

    Raises:
        UsageError: if there is no such paper.

    >>> coverage("cutmixsl").missing()
    ()
    """
    text = (paper(name).folder / "coverage.toml").read_text(encoding="utf-8")
    return Coverage(paper=name, entries=tuple(Entry(**entry) for entry in parse_toml(text)["entry"]))


def configuration(name: str, entry: Entry) -> Path:
    """The file of an entry's experiment; a `UsageError` if the paper has none of this name."""
    known = {path.stem: path for path in paper(name).experiments}
    if entry.experiment not in known:
        raise UsageError(f"{name} has no experiment {entry.experiment!r}; it has {', '.join(known)}")
    return known[entry.experiment]


def _by(entry: Entry, state: State) -> str:
    if state == "measured":
        return "; ".join((*entry.claims, *entry.methods))
    flags = "".join(f" --{key} {value}" for key, value in entry.settings.items())
    return f"{entry.experiment}.toml{flags}" if state == "configured" else entry.reason
