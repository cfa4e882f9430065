"""Annotations that state the allowed values of a dataclass's field; `Checked` checks the fields on construction.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True, kw_only=True)
... class Noise(Checked):
...     sigma: Positive
...     place: Literal["client", "server"] = "client"
>>> Noise(sigma=2).sigma
2.0
>>> Noise(sigma=-1)
Traceback (most recent call last):
ValueError: sigma must be a finite number > 0, got -1
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from math import inf, isfinite, nan
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le

_Test = Callable[[str, Any], Any]
"""(a field's name, its value) -> the value as it is stored; raises ValueError if the value is not allowed."""

_LARGEST_WHOLE = 2**53  # a float can represent every whole number up to this one exactly

_WORDS: dict[type, str] = {bool: "true or false", NoneType: "left out"}

Finite = Annotated[float, isfinite]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Magnitude = Annotated[float, Ge(1e-30), Le(1e30)]  # a positive number whose multiples do not overflow in float32
Probability = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Gt(0), Le(1)]  # a probability above 0
Count = Annotated[int, Ge(1)]
Whole = Annotated[int, Ge(0)]


@dataclasses.dataclass(frozen=True)
class Named:
    """A field's name in error messages, given inside `Annotated` if it differs from the field's own name."""

    name: str


class Checked:
    """Base class for dataclasses: on construction, the fields are checked against their annotations.

    If a subclass has rules between fields, it checks them in `__post_init__`, after `super().__post_init__()`.
    """

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(spec: Any) -> None:
    """Check each field with a supported annotation, and store numbers as plain Python numbers.

    A numpy float32 becomes a float, because products with a float32 lose precision. Supported annotations are
    `Annotated[float | int, Gt | Ge | Lt | Le | MultipleOf …]`, `Literal[…]`, `bool`, dataclasses, and `tuple[X, ...]`
    and `Sequence[X]` of a supported X. A union may consist of dataclasses, bool, None, `Literal` and one further
    annotation. Only `Le(inf)` allows infinity; booleans and NaN are rejected as numbers. A `ValueError` names the
    field, the allowed values and the given value, and ends with the text inside `Annotated`, if any.
    """
    for name, said, test in _tests(type(spec)):
        value = getattr(spec, name)
        checked = test(said, value)
        if checked is not value:
            object.__setattr__(spec, name, checked)


def allowed(cls: type) -> dict[str, str]:
    """The allowed values of each constrained field of a dataclass: name -> values in words.

    >>> from dataclasses import make_dataclass
    >>> allowed(make_dataclass("Layer", [("width", Count), ("rate", Probability | None), ("free", int)]))
    {'width': 'a whole number >= 1', 'rate': 'a finite number >= 0 and <= 1, or left out'}
    """
    hints = get_type_hints(cls, include_extras=True)
    said = {field.name: _rule(hints[field.name]).words for field in dataclasses.fields(cls)}
    return {name: words for name, words in said.items() if words}


def real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> float:
    """Return a number inside the bounds as a Python float; otherwise raise a ValueError that names bounds and value.

    Infinity is allowed only if `most` is infinite. Booleans and NaN are not numbers.

    >>> real("sigma", 2, above=0)
    2.0
    """
    if type(value) is float or (isinstance(value, Real) and not isinstance(value, bool)):
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond any float
            number = nan
        if (
            (isfinite(number) or number == most)
            and (above is None or number > above)
            and (least is None or number >= least)
            and (most is None or number <= most)
            and (below is None or number < below)
        ):
            return number
    raise ValueError(f"{name} must be {_real_words(above, least, most, below)}, got {value!r}")


def whole(name: str, value: object, *, least: int = 1, most: int = _LARGEST_WHOLE, step: int = 1) -> int:
    """Return a whole number inside the bounds, a multiple of `step`, as a Python int; otherwise raise a ValueError."""
    number = int(value) if type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool)) else None
    if number is None or not least <= number <= most or number % step:
        too_large = number is not None and number > most
        raise ValueError(f"{name} must be {_whole_words(least, most, step, always=too_large)}, got {value!r}")
    return number


def choice(name: str, value: object, options: Sequence[object]) -> Any:
    """Return the value if it is one of `options`; otherwise raise a ValueError."""
    if isinstance(value, bool) or value not in options:
        near = get_close_matches(value[:100] if isinstance(value, str) else "", list(map(str, options)), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(map(str, options))}, got {value!r}{hint}")
    return value


@dataclasses.dataclass(frozen=True)
class _Rule:
    words: str = ""  # the allowed values in words; empty if all values are allowed
    test: _Test | None = None  # the check of a value; None if nothing is checked


_Tests = tuple[tuple[str, str, _Test], ...]
"""For each checked field of a dataclass: its name, its name in error messages, and its test."""

_KNOWN: dict[type, _Tests] = {}
"""Class -> its tests, added with its first object. A dictionary, since torch.compile cannot use a cached function."""


def _tests(cls: Any) -> _Tests:
    if cls not in _KNOWN:
        hints = get_type_hints(cls, include_extras=True)
        rules = [(field.name, hints[field.name], _rule(hints[field.name])) for field in dataclasses.fields(cls)]
        _KNOWN[cls] = tuple((name, _said(name, hint), rule.test) for name, hint, rule in rules if rule.test)
    return _KNOWN[cls]


