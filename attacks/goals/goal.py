"""The contract of a goal: it owns its adversary's observation, its control experiments, and its attacks' output."""

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
    """One goal of attacks.

    Attributes:
        observation: type of what the adversary holds.
        controls: function from an attack, a seed and an observation of images to control experiments; only goals that
            reconstruct use the observation.
        fields: fields that an attack on this goal needs beyond the contract.
        untuned: why attacks on this goal cannot be tuned; empty if they can.
    """

    observation: type[Observation]
    controls: Callable[[Any, int, Any], tuple[Control, ...]]
    fields: tuple[str, ...] = ()
    untuned: str = "only attacks that reconstruct records are tuned"

    def reads(self, attack: AnyAttack) -> tuple[str, ...]:
        """The domains whose records an attack reconstructs; empty for other goals."""
        return ()


def goal_of(attack: AnyAttack) -> Goal:
    """The goal of an attack: one of `GOALS`, or its author's own as "module:object".

    Raises:
        TypeError: if there is no such goal.

    >>> from privkit.attacks.inversion.floors import MidGrey
    >>> goal_of(MidGrey()).reads(MidGrey())
    ('images',)
    """
    from privkit.attacks.goals import GOALS

    target = GOALS.get(attack.goal, attack.goal if isinstance(attack.goal, str) else "")
    module, colon, name = target.partition(":")
    if not colon:
        raise TypeError(
            f"goal must be one of {', '.join(GOALS)}, got {attack.goal!r}; a goal of your own is named module:object"
        )
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TypeError(f"goal {attack.goal} cannot be imported: {error}") from None
    if not isinstance(found, Goal):
        raise TypeError(f"goal {attack.goal} must be a Goal, got {type(found).__name__}")
    return found
