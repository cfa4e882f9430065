"""Check an attack's declarations before it runs, also if the attack comes from a plug-in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass

from privkit.attacks.base import AnyAttack, Mounting
from privkit.attacks.goals.goal import goal_of
from privkit.shared.measures import KINDS


def check_declared(attack: AnyAttack) -> None:
    """Check that `attack` declares all that the protocol `privkit.attacks.base.Attack` requires, such as the fields of
    the observation that it needs.

    The first declaration that is missing or wrong raises a `TypeError`, which says what is allowed.

    >>> from privkit.attacks.inversion.floors import MidGrey
    >>> check_declared(MidGrey())
    >>> class Nameless(MidGrey):
    ...     goal = "fame"
    >>> check_declared(Nameless())
    Traceback (most recent call last):
    TypeError: goal must be module:object or one of reconstruct, labels, membership, distinguish, got 'fame'
    """
    wanted = ("name", "goal", "needs", "uses", "mounting", "run")
    for name in wanted:
        if not hasattr(attack, name):
            raise TypeError(f"it declares no {name}; an attack declares {', '.join(wanted)}")
    goal = goal_of(attack)
    for name in goal.fields:
        if not hasattr(attack, name):
            raise TypeError(f"it declares no {name}, which an attack with goal {attack.goal} must have")
    allowed = [field.name for field in fields(goal.observation)]
    for name, held in (("needs", attack.needs), ("uses", attack.uses)):
        _check_held(name, held, allowed)
    if not isinstance(attack.mounting, Mounting):
        raise TypeError(f"mounting must be a Mounting, got {type(attack.mounting).__name__}")
    if attack.mounting.passes < 1:
        raise TypeError(f"mounting.passes must be a whole number >= 1, got {attack.mounting.passes}")
    if not attack.mounting.domains or not set(attack.mounting.domains) <= {*KINDS, "any"}:
        raise TypeError(f"mounting.domains must be some of {', '.join(KINDS)}, got {attack.mounting.domains!r}")
    own = {field.name for field in fields(attack)} if is_dataclass(attack) else set[str]()
    if attack.mounting.budget_share and "epochs" not in own:
        raise TypeError("mounting.budget_share asks for a share of the budget's epochs, but there is no field epochs")


def _check_held(name: str, held: object, allowed: Collection[str]) -> None:
    if not isinstance(held, frozenset):
        raise TypeError(f"{name} must be a frozenset of names, got {type(held).__name__}")
    if unknown := sorted(str(field) for field in held if field not in allowed):
        raise TypeError(f"{name} has {unknown[0]!r}, which no adversary holds; allowed are {', '.join(allowed)}")