def _said(name: str, hint: Any) -> str:
    return next((part.name for part in getattr(hint, "__metadata__", ()) if isinstance(part, Named)), name)


def _rule(hint: Any) -> _Rule:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return _any_of(arguments)
    if kind is Sequence or (kind is tuple and arguments[1:] == (Ellipsis,)):
        return _each(_rule(arguments[0]))
    if kind is Literal:
        words = f"one of {', '.join(map(str, arguments))}"
        return _Rule(words, lambda name, value: choice(name, value, arguments))
    if kind is Annotated:
        rules = {float: _real_rule, int: _whole_rule}
        rule = rules[hint.__origin__](_limits(hint)) if hint.__origin__ in rules else _rule(hint.__origin__)
        return _advised(rule, "; ".join(part for part in hint.__metadata__ if isinstance(part, str)))
    return _one_of((hint,)) if _is_class(hint) else _Rule()


def _is_class(hint: Any) -> TypeGuard[type]:
    return hint in (bool, NoneType) or (isinstance(hint, type) and dataclasses.is_dataclass(hint))


def _one_of(classes: tuple[type, ...]) -> _Rule:
    names = [one.__name__ for one in classes if one not in (bool, NoneType)]
    said = [f"{'one of ' if len(names) > 1 else 'of class '}{', '.join(names)}"] if names else []
    words = ", or ".join(said + [_WORDS[one] for one in classes if one in _WORDS])

    def instance(name: str, value: Any) -> Any:
        if not isinstance(value, classes):
            raise ValueError(f"{name} must be {words}, got {value!r}")
        return value

    return _Rule(words, instance)


def _any_of(members: Sequence[Any]) -> _Rule:
    classes = tuple(member for member in members if _is_class(member))
    objects = _one_of(classes)
    literals = [member for member in members if get_origin(member) is Literal]
    rest = [member for member in members if member not in classes and member not in literals]
    words = tuple(word for literal in literals for word in get_args(literal)) if rest else ()
    rest = rest or literals
    if not rest:
        return objects
    other = _rule(rest[0]) if len(rest) == 1 else _Rule()
    if (test := other.test) is None:
        return _Rule()
    further = "".join(f", or {said}" for said in (*words, objects.words) if said)

    def either(name: str, value: Any) -> Any:
        if isinstance(value, classes) or (isinstance(value, str) and value in words):
            return value
        try:
            return test(name, value)
        except ValueError as error:
            allowed, got, given = str(error).rpartition(", got ")
            raise ValueError(f"{allowed}{further}{got}{given}") from None

    return _Rule(other.words + further, either)


def _each(rule: _Rule) -> _Rule:
    """The rule for every value of a tuple; a list becomes a tuple, so that the object is hashable."""
    if (test := rule.test) is None:
        return _Rule()

    def each(name: str, values: Any) -> tuple[Any, ...]:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"{name} must be a list, got {values!r}")
        return tuple(test(f"each of {name}", value) for value in values)

    return _Rule(rule.words and f"values that are each {rule.words}", each)


def _advised(rule: _Rule, advice: str) -> _Rule:
    if (test := rule.test) is None or not advice:
        return rule

    def advised(name: str, value: Any) -> Any:
        try:
            return test(name, value)
        except ValueError as error:
            raise ValueError(f"{error}; {advice}") from None

    return dataclasses.replace(rule, test=advised)


def _limits(hint: Any) -> dict[str, Any]:
    names = {"gt": "above", "ge": "least", "le": "most", "lt": "below", "multiple_of": "step"}
    parts = hint.__metadata__
    return {name: getattr(part, bound) for part in parts for bound, name in names.items() if hasattr(part, bound)}


def _real_rule(limits: dict[str, Any]) -> _Rule:
    return _Rule(_real_words(**limits), lambda name, value: real(name, value, **limits))


def _whole_rule(limits: dict[str, Any]) -> _Rule:
    above, below = limits.get("above", -_LARGEST_WHOLE - 1), limits.get("below", _LARGEST_WHOLE + 1)
    least, most, step = limits.get("least", above + 1), limits.get("most", below - 1), limits.get("step", 1)
    words = _whole_words(least, most, step)
    return _Rule(words, lambda name, value: whole(name, value, least=least, most=most, step=step))


def _real_words(
    above: float | None = None, least: float | None = None, most: float | None = None, below: float | None = None
) -> str:
    limits = ((">", above), (">=", least), ("<=", most), ("<", below))
    bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in limits if bound not in (None, inf))
    return f"a {'finite ' * (most != inf)}number{' ' * bool(bounds)}{bounds}{', or inf' * (most == inf)}"


def _whole_words(least: int, most: int, step: int, *, always: bool = False) -> str:
    """A range of whole numbers in words. The upper bound 2**53, which only floats need, is named only if `always`."""
    upper = f" and <= {most}" if always or most < _LARGEST_WHOLE else ""
    return f"a {'whole number' if step == 1 else f'multiple of {step}'} >= {least}{upper}"
