"""Names to objects: looks a name up in the tables and in entry points, and suggests on a miss."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_args, get_type_hints

from privkit.errors import PrivkitError, UsageError, shortened, unknown
from privkit.toml_text import TomlError, TooMuch, parse_toml

TABLES = {
    "defenses": "privkit.defenses:DEFENSES",
    "attacks": "privkit.attacks:ATTACKS",
    "datasets": "privkit.domains:DATASETS",
    "models": "privkit.models:MODELS",
    "protocols": "privkit.training.protocol:PROTOCOLS",
    "partitions": "privkit.domains.partition:PARTITIONS",
    "metrics": "privkit.metrics:METRICS",
    "accountants": "privkit.accountants:ACCOUNTANTS",
}
"""Kind -> its table; a third party adds names by entry points in the group `privkit.<kind>`."""


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
"""What a plug-in may be called: its name stands in paths, tables and commands."""
COMMA = re.compile(r",(?![^\[\]]*\])")
"""A comma between options, and not between the values of a list."""
BARE_POINT = re.compile(r"(?<![^\s\[,+-])\.(?=\d)")
"""The point of a number such as .5, which TOML writes 0.5."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A named, fully specified part of a run.

    Attributes:
        name: in the registry.
        spec: the frozen dataclass instance.
        label: the shortest text that gives it, `name:key=value,…` with only what differs from the default.
    """

    name: str
    spec: Any
    label: str

    def to_json(self) -> dict[str, Any]:
        """Name and every field, defaults included."""
        return {"name": self.name, **dataclasses.asdict(self.spec)}

    def replace(self, **changes: Any) -> Component:
        """The same component with other fields; the label stays what the user wrote."""
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, **changes))


def load(target: str) -> Any:
    """The object behind "module:object".

    Raises:
        UsageError: if it cannot be imported, whatever its module does.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except (MemoryError, PrivkitError):
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        raise UsageError(
            f"cannot import {target}: {shortened(reason)[1:-1]}; repair or uninstall the package that brings it"
        ) from error


@cache
def table(kind: str) -> Mapping[str, str]:
    """Name -> "module:object" of one kind, entry points included; privkit's own names win."""
    if kind not in TABLES:
        raise unknown("kind", kind, TABLES)
    foreign = {entry.name: entry.value for entry in entry_points(group=f"privkit.{kind}") if NAME.match(entry.name)}
    return {**foreign, **load(TABLES[kind])}


def misnamed(kind: str) -> list[str]:
    """Plug-ins of one kind that are left out: their names would not fit into paths, tables or commands."""
    return sorted({entry.name for entry in entry_points(group=f"privkit.{kind}") if not NAME.match(entry.name)})


def distribution(kind: str, name: str) -> dict[str, str]:
    """The installed package that brings a name by an entry point -> its version; nothing for privkit's own names.

    >>> distribution("defenses", "batch_shuffle")
    {}
    """
    found = [] if name in load(TABLES[kind]) else [e.dist for e in entry_points(group=f"privkit.{kind}", name=name)]
    return {dist.name: dist.version for dist in found if dist is not None}


def describe(kind: str) -> list[dict[str, Any]]:
    """What `privkit list` shows: name, first line of the docstring and the options with their defaults.

    >>> [entry["name"] for entry in describe("partitions")]
    ['dirichlet', 'iid']
    """
    rows = []
    for name, target in sorted(table(kind).items()):
        try:
            rows.append(_described(name, load(target)))
        except UsageError as error:  # one broken plug-in hides no other
            rows.append({"name": name, "summary": f"broken: {error}", "options": {}})
    allowed = "a name has letters, digits, _ and -, at most 64 of them"
    return rows + [{"name": repr(name), "summary": f"left out: {allowed}", "options": {}} for name in misnamed(kind)]


def _described(name: str, found: Any) -> dict[str, Any]:
    """One part; a plug-in may be anything."""
    spec = found if dataclasses.is_dataclass(found) else None
    options = {f.name: getattr(spec, f.name, None) for f in dataclasses.fields(spec)} if spec else {}
    own = found.__doc__ if isinstance(found, type) or callable(found) else _size(found)
    return {"name": name, "summary": (own or "").strip().split("\n")[0], "options": options}


def _size(spec: Any) -> str:
    """One line for a registered instance, which has no docstring of its own."""
    if not dataclasses.is_dataclass(spec):
        raise UsageError("it is neither a class, a function nor a dataclass")
    first = (type(spec).__doc__ or "").strip().split("\n")[0]
    shown = ", ".join(f"{f.name}={getattr(spec, f.name)}" for f in dataclasses.fields(spec)[:3])
    return f"{first} ({shown})"


