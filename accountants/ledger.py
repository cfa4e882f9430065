"""A ledger on disk of a run's releases, entered before they are made. It refuses entries beyond the budget."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Gt, Lt

from privkit.accountants import validate
from privkit.accountants.answer import certificate, delta_of
from privkit.accountants.bounds.bound import Bound, Limit
from privkit.accountants.bounds.step import USUAL_ORDERS
from privkit.accountants.charges import (
    bounds_of_charges,
    cost_of,
    plus,
    said_of_charges,
    steps_of_charges,
    units_and_charges,
    within,
)
from privkit.accountants.filters import ADAPTIVE, FIXED, Filter, Reading, best_filter, reading
from privkit.accountants.ledger_file import MECHANISM, LedgerError, LedgerFile, charge_of_line, json_and_mechanism
from privkit.accountants.search import narrowed
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.wording import claim
from privkit.constraints import Checked, Positive
from privkit.shared.certificate import Certificate


class BudgetSpent(ValueError):
    """Raised if a charge for planned releases would exceed the budget. Nothing was written; release nothing.

    Attributes:
        asked: the requested number of rounds.
        left: the number of rounds of the same mechanism that still fit into the budget.
        spent: ε at the budget's δ before the charge.
        would_be: ε at the budget's δ after the charge; `inf` if no ε would be proven.
    """

    def __init__(self, sentence: str, *, asked: int, left: int, spent: float, would_be: float) -> None:
        super().__init__(sentence)
        self.asked, self.left, self.spent, self.would_be = asked, left, spent, would_be


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget(Checked):
    """The privacy that a run may spend: `epsilon` > 0, in nats, at `delta` in (0, 1)."""

    epsilon: Positive
    delta: Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One line of a ledger: releases that were charged before they were made.

    Attributes:
        number: number of the charge: 1, 2, 3, ….
        rounds: number of charged rounds.
        note: free text, for people.
        mechanism: the releases of one round. Its own `rounds` is 1, except if several rounds must be charged together:
            a shuffled or randomly allocated epoch, or all rounds that share mixing ratios.
    """

    number: int
    rounds: int
    note: str
    mechanism: SplitMechanism


