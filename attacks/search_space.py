"""The search space for tuning an attack: for each option a range or a list of values, read from its type annotation.

>>> from privkit.attacks.inversion.sdar import SDAR
>>> search_space(SDAR(flip=0.5))["learning_rate"]
Range(low=0.0001, high=0.01, log=True)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from privkit.attacks.base import AnyAttack, known_to
from privkit.attacks.goals.goal import goal_of

_FACTOR = 10.0
"""A positive number without an upper limit is searched from its default divided by this to its default times this."""


@dataclass(frozen=True)
class Search:
    """Used inside `Annotated`: the part of a range that tuning searches, on a logarithmic scale if `low` > 0."""

    low: float
    high: float


@dataclass(frozen=True)
class Untuned:
    """Used inside `Annotated`: tuning does not change the field, since it states what the adversary has or assumes."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, drawn uniformly or, with `log`, log-uniformly."""

    low: float
    high: float
    log: bool

    def __contains__(self, value: object) -> bool:
        return isinstance(value, float) and self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """A few values, at least two."""

    values: tuple[Any, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.values


def search_space(attack: AnyAttack) -> dict[str, Range | Choice]:
    """The values that tuning tries: option name -> a range or a list of values; empty if there is nothing to tune.

    Strings and booleans are tried one by one, numbers between their limits. A positive number without an upper limit
    is searched within a factor of 10 of its default. Whole numbers keep their value, because they set the attack's work
    or size, unless they are annotated with `Search`. Options annotated with `Untuned` keep their value, and so do
    options that the user changed. Values with which the attack needs more knowledge or more passes are left out.
    """
    if not is_dataclass(attack):
        return {}
    hints = get_type_hints(type(attack), include_extras=True)
    space: dict[str, Range | Choice] = {}
    for field in fields(attack):
        if not field.init or getattr(attack, field.name) != field.default:
            continue
        found = _space_of_field(list(_annotation_parts(hints[field.name])), field.default)
        if isinstance(found, Choice):
            found = Choice(tuple(value for value in found.values if _same_adversary(attack, field.name, value)))
        if isinstance(found, Range) or (found is not None and len(found.values) > 1):
            space[field.name] = found
    return space


def why_untuned(attack: AnyAttack) -> str:
    """The reason why an attack cannot be tuned; empty if it can."""
    if reason := goal_of(attack).untuned:
        return reason
    if "clients" in known_to(attack):
        return "it takes part in the training of the clients, which an adversary cannot repeat"
    if not search_space(attack):
        return "it has no field to tune"
    if not {"query", "lower"} & known_to(attack):
        return "its adversary sees no release of own records: it neither queries nor knows the lower segment"
    return ""


def _same_adversary(attack: Any, name: str, value: object) -> bool:
    """Whether an attack with another value of one field needs the same knowledge and the same number of passes."""
    with suppress(ValueError):  # the other fields can forbid this value
        other = replace(attack, **{name: value})
        return known_to(other) == known_to(attack) and other.mounting.passes == attack.mounting.passes
    return True


def _annotation_parts(hint: Any) -> Iterator[Any]:
    kind = get_origin(hint)
    if kind in (Union, UnionType):
        for member in get_args(hint):
            yield from _annotation_parts(member)
    elif kind is Annotated:
        yield from hint.__metadata__
        yield from _annotation_parts(hint.__origin__)
    else:
        yield hint


def _space_of_field(parts: list[Any], default: Any) -> Range | Choice | None:
    if any(isinstance(part, Untuned) for part in parts):
        return None
    for part in parts:
        if isinstance(part, Search):
            return Range(part.low, part.high, log=part.low > 0)
    values = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    values += [False, True] if bool in parts else []
    if values and float not in parts and int not in parts:
        return Choice((*values, None) if NoneType in parts else tuple(values))
    return _float_range(parts, default) if float in parts else None


def _float_range(parts: list[Any], default: float | None) -> Range | None:
    lows: list[Any] = [part.gt if isinstance(part, Gt) else part.ge for part in parts if isinstance(part, Gt | Ge)]
    highs: list[Any] = [part.lt if isinstance(part, Lt) else part.le for part in parts if isinstance(part, Lt | Le)]
    if lows and highs:
        return Range(max(lows), min(highs), log=False)
    if lows and min(lows) >= 0 and default:
        return Range(default / _FACTOR, default * _FACTOR, log=True)
    return None
