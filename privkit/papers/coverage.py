"""Coverage of a paper: our evidence for every printed number, or the reason why there is none."""

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
from privkit.papers.contract import Basis
from privkit.papers.orderings import on_other_data, on_record
from privkit.papers.values import PrintedValue, printed_values

State = Literal["run", "reduced", "formula", "print", "proxy", "configured", "reason"]
"""Evidence for a printed number, best first: our run of this quantity in the paper's setting; one at reduced size; the
paper's formula, recomputed; another number that the paper prints; our run of this quantity on other data; a
configuration for `privkit audit` that was not run; a sentence why there is nothing."""
STATES: tuple[State, ...] = get_args(State)
_QUANTITIES = {"% accuracy": "accuracy", "MSE, images": "mse", "MSE, standardised": "mse"}
"""How the unit of a printed number begins -> the quantity of `orderings.QUANTITIES` that it is."""


@dataclass(frozen=True, kw_only=True)
class CoverageEntry:
    """The evidence for some printed numbers or a figure of a paper; read from `coverage.toml` in the paper's folder."""

    table: str  # table, figure or section; one without printed numbers is a figure that is only drawn
    rows: str = "*"  # pattern of its rows, with * for any text
    columns: str = "*"  # pattern of its columns
    # patterns of claims of `Paper.comparisons`, each of which must have a verdict; its basis is the state
    claims: Sequence[str] = ()
    # methods of the paper, each of which must be in an ordering of the printed quantity that was run
    methods: Sequence[str] = ()
    experiment: str = ""  # configuration in the paper's folder `experiments`, without its ending
    # settings that replace those of the configuration, such as the model
    settings: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""  # why there is no better coverage, in a sentence
    page: str = ""  # page of docs/results with own runs of these quantities in the paper's setting

    def matches(self, value: PrintedValue) -> bool:
        """Whether the entry applies to a printed number."""
        return (
            value.table == self.table and fnmatchcase(value.row, self.rows) and fnmatchcase(value.column, self.columns)
        )


@dataclass(frozen=True, kw_only=True)
class Covered:
    """An entry, one state of its evidence (such as "run" or "formula"), and the printed numbers in this state."""

    entry: CoverageEntry  # the entry
    state: State  # the best state that it can show
    by: str  # the claims, methods, configuration or reason behind it
    values: tuple[PrintedValue, ...]  # the printed numbers that no better entry covers


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """All coverage entries of a paper, in order."""

    paper: str
    entries: tuple[CoverageEntry, ...]

    @cached_property
    def verdicts(self) -> Mapping[str, Basis]:
        """For each claim with a verdict: the source of our number."""
        return {one.claim: one.basis for one in paper(self.paper).comparisons()}

    @cached_property
    def run(self) -> Mapping[str, frozenset[str]]:
        """For each method that was run: the quantities that its orderings compare."""
        found: dict[str, set[str]] = {}
        for one in on_record(self.paper):
            if one.verdict != "not run":
                for name in (one.ordering.better, one.ordering.worse):
                    found.setdefault(name, set()).add(one.ordering.quantity)
        return {name: frozenset(quantities) for name, quantities in found.items()}

    def state(self, entry: CoverageEntry, value: PrintedValue | None = None) -> State | None:
        """The best kind of evidence that an entry has for one printed number; None if there is none.

        For a figure without numbers, `value` is None, and any measured quantity of the figure's methods counts.
        """
        found: list[State | None] = []
        for pattern in entry.claims:
            bases = [basis for claim, basis in self.verdicts.items() if fnmatchcase(claim, pattern)]
            found.append(max(bases, key=STATES.index) if bases else None)
        for name in entry.methods:
            quantities = self.run.get(name, frozenset())
            ran = quantities and (value is None or quantities & _quantities(value.unit))
            found.append(("proxy" if on_other_data(name) else "reduced") if ran else None)
        shown: list[State] = [max(filter(None, found), key=STATES.index)] if found and all(found) else []
        if entry.page:
            shown.append("run")
        if entry.experiment:
            shown.append("configured")
        if entry.reason:
            shown.append("reason")
        return min(shown, key=STATES.index, default=None)

    def covered(self) -> Iterator[Covered]:
        """All entries that apply, once for each kind of evidence, with the numbers they cover. A number is listed only
        in the entry with its best evidence, or the first such entry.
        """
        own: dict[tuple[int, State], list[PrintedValue]] = {}
        for value in printed_values(self.paper):
            matching = [place for place, entry in enumerate(self.entries) if entry.matches(value)]
            states = [(state, place) for place in matching if (state := self.state(self.entries[place], value))]
            if states:
                state, place = min(states, key=lambda one: (STATES.index(one[0]), one[1]))
                own.setdefault((place, state), []).append(value)
        tables = {value.table for value in printed_values(self.paper)}
        for place, entry in enumerate(self.entries):
            if entry.table not in tables and (state := self.state(entry)) is not None:
                own[place, state] = []
        for place, state in sorted(own, key=lambda key: (key[0], STATES.index(key[1]))):
            entry = self.entries[place]
            yield Covered(entry=entry, state=state, by=_by(entry, state), values=tuple(own[place, state]))

    def missing(self) -> tuple[PrintedValue, ...]:
        """Printed numbers for which no entry gives evidence or a reason."""
        shown = {value for one in self.covered() for value in one.values}
        return tuple(value for value in printed_values(self.paper) if value not in shown)


@cache
def coverage(name: str) -> Coverage:
    """The evidence that privkit has for every number that a paper prints, or the reason why there is none."""
    text = (paper(name).folder / "coverage.toml").read_text(encoding="utf-8")
    return Coverage(paper=name, entries=tuple(CoverageEntry(**entry) for entry in parse_toml(text)["entry"]))


def configuration(name: str, entry: CoverageEntry) -> Path:
    """The configuration file of an entry's experiment; raises `UsageError` if the paper has no such experiment."""
    known = {path.stem: path for path in paper(name).experiments}
    if entry.experiment not in known:
        raise UsageError(f"{name} has no experiment {entry.experiment!r}; it has {', '.join(known)}")
    return known[entry.experiment]


def _quantities(printed: str) -> set[str]:
    return {quantity for unit, quantity in _QUANTITIES.items() if printed.startswith(unit)}


def _by(entry: CoverageEntry, state: State) -> str:
    if state == "reason":
        return entry.reason
    if state == "run":
        return entry.page
    if state != "configured":
        return "; ".join((*entry.claims, *entry.methods))
    flags = "".join(f" --{key} {value}" for key, value in entry.settings.items())
    return f"{entry.experiment}.toml{flags}"
