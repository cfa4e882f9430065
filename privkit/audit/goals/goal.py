"""How an audit pursues a goal: an object that owns its rows, its refusals and its seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from privkit.attacks.base import AnyAttack, NotApplicable
from privkit.audit.goals import GOALS
from privkit.parts.registry import load

if TYPE_CHECKING:
    from privkit.audit.probe import Timed
    from privkit.recording.read import Recording
    from privkit.reports.schema import Row
    from privkit.settings.config import AuditConfig

Probe = Callable[..., "Timed"]
"""`privkit.audit.probe.attack_on_images` or another function of these arguments."""


class AuditGoal:
    """One goal of attacks. A new goal must define `ask`; everything else has a default.

    `escalates` says whether its attacks go on with twice the work if they fail.
    """

    escalates: ClassVar[bool] = False

    def ask(self, context: Any) -> Row:
        """Mount the attack on a defended model, score its output, and return the finished row.

        Args:
            context: an `AttackContext`.

        Raises:
            NotApplicable: if the attack cannot be mounted; it says why.
        """
        raise NotImplementedError

    def refuse_recording(self, attack: Any, source: Recording) -> None:
        """Refuse an attack that cannot be mounted on a recording.

        Raises:
            NotApplicable: it says why.
        """
        raise NotApplicable(
            f"{attack.name} sends records of its own choice through the training's clients, and a recording has no "
            "clients; audit the model itself with --model"
        )

    def probe(self, attack: Any) -> Probe | None:
        """Function that times a short run of the attack on random records; None if its time is negligible."""
        return None

    def seconds(self, attack: Any, timed: Timed, config: AuditConfig, sizes: Mapping[str, int]) -> float:
        """Seconds of the attack in a run.

        Args:
            attack: its specification.
            timed: result of its probe.
            config: a configuration with one protocol.
            sizes: number of private, auxiliary, test and victim records.
        """
        return 0.0

    def control_seconds(self, attack: Any, timed: Timed, auxiliary: int, a_round: int, defenses: int) -> float:
        """Seconds of all control experiments of an attack.

        Args:
            attack: its specification.
            timed: its probe.
            auxiliary: number of auxiliary records.
            a_round: records of a round, over all clients.
            defenses: on which the attack is mounted.
        """
        return 0.0

    def training_steps(self, attack: Any, epochs: int, victim_rounds: float, rounds: int) -> float:
        """Training steps that an attack needs in addition to its own time.

        Args:
            attack: its specification.
            epochs: of the training.
            victim_rounds: rounds that the attacked records fill.
            rounds: of the whole training.
        """
        return 0.0


def audit_goal(attack: AnyAttack) -> AuditGoal:
    """How an audit pursues the goal of an attack: one of `GOALS`, or its author's own."""
    found: AuditGoal = load(GOALS.get(attack.goal, attack.goal))
    return found
