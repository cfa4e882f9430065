"""Compute ε for the entries of a parameter table, in chunks, and count the refused entries for the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isinf
from typing import Any

from privkit.accountants import answer
from privkit.accountants.columns import DP_SGD, TOO_MANY
from privkit.accountants.table import TableEntry, without_effect
from privkit.accountants.terms import DP_SGD_TERMS
from privkit.accountants.terms import terms as in_terms
from privkit.accountants.wording import warnings
from privkit.papers.as_published import TABLE_1_ORDER, PaperWithFormula, as_published
from privkit.reports.budgets import BudgetRow, plain_text
from privkit.shared.certificate import Certificate
from privkit.shared.limits import NO_USE, of_use

_NO_USE = f"it {NO_USE}: this ε and δ allow an attack a true positive rate of .99 at a false positive rate of .01"
_BY_MIXER = (
    "noise_site is empty, so the mixer adds the noise; in the defense dp_cutmixsl each client adds it, unless "
    "site=mixer: give noise_site = client for the defense's ε"
)
_PROVEN = ("epsilon", "lower", "method", "order", "at_grid_edge", "sound", "statement")  # fields of a certificate
_CHUNK = 2_000  # rows that are computed in one vectorised pass
_NAMED = 3  # rows that a message names; the others are counted
_SHOWN = 100  # rows that are printed; a longer table belongs into a file


def budgets(
    entries: Iterable[TableEntry], *, tight: bool, compare: bool, terms: bool = False
) -> Iterator[tuple[BudgetRow, Certificate | None]]:
    """Yield the result row of each table entry, in order, and the certificate, None if the entry is refused. `compare`
    adds the ε that the paper publishes. `terms` adds the guarantee in the terms of NIST SP 800-226."""
    iterator = iter(entries)
    while chunk := list(islice(iterator, _CHUNK)):
        answers = _computed([entry for entry in chunk if not entry.error], tight)
        for entry in chunk:
            row, certificate = _row(entry, entry.error or answers[entry.row], compare)
            if terms and certificate is not None and entry.mechanism is not None:
                said = in_terms(entry.mechanism, certificate, tight=tight)
                if any(word in entry.given for word in DP_SGD):
                    said |= DP_SGD_TERMS
                row = replace(row, terms=tuple(said.items()))
            yield row, certificate


def _computed(entries: list[TableEntry], tight: bool) -> dict[int, Certificate | str]:
    """Compute the certificates of all entries together, by row number. If this fails, compute them one by one; an entry
    that fails gets a sentence instead."""
    mechanisms = [entry.mechanism for entry in entries if entry.mechanism is not None]
    deltas = [entry.delta for entry in entries if entry.delta is not None]
    rows = [entry.row for entry in entries]
    try:
        return dict(zip(rows, answer.epsilons(mechanisms, deltas, tight=tight), strict=True))
    except (ValueError, ArithmeticError, MemoryError):
        answers: dict[int, Certificate | str] = {}
        for entry, mechanism, delta in zip(entries, mechanisms, deltas, strict=True):
            try:
                answers[entry.row] = answer.epsilon(mechanism, delta, tight=tight)
            except (ValueError, ArithmeticError, MemoryError) as error:
                answers[entry.row] = f"{entry.where}: {error}"
        return answers


def _row(entry: TableEntry, outcome: Certificate | str, compare: bool) -> tuple[BudgetRow, Certificate | None]:
    kind = str(entry.cells.get("mechanism") or "")
    read: dict[str, Any] = {"row": entry.row, "line": entry.line or None, "name": entry.name, "mechanism": kind}
    columns = tuple((name, plain_text(value)) for name, value in entry.given.items() if name != TOO_MANY)
    if isinstance(outcome, str) or entry.mechanism is None or entry.delta is None:
        error = str(outcome).removeprefix(f"{entry.where}: ")
        return BudgetRow(**read, given=columns, status="error", error=error, sound=False), None
    published: dict[str, Any] = {}
    notes = warnings(entry.mechanism, entry.delta) + without_effect(entry.mechanism)
    if kind == "dp_cutmixsl" and not entry.cells.get("noise_site"):
        notes = (*notes, _BY_MIXER)
    if outcome.sound and not isinf(outcome.epsilon) and not of_use(outcome.epsilon, entry.delta, None):
        notes = (*notes, _NO_USE)
    if compare:
        try:
            paper: PaperWithFormula = "dp_cutmixsl" if kind.startswith("dp_") else "accurate_sl"
            claim = as_published(entry.mechanism, entry.delta, paper=paper)
            published = {"published": claim.epsilon, "objection": claim.objection, "published_order": claim.order}
            if claim.order is not None:
                fixed = as_published(entry.mechanism, entry.delta, paper=paper, order=TABLE_1_ORDER)
                published["published_at_order_2"] = fixed.epsilon
        except ValueError as error:
            notes = (*notes, str(error))
    proven = {name: getattr(outcome, name) for name in _PROVEN}
    return BudgetRow(**read, **proven, **published, given=columns, delta=entry.delta, notes=notes), outcome


@dataclass(kw_only=True)
class Tally:
    """Counts the rows of a table while they pass through, and keeps the first results and the reasons of refusals."""

    rows: int = 0  # rows seen, refused or not
    shown: list[BudgetRow] = field(default_factory=list)  # the first rows with a result
    last: Certificate | None = None  # certificate of the last row; None if the row was refused
    # reason of a refusal -> names of the first rows refused for it, and the number of all such rows
    reasons: dict[str, tuple[list[str], int]] = field(default_factory=dict)
    counted: str = "row"  # "line" if rows are named by their line in a CSV file, "row" if by their number

    def of(self, pairs: Iterable[tuple[BudgetRow, Certificate | None]]) -> Iterator[BudgetRow]:
        """Pass on the rows of `budgets` and count them; a terminal shows the current count."""
        for row, self.last in pairs:
            self.rows += 1
            if sys.stderr.isatty() and self.rows % 50 == 0:
                print(f"\r{self.rows:,} rows", end="", file=sys.stderr, flush=True)
            if row.status == "error":
                at = row.line or row.row
                self.counted = "line" if row.line else "row"
                called = f"{at} ({row.name})" if row.name != f"{self.counted} {at}" else str(at)
                first, count = self.reasons.get(row.error, ([], 0))
                self.reasons[row.error] = ([*first, called] if count < _NAMED else first, count + 1)
            elif len(self.shown) < _SHOWN:
                self.shown.append(row)
            yield row

    @property
    def computed(self) -> int:
        """Number of rows with a result."""
        return self.rows - self.refused

    @property
    def refused(self) -> int:
        """Number of refused rows."""
        return sum(count for _, count in self.reasons.values())

    def sentences(self) -> Iterator[str]:
        """Yield one line for each reason of refusal, with the rows that it concerns, in order of first occurrence."""
        for reason, (first, count) in self.reasons.items():
            if count == 1:
                who = f"{self.counted} {first[0]}"
            elif count == self.rows:
                who = f"all {count:,} rows"
            else:
                who = f"{self.counted}s {', '.join(first)}" + (
                    f" and {count - len(first):,} more" if count > len(first) else ""
                )
            yield f"{who}: {reason}"
