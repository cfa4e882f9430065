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
    """The aim of attacks, such as reconstructing records, and how attacks with this aim are run and tested.

    Attributes:
        observation: class of what the adversary observes; an attack's `needs` and `uses` name fields of it.
        controls: runs control experiments, in which an attack must succeed on an easy task or fail on noise. Its
            arguments are the attack, a seed, and an observation of images, which only reconstruction uses.
        fields: attributes that an attack must declare in addition to the contract of `Attack`.
        reconstructs: whether attacks with this goal reconstruct records.
        untuned: why attacks cannot be tuned; empty if they can.
    """

    observation: type[Observation]
    controls: Callable[[Any, int, Any], tuple[Control, ...]]
    fields: tuple[str, ...] = ()
    reconstructs: bool = False
    untuned: str = "only attacks that reconstruct records are tuned"

    def reads(self, attack: AnyAttack) -> tuple[str, ...]:
        """The kinds of records, such as "images", that an `attack` reconstructs; empty unless `reconstructs`."""
        return attack.mounting.domains if self.reconstructs else ()


def goal_of(attack: AnyAttack) -> Goal:
    """Look up the `Goal` of an `attack`: an entry of `GOALS`, or the author's own goal, named "module:object". Raises a
    `TypeError` if there is no such goal.

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