class Ledger:
    """Append-only account of the releases of a run, in a file that stays valid if the process is killed.

    A charge states releases before they are made. It is one JSON line, flushed to disk before `charge` returns. So if
    you release only after `charge` returns, every release is in the ledger. If a kill cut off the last line, its
    release was not made; opening the ledger drops this line.

    Attributes:
        path: the file. If it is missing, it is created with its folders.
        budget: the privacy budget of all charges together; None for no limit.
        tight: whether `epsilon` and `delta` also compose privacy loss distributions numerically, and `charge` does so
            before it refuses. Close to the budget, this can take seconds per charge.
        adaptive: whether charges are allowed to depend on earlier releases, for example if the noise is decided during
            the run. The first charge then fixes one bound (`filters`), and `epsilon` and `delta` describe the whole
            budget, not only the part spent. An adaptive ledger needs a budget and excludes `tight`. The mode is stored
            in the file.
        rounds: the number of all charged rounds.
        remarks: sentences about problems on opening: an incomplete last line that was dropped, a missing lock.

    Raises:
        LedgerError: if the file is damaged, is not a ledger, cannot be written, or is in use by another process.

    Source: for charges fixed in advance, the smallest of these bounds. Gaussians of constant shift: one Gaussian of
    shift √Σμ² (Dong, Roth and Su 2022, Corollary 3.3), exact without sampling. Other charges: the sum of Rényi curves
    (Mironov 2017, Proposition 1). For charges that depend on releases: `filters`.

    >>> import tempfile
    >>> from privkit.accountants.table import mechanism_of
    >>> epoch = mechanism_of({"mechanism": "gaussian", "sigma": 8, "dimensions": 4, "clip_high": 1})
    >>> with tempfile.TemporaryDirectory() as run, Ledger(Path(run, "ledger.jsonl")) as ledger:
    ...     for number in range(16):
    ...         charge = ledger.charge(epoch, note=f"epoch {number}")
    ...     round(ledger.epsilon(1e-5).epsilon, 4)
    4.3772
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        budget: PrivacyBudget | None = None,
        tight: bool = False,
        adaptive: bool = False,
    ) -> None:
        if budget is not None and not isinstance(budget, PrivacyBudget):
            raise ValueError(f"budget must be a PrivacyBudget(epsilon=…, delta=…) or None, got {budget!r}")
        if adaptive and (budget is None or tight):
            raise ValueError(
                "charges that depend on releases need a budget that is fixed beforehand: give budget=PrivacyBudget(…)"
                if budget is None
                else "numerical composition needs parameters that were fixed in advance, not charges that depend on "
                "releases: leave out tight"
            )
        self.path, self.budget, self.tight, self.rounds = Path(path), budget, tight, 0
        self.adaptive = adaptive
        self._filter: Filter | None = None
        self._counts: dict[SplitMechanism, tuple[int, int]] = {}
        self._total = np.zeros(1 + USUAL_ORDERS.size)
        self._rest = np.zeros_like(self._total)
        self._one_at_a_time = threading.Lock()
        self._file = LedgerFile(self.path)
        self.remarks = self._file.remarks
        try:
            self._take_up(self._file.read())
        except BaseException:
            self.close()
            raise

    def charge(self, mechanism: SplitMechanism, *, rounds: int | None = None, note: str = "") -> Charge:
        """Write a release into the ledger before it is made.

        Args:
            mechanism: the mechanism of the release. Every call also charges the mechanism's noisy updates of the lower
                model (`PrivateUpdates`), so give the number of update steps for these rounds only.
            rounds: the number of rounds, ≥ 1; if None, `mechanism.rounds`.
            note: free text, for people.

        Raises:
            BudgetSpent: if the total would exceed the budget. Nothing was written.
            LedgerError: if the ledger is closed, or its file was changed by somebody else or cannot be written.
            ValueError: if an argument is out of range, or relation or unit differ from those of earlier charges.
        """
        if not isinstance(mechanism, SplitMechanism):
            raise ValueError(f"mechanism must be a SplitMechanism, got {mechanism!r}")
        if not isinstance(note, str):
            raise ValueError(f"note must be text, got {note!r}")
        try:
            hash(mechanism)
        except TypeError as error:
            raise ValueError(f"a specification holds tuples, not lists or arrays: {error}") from None
        count = validate.whole("rounds", mechanism.rounds if rounds is None else rounds)
        if mechanism.joint and count != mechanism.rounds:
            raise ValueError(
                f"the ratios are for {mechanism.rounds} rounds, so they cannot be charged for rounds={count}"
            )
        if count % (together := mechanism.charged_together):
            raise ValueError(
                f"a random allocation or a shuffled run is charged in epochs of {together} rounds, got rounds={count}"
            )
        text, one = json_and_mechanism(
            mechanism if mechanism.rounds == together else replace(mechanism, rounds=together)
        )
        with self._one_at_a_time:
            self._file.check()
            self._check_kind(one)
            if one.drawn_once and any(kept.drawn_once for kept in self._counts):
                raise ValueError(
                    "ratios that were drawn once are shared by all charges, so the charges cannot be added: charge "
                    "all rounds at once, or charge the drawn ratios (RealizedRatios)"
                )
            kept = ""
            if self.adaptive and self.budget is not None:
                self._filter = self._admitting(one, count, self.budget)
                kept = f'"filter": [{self.budget.epsilon!r}, {self.budget.delta!r}], '
            elif self.budget is not None:
                self._afford(one, count, self.budget)
            try:
                self._file.append(f'{kept}"rounds": {count}, "note": {json.dumps(note)}{MECHANISM}{text}')
                self._book(one, *units_and_charges(one, count))
            except BaseException:  # memory and file may differ now, and the file is right
                self.close()
                raise
            self.rounds += count
            return Charge(number=len(self), rounds=count, note=note, mechanism=one)

    def affords(self, mechanism: SplitMechanism, *, rounds: int | None = None, note: str = "") -> bool:
        """Charge a release and return True. If the budget does not allow it, charge nothing and return False.

        `mechanism`, `rounds`, `note` and all other errors are the same as in `charge`.
        """
        try:
            self.charge(mechanism, rounds=rounds, note=note)
        except BudgetSpent:
            return False
        return True

    def epsilon(self, delta: float) -> Certificate:
        """The certificate of the smallest ε that is proven at `delta` in (0, 1) for all charged releases together."""
        d = validate.delta(delta)
        if not self._counts:
            return self._nothing(0.0, d)
        best, limit = self._least(lambda bound: bound.epsilon(d))
        lower = limit.value if best.exact and next(iter(self._counts)).attained else None
        return self._certificate(best, limit, limit.value, d, lower)

    def delta(self, epsilon: float) -> Certificate:
        """The certificate of the smallest δ that is proven at `epsilon` ≥ 0 for all charged releases together."""
        e = validate.real("epsilon", epsilon, least=0)
        if not self._counts:
            return self._nothing(e, 0.0)
        best, limit = self._least(lambda bound: bound.log_delta(e))
        return self._certificate(best, limit, e, delta_of(limit.value, e, steps_of_charges(self._counts)), None)

    def so_far(self, delta: float) -> Reading:
        """The ε and δ that an adaptive ledger has spent so far. All readings of a run hold together (see `filters`).

        `delta` in (0, 1) must be fixed before the first release. Raises ValueError if the ledger is not adaptive.
        """
        d = validate.delta(delta)
        if not self.adaptive:
            told = "for charges that were fixed in advance, epsilon(delta) is what they have spent"
            raise ValueError(f"an odometer needs a ledger with adaptive=True; {told}")
        if self._filter is None:
            return Reading(epsilon=0.0, delta=d)
        return reading(self._filter, self._total + self._rest, d)

    def _least(self, ask: Callable[[Bound], Limit]) -> tuple[Bound, Limit]:
        if self._filter is not None:
            return self._filter.bound, ask(self._filter.bound)
        bounds = bounds_of_charges(self._counts, self._total + self._rest, tight=self.tight)
        return min(((bound, ask(bound)) for bound in bounds), key=lambda pair: pair[1].value)

    def _nothing(self, epsilon: float, delta: float) -> Certificate:
        return Certificate(
            kind="differential_privacy",
            statement="nothing was charged: ε = 0 as long as nothing is released",
            epsilon=epsilon,
            delta=delta,
            source="by definition",
        )

    def _certificate(self, best: Bound, limit: Limit, epsilon: float, delta: float, lower: float | None) -> Certificate:
        first, proven = next(iter(self._counts)), epsilon < inf and delta < 1
        run = steps_of_charges(self._counts) if self._filter is None else self._filter.run
        told = claim(first, epsilon, delta) if proven else "nothing is proven: no ε with δ < 1 follows"
        charged = f"{self.rounds:,} round{'s' * (self.rounds > 1)} in {len(self):,} charge{'s' * (len(self) > 1)}"
        said = (*said_of_charges(self._counts, delta), ADAPTIVE if self.adaptive else FIXED)
        answered = (epsilon, delta, lower) if proven else None
        return certificate(first, run, best, limit, f"{told}, over {charged}", said, answered)

    def __len__(self) -> int:
        return self._file.lines

    def close(self) -> None:
        """Close the file, so that others can open it."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_up(self, lines: list[str]) -> None:
        counts: dict[SplitMechanism, tuple[int, int]] = {}
        budgets = set[tuple[float, float] | None]()
        for number, line in enumerate(lines, 1):
            try:
                one, rounds, budget = charge_of_line(line)
            except ValueError as error:
                raise LedgerError(
                    f"this version of privkit cannot charge line {number} of the ledger {self.path}: {error}"
                ) from None
            counts[one] = plus(counts.get(one), units_and_charges(one, rounds))
            budgets.add(budget)
            self.rounds += rounds
        if budgets:
            self._keep_filter(budgets, next(iter(counts)))
        for one, (units, charges) in counts.items():
            self._check_kind(one)
            self._book(one, units, charges)
        if self._filter is not None and not self._filter.covers(self._total + self._rest):
            raise LedgerError(
                f"the charges of the ledger {self.path} exceed the filter that its first line fixes, so no budget "
                f"holds: the file was changed by hand, or written by another version; restore it from a copy"
            )

    def _keep_filter(self, budgets: set[tuple[float, float] | None], first: SplitMechanism) -> None:
        """Restore the filter of a ledger's file. Raises LedgerError if the file contradicts the requested budget or
        mode."""
        if budgets == {None}:
            if self.adaptive:
                raise LedgerError(
                    f"the charges of the ledger {self.path} were made without a filter, so no filter bounds them: "
                    f"keep a new ledger with adaptive=True"
                )
            return
        if len(budgets) > 1 or (self.budget and budgets != {(self.budget.epsilon, self.budget.delta)}):
            raise LedgerError(
                f"the filter of the ledger {self.path} was fixed before its first release for (ε, δ) = "
                f"{next(iter(budgets - {None}))}: open it with this budget, or without one"
            )
        epsilon, delta = budgets.pop() or (inf, 1.0)
        self.budget, self.adaptive, self.tight = PrivacyBudget(epsilon=epsilon, delta=delta), True, False
        self._filter = best_filter(self.budget, cost_of(first, 1, 1))

    def _admitting(self, one: SplitMechanism, rounds: int, budget: PrivacyBudget) -> Filter:
        limited, total = self._filter or best_filter(budget, cost_of(one, 1, 1)), self._total + self._rest

        def fits(rounds: int) -> bool:
            return rounds == 0 or limited.admits(total + cost_of(one, *units_and_charges(one, rounds)))

        if fits(rounds):
            return limited
        would = f"exceed the filter of ε = {budget.epsilon:g} at δ = {budget.delta:g}"
        spent = budget.epsilon if self._counts else 0.0
        countable = cost_of(one, 1, 1)[limited.at] < inf
        other = ", or add noise" if countable else ": the filter, which the first charge chose, cannot count this noise"
        raise _refusal(one, rounds, fits, would, other, spent, inf)

    def _check_kind(self, one: SplitMechanism) -> None:
        kept = next(iter(self._counts), one)
        for name in ("relation", "unit"):
            if getattr(one, name) != getattr(kept, name):
                raise LedgerError(
                    f"the ledger {self.path} is kept for {name}={getattr(kept, name)!r}, so a charge for {name}="
                    f"{getattr(one, name)!r} cannot be added to it: keep a ledger for each"
                )

    def _book(self, one: SplitMechanism, units: int, charges: int) -> None:
        """Add a cost to the sums without losing digits: 10⁵ charges give the same sum as one charge of 10⁵ rounds."""
        cost = cost_of(one, units, charges)
        self._counts[one] = plus(self._counts.get(one), (units, charges))
        with np.errstate(invalid="ignore", over="ignore"):
            total = self._total + cost
            lost = np.where(self._total >= cost, self._total - total + cost, cost - total + self._total)
        self._total, self._rest = total, self._rest + np.where(np.isfinite(total), lost, 0.0)

    def _afford(self, one: SplitMechanism, rounds: int, budget: PrivacyBudget) -> None:
        """Raise BudgetSpent for a charge beyond the budget. The slow, better bounds are tried only before a refusal."""
        total = self._total + self._rest
        cost = cost_of(one, *units_and_charges(one, rounds))
        if within(total + cost, budget.epsilon, budget.delta):
            return

        def after(rounds: int) -> float:
            counted = units_and_charges(one, rounds)
            counts = {**self._counts, one: plus(self._counts.get(one), counted)}
            cost = total + cost_of(one, *counted)
            bounds = bounds_of_charges(counts, cost, tight=self.tight)
            return min(bound.epsilon(budget.delta).value for bound in bounds)

        if (needed := after(rounds)) <= budget.epsilon:
            return
        spent = self.epsilon(budget.delta).epsilon
        limit, other = f"above the budget of {budget.epsilon:g}", ", add noise, or raise the budget"
        would = f"bring ε from {spent:.4g} to {needed:.4g} at δ = {budget.delta:g}, {limit}"
        raise _refusal(one, rounds, lambda fewer: after(fewer) <= budget.epsilon, would, other, spent, needed)


def _refusal(
    one: SplitMechanism, rounds: int, fits: Callable[[int], bool], would: str, other: str, spent: float, would_be: float
) -> BudgetSpent:
    step = one.charged_together
    left = step * narrowed(lambda fewer: fits(step * fewer), 0, rounds // step)[0]
    sentence = (
        f"{rounds:,} more round{'s' * (rounds > 1)} would {would}, so nothing was charged: "
        f"{f'charge at most {left:,} of them' if left else 'stop here'}{other}"
    )
    return BudgetSpent(sentence, asked=rounds, left=left, spent=spent, would_be=would_be)
