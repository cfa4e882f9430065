"""The contract of a goal: it defines the observation, the control experiments, and the output of attacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privkit.attacks.base import AnyAttack, Observation
    from privkit.attacks.goals.control import Control


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What attacks aim at, such as to reconstruct records, and how attacks with this aim are run and tested.

    Attributes:
        observation: the type of the adversary's observation.
        controls: function that runs an attack's control experiments (it must succeed on an easy task and fail on
            noise), from the attack, a seed and an observation of images, which only reconstruction uses.
        fields: fields that an attack with this goal must declare in addition to the contract of `Attack`.
        reconstructs: whether attacks with this goal reconstruct records.
        untuned: the reason why attacks with this goal cannot be tuned; empty if they can.
    """

    observation: type[Observation]
    controls: Callable[[Any, int, Any], tuple[Control, ...]]
    fields: tuple[str, ...] = ()
    reconstructs: bool = False
    untuned: str = "only attacks that reconstruct records are tuned"

    def reads(self, attack: AnyAttack) -> tuple[str, ...]:
        """The domains whose records an attack reconstructs; empty for other goals."""
        return attack.mounting.domains if self.reconstructs else ()


def goal_of(attack: AnyAttack) -> Goal:
    """The `Goal` of an attack: one of the table `GOALS`, or the attack author's own goal, named "module:object".

    >>> from privkit.attacks.inversion.floors import MidGrey
    >>> goal_of(MidGrey()).reads(MidGrey())
    ('images',)
    """
    from privkit.attacks.goals import GOALS

    target = GOALS.get(attack.goal, attack.goal if isinstance(attack.goal, str) else "")
    module, colon, name = target.partition(":")
    if not colon:
        raise TypeError(f"goal must be module:object or one of {', '.join(GOALS)}, got {attack.goal!r}")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TypeError(f"goal {attack.goal} cannot be imported: {error}") from None
    if not isinstance(found, Goal):
        raise TypeError(f"goal {attack.goal} must be a Goal, got {type(found).__name__}")
    return found
