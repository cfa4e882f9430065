"""Base class of attack goals: a goal runs its attacks, refuses unsuitable recordings, and estimates time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from privkit.attacks.base import AnyAttack, NotApplicable, Observation
from privkit.parts.registry import load

if TYPE_CHECKING:
    from privkit.audit.probe import Rehearsal
    from privkit.recording.read import Recording
    from privkit.reports.schema import Row
    from privkit.settings.config import AuditConfig


_GOALS = {goal: f"privkit.audit.goals.{goal}:GOAL" for goal in ("reconstruct", "labels", "membership", "distinguish")}
"""Goal -> the import path of its `AuditGoal`, "module:object"."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The measured seconds of an attack and its control experiments, perhaps in a rehearsal on random records."""

    seconds: float = 0.0  # seconds of the whole attack, on the records with which it was timed
    epochs: int = 0  # training epochs in these seconds, to estimate control experiments; 0 without training
    records: int = 1  # number of private records in the rehearsal, and also of the adversary's own records
    victims: int = 1  # number of attacked records in the rehearsal
    reason: str = ""  # why nothing was measured, or what the seconds leave out; else empty
    controls: float = 0.0  # additional seconds of control experiments
    most: float = 0.0  # seconds of the attack if it fails and is repeated as often as allowed; 0 if not estimated


class Cost(NamedTuple):
    """The estimated seconds of one attack and of its control experiments, and the number of added training steps."""

    seconds: float = 0.0
    controls: float = 0.0
    steps: float = 0.0


class AuditGoal:
    """How an audit runs attacks with one goal, such as reconstruction. A new goal must define `ask`.

    `escalates` says whether attacks with this goal are run again with a doubled budget if they fail.
    """

    escalates: ClassVar[bool] = False

    def ask(self, context: Any) -> Row:
        """Run the attack of an `AttackContext`, score its output, and return the result; may raise `NotApplicable`."""
        raise NotImplementedError

    def refuse_recording(self, attack: Any, source: Recording) -> None:
        """Raise `NotApplicable` if the attack cannot be run on this recording."""
        raise NotApplicable(
            f"{attack.name} sends records of its own choice through the training's clients, and a recording has no "
            "clients; audit the model itself with --model"
        )

    def rehearsed(self, context: Rehearsal, held: frozenset[str]) -> Observation | None:
        """The attack's input, with the fields that `held` names, for a dry run that times the attack; None if it is not
        timed."""

    def cost(self, attack: Any, timed: Timed, config: AuditConfig, sizes: Mapping[str, int]) -> Cost:
        """Estimate the cost of an attack in a run from its measured time on random records.

        `sizes` has the numbers of "private", "auxiliary", "test" and attacked ("victims") records, of records that all
        clients send in a round ("a_round"), and of training rounds ("rounds").
        """
        return Cost()


def audit_goal(attack: AnyAttack) -> AuditGoal:
    """The `AuditGoal` for an attack's goal: a built-in one from `_GOALS`, or one that the attack's author defines."""
    found: AuditGoal = load(_GOALS.get(attack.goal, attack.goal))
    return found
