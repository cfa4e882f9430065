"""Escalation: a failed attack continues with twice the work until it succeeds or stops improving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from privkit.attacks.base import AttackDiverged, NoSession, NotApplicable, Session
from privkit.attacks.fit import TOLERATED_GAIN, gained

_Result = TypeVar("_Result")
_Ended = Literal["won", "stopped", "limit", "untrained", "failed", "on"]
_PATIENCE = 2  # doublings without a gain after which an attack has stopped improving
_ERRORS = "errors"


@dataclass(frozen=True, kw_only=True)
class Escalation:
    """The outcome of doubling a failed attack's work again and again: the errors, and why the doubling ended."""

    # "won"; "stopped": two doublings did not lower the error; "limit": no further doubling is allowed; "untrained": the
    # attack has no training; "failed": a doubling failed, and the result before it counts; "on": more work follows
    ended: _Ended
    errors: tuple[float, ...]  # the attack's error ≥ 0 at its budget and after each doubling
    epochs: int  # number of trained epochs, over all networks
    why: str = ""  # reason why a doubling failed; else empty
    unit: str = "epochs"  # name of the unit in which `epochs` counts the work

    @property
    def doublings(self) -> int:
        """Number of doublings of the attack's budget."""
        return len(self.errors) - 1

    @property
    def gains(self) -> tuple[bool, ...]:
        """Whether each doubling lowered the smallest error so far by more than 5 %."""
        return tuple(gained(min(self.errors[:k]), self.errors[k]) for k in range(1, len(self.errors)))

    @property
    def sentence(self) -> str:
        """A sentence on the work beyond the budget and on why it ended; empty if the attack succeeded within the
        budget.

        >>> Escalation(ended="won", errors=(0.08, 0.04), epochs=20).sentence
        'the attack failed at its budget, went on to 2 times its work (20 epochs, error 0.0800, 0.0400) and won'
        """
        if self.ended == "untrained":
            return "the attack cannot be escalated: it trains nothing that could be continued"
        if self.ended == "won" and not self.doublings:
            return ""
        said = {
            "won": " and won",
            "stopped": f"; the last {_PATIENCE} doublings lowered the error by at most {TOLERATED_GAIN:.0%}",
            "limit": ", the largest work that is allowed (escalate)",
            "failed": f"; more work failed: {self.why}",
            "on": "",
        }[self.ended]
        errors = ", ".join(f"{error:.4f}" for error in self.errors)
        work = f"{1 << self.doublings} times its work ({self.epochs:,} {self.unit}, error {errors})"
        return f"the attack failed at its budget, went on to {work}{said}"


class _Further(Session):
    """A session that lets a training double its budget, once for each of the `errors` so far."""

    def __init__(self, session: Session, errors: Sequence[float] = ()) -> None:
        self._session, self.errors, self.epochs = session, tuple(errors), 0
        self._state = session.load()
        if self._state is not None:
            self.errors = tuple(self._state.pop(_ERRORS, errors))

    def load(self) -> dict[str, Any] | None:
        return self._state

    def save(self, state: dict[str, Any]) -> None:
        self._state = state
        self._session.save(self._marked(state))

    def keep(self, state: dict[str, Any]) -> None:
        self._state = state
        self._session.keep(self._marked(state))

    def _marked(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, _ERRORS: list(self.errors)} if self.errors else state

    def report(self, done: int, total: int, value: float) -> None:
        self._session.report(done, total, value)

    def goes_on(self, epochs: int, curve: Sequence[float]) -> bool:
        if len(curve) < epochs << len(self.errors):
            return True
        self.epochs += len(curve)
        return False


def escalated(
    run: Callable[[Session], _Result],
    judged: Callable[[_Result], tuple[bool, float]],
    session: Session | None = None,
    *,
    most: int,
    unit: str = "epochs",
) -> tuple[_Result, Escalation]:
    """Run an attack. While it fails but could still improve, continue from the saved state with twice the work.

    `run` makes the same calls with the same random draws each time, so `fit` skips work that the session already holds;
    an attack that is killed during a doubling resumes within this doubling. `judged` says whether a result beats
    constant guesses, and gives its error ≥ 0. `most` is the largest number of doublings, and `unit` names the unit of
    work that `Session.goes_on` counts. An error of `run` within its budget is raised; if a later doubling diverges or
    needs data that this adversary lacks, the result before it is returned.
    """
    further = _Further(session or NoSession())
    before: tuple[_Result, int] | None = None
    while True:
        further.epochs = 0
        try:
            result = run(further)
        except (AttackDiverged, NotApplicable) as reason:
            if not further.errors:
                raise
            shorter = _Further(NoSession(), further.errors[:-1])
            result, epochs = before or (run(shorter), shorter.epochs)
            return result, Escalation(ended="failed", errors=further.errors, epochs=epochs, why=str(reason), unit=unit)
        if further.epochs <= (before[1] if before else 0) and further.errors:
            return result, Escalation(ended="untrained", errors=further.errors, epochs=further.epochs, unit=unit)
        won, error = judged(result)
        found = Escalation(ended="on", errors=(*further.errors, error), epochs=further.epochs, unit=unit)
        if (ended := _ended(found, won, most)) != "on":
            return result, replace(found, ended=ended)
        before, further.errors = (result, further.epochs), found.errors


def _ended(found: Escalation, won: bool, most: int) -> _Ended:
    if won:
        return "won"
    if not found.epochs:
        return "untrained"
    if found.doublings >= _PATIENCE and not any(found.gains[-_PATIENCE:]):
        return "stopped"
    return "limit" if found.doublings >= most else "on"