def parse(kind: str, given: str | Mapping[str, Any]) -> Component:
    """Build a component from text or from a TOML table.

    Args:
        kind: for example "defenses".
        given: `name`, `name:key=value,key=value`, or a mapping with a "name" key.

    Raises:
        UsageError: for an unknown name or key (with a suggestion), or a value that is not allowed.

    >>> parse("defenses", "batch_shuffle:keep=0.25").spec
    BatchShuffle(keep=0.25, variant='final_shuffle', frozen_block=False)
    >>> parse("defenses", {"name": "batch_shuffle"}).label
    'batch_shuffle'
    """
    singular = {"defenses": "defense"}.get(kind, kind.removesuffix("s"))
    if isinstance(given, str):
        name, _, text = given.partition(":")
        if kind == "models" and "." in name:
            return _imported(given)
        options = read_options(given, text)
    elif isinstance(given, Mapping):
        options = dict(given)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise UsageError(f"a {singular} given as a table needs a name, got {shortened(dict(given))}")
    else:
        raise UsageError(f"a {singular} is a name or a table, got {shortened(given)}")
    if name not in table(kind):
        raise unknown(singular, name, table(kind))
    spec = specify(singular + " " + name, load(table(kind)[name]), options)
    default = load(table(kind)[name])
    changed = [
        f"{f.name}={_shown(getattr(spec, f.name))}"
        for f in dataclasses.fields(spec)
        if getattr(spec, f.name) != getattr(default, f.name, dataclasses.MISSING)
    ]
    return Component(name=name, spec=spec, label=":".join(filter(None, [name, ",".join(changed)])))


def specify(what: str, template: Any, options: Mapping[str, Any]) -> Any:
    """A frozen dataclass from its class (or from an instance that gives the defaults) and options.

    Args:
        what: how to call it in an error.
        template: the class, or an instance.
        options: field values; unknown names and wrong types are errors.
    """
    from pydantic import TypeAdapter, ValidationError

    cls = template if isinstance(template, type) else type(template)
    if not dataclasses.is_dataclass(cls):
        raise UsageError(f"{what} is no dataclass, as a part of a run must be; repair the package that brings it")
    types = get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]
    values = {}  # as the field's own type: 1 and 1.0 are one number and make one specification
    for key, value in options.items():
        if key not in fields:
            raise unknown(f"option of {what}", str(key), fields)
        if value == "none" and type(None) in get_args(types[key]) and str not in get_args(types[key]):
            value = None  # TOML has no word for it
        try:
            values[key] = TypeAdapter(types[key]).validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input ")
            raise UsageError(f"{what}: {key} {reason}, got {shortened(value)}") from None
        if isinstance(value, int) and value.bit_length() > 63:
            raise UsageError(f"{what}: {key} must have at most 64 bits, got {shortened(value)}")
    try:
        return cls(**values) if isinstance(template, type) else dataclasses.replace(template, **values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what}: {error}") from None


def read_options(given: str, text: str) -> dict[str, Any]:
    """`key=value,key=value` with TOML values; a bare word is a string."""
    options: dict[str, Any] = {}
    for part in filter(None, COMMA.split(text)):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"cannot read {shortened(part)} in {shortened(given)}; write options as name:key=value,key=value"
            )
        options[key.strip()] = _value(value)
    return options


def _value(text: str) -> Any:
    """A TOML value, or the text itself where it is none.

    Raises:
        UsageError: if it is nested too deeply, or a number beyond 64 bits.
    """
    try:
        found = parse_toml(f"v = {BARE_POINT.sub('0.', text)}")
    except TooMuch as error:
        raise UsageError(f"cannot read the value {shortened(text)}: {error}") from None
    except TomlError:
        return text.strip()
    return found["v"] if set(found) == {"v"} else text.strip()


def _shown(value: Any) -> str:
    """A value as a user would write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _imported(given: str) -> Component:
    """A user's own `lower:upper` pair."""
    from privkit.models.imported import ImportedPair

    lower, colon, upper = given.partition(":")
    if not colon or "." not in upper:
        raise UsageError(
            f"{shortened(given)} is no pair of segments; name both by import path, "
            "package.module.Lower:package.module.Upper"
        )
    return Component(name="imported", spec=ImportedPair(lower=lower, upper=upper), label=given)
