"""Finds our evidence for every number that a paper prints, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from privkit.errors import UsageError
from privkit.papers import paper
from privkit.papers.contract import Basis
from privkit.papers.orderings import on_other_data, on_record
from privkit.papers.values import PrintedValue, paper_toml, printed_values

State = Literal["run", "reduced", "formula", "print", "proxy", "configured", "reason"]
"""Evidence for a printed number, best first: our run of this quantity in the paper's setting; our run at reduced size
or with another training; the paper's formula, recomputed; another number that the paper prints; our run of this
quantity on other data; a configuration for `privkit audit` that was not run; a sentence why there is no evidence."""
STATES: tuple[State, ...] = get_args(State)
_QUANTITIES = {"% accuracy": "accuracy", "MSE, images": "mse", "MSE, standardised": "mse"}
"""First words of a printed number's unit -> its name in `orderings.QUANTITIES`."""


@dataclass(frozen=True, kw_only=True)
class CoverageEntry:
    """The evidence for some printed numbers or a figure of a paper; read from `coverage.toml` in the paper's folder."""

    table: str  # table, figure or section of the paper
    rows: str = "*"  # pattern of the names of rows, with * for any text
    columns: str = "*"  # pattern of the names of columns
    # patterns of claims in `Paper.comparisons`; each must match a claim. The weakest `basis` of the matching claims is
    # the state of the evidence
    claims: Sequence[str] = ()
    # methods of the paper; for each, we must have run an ordering that compares the printed quantity
    methods: Sequence[str] = ()
    experiment: str = ""  # name of a configuration in the paper's folder `experiments`, without ".toml"
    # settings that replace the settings of the configuration, such as the model
    settings: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""  # a sentence why there is no better evidence
    page: str = ""  # page of docs/results with our runs of these quantities
    unlike: str = ""  # how the setting of the page's runs differs from the paper's; empty if it is the paper's

    def matches(self, value: PrintedValue) -> bool:
        """Whether the entry applies to a printed number."""
        return (
            value.table == self.table and fnmatchcase(value.row, self.rows) and fnmatchcase(value.column, self.columns)
        )


@dataclass(frozen=True, kw_only=True)
class Covered:
    """An entry, one state of its evidence (such as "run" or "formula"), and the printed numbers in this state."""

    entry: CoverageEntry
    state: State  # the best state of the entry's evidence for these numbers
    by: str  # the claims, methods, page, configuration or reason that the evidence consists of
    values: tuple[PrintedValue, ...]  # the printed numbers for which no other entry has better evidence


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Our evidence for all numbers that a paper prints, as entries in the order of the paper's `coverage.toml`."""

    paper: str
    entries: tuple[CoverageEntry, ...]

    @cached_property
    def verdicts(self) -> Mapping[str, Basis]:
        """Claim -> the source of our number, for each claim that we compare."""
        return {one.claim: one.basis for one in paper(self.paper).comparisons()}

    @cached_property
    def run(self) -> Mapping[str, frozenset[str]]:
        """Method that we have run -> the quantities that orderings ("A is more accurate than B") compare for it."""
        found: dict[str, set[str]] = {}
        for one in on_record(self.paper):
            if one.verdict != "not run":
                for name in (one.ordering.better, one.ordering.worse):
                    found.setdefault(name, set()).add(one.ordering.quantity)
        return {name: frozenset(quantities) for name, quantities in found.items()}

    def state(self, entry: CoverageEntry, value: PrintedValue | None = None) -> State | None:
        """The best kind of evidence that an entry has for one printed number; None if there is none. For a figure
        without numbers, `value` is None, and any measured quantity of the figure's methods counts."""
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
            shown.append("reduced" if entry.unlike else "run")
        if entry.experiment:
            shown.append("configured")
        if entry.reason:
            shown.append("reason")
        return min(shown, key=STATES.index, default=None)

    def covered(self) -> Iterator[Covered]:
        """Yield all entries that apply, once for each kind of evidence, with the printed numbers they cover. A number
        is listed only in the entry with its best evidence, or in the first of several such entries."""
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
        """The printed numbers for which no entry gives evidence or a reason."""
        shown = {value for one in self.covered() for value in one.values}
        return tuple(value for value in printed_values(self.paper) if value not in shown)


@cache
def coverage(name: str) -> Coverage:
    """Load the evidence that privkit has for every number that a paper prints, or the reason why there is none."""
    entries = paper_toml("coverage.toml", paper(name).name)["entry"]
    return Coverage(paper=name, entries=tuple(CoverageEntry(**entry) for entry in entries))


def configuration(name: str, entry: CoverageEntry) -> Path:
    """The configuration file of the experiment that a coverage entry names. Raises `UsageError` if there is none."""
    known = {path.stem: path for path in paper(name).experiments}
    if entry.experiment not in known:
        raise UsageError(f"{name} has no experiment {entry.experiment!r}; it has {', '.join(known)}")
    return known[entry.experiment]


def _quantities(printed: str) -> set[str]:
    return {quantity for unit, quantity in _QUANTITIES.items() if printed.startswith(unit)}


def _by(entry: CoverageEntry, state: State) -> str:
    if state == "reason":
        return entry.reason
    if entry.page and state in ("run", "reduced"):
        return f"{entry.page}: {entry.unlike}" if entry.unlike else entry.page
    if state != "configured":
        return "; ".join((*entry.claims, *entry.methods))
    flags = "".join(f" --{key} {value}" for key, value in entry.settings.items())
    return f"{entry.experiment}.toml{flags}"
