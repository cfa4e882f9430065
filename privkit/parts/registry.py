"""Builds parts (defenses, attacks, …) from names, which are found in tables and entry points."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args, get_type_hints

from privkit.errors import PrivkitError, UsageError, one_line, shortened, unknown
from privkit.files.import_path import with_options
from privkit.files.observed import watch
from privkit.files.toml_text import TomlError, TooMuch, parse_toml
from privkit.parts.own_parts import is_own_name, kind_noun, own

PART_TABLES = {
    "defenses": "privkit.defenses:DEFENSES",
    "attacks": "privkit.attacks:ATTACKS",
    "datasets": "privkit.domains:DATASETS",
    "models": "privkit.models:MODELS",
    "protocols": "privkit.training.protocol:PROTOCOLS",
    "partitions": "privkit.domains.partition:PARTITIONS",
    "metrics": "privkit.metrics:METRICS",
    "accountants": "privkit.accountants:ACCOUNTANTS",
    "bounds": "privkit.accountants.bounds:BOUNDS",
}
"""Kind of parts -> its table. Other packages add names by entry points in the group `privkit.<kind>`."""
_OURS = frozenset({"bounds"})  # kinds without entry points: an installed package cannot lower an ε


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
"""Allowed names of plug-ins, since names occur in paths, tables and commands."""
_REPAIR = "repair the file or package that brings it"
_COMMA = re.compile(r",(?![^\[\]]*\])")  # a comma between options, not between the values of a list
_BARE_POINT = re.compile(r"(?<![^\s\[,+-])\.(?=\d)")  # the point of a number such as .5, which TOML writes 0.5


@dataclass(frozen=True, kw_only=True)
class Component:
    """A part of a run (defense, attack, …) with its name and all options."""

    name: str  # name in the registry
    spec: Any  # the part itself, a frozen dataclass
    # the shortest text that describes the part: `name:key=value,…` with the values that differ from their defaults
    label: str
    stages: tuple[Component, ...] = ()  # the defenses of a chain; empty for other parts

    def to_json(self) -> dict[str, Any]:
        """Name and all fields, including defaults; for a chain of defenses, the fields of each defense."""
        if self.stages:
            return {"name": self.name, "stages": [stage.to_json() for stage in self.stages]}
        return {"name": self.name, **dataclasses.asdict(self.spec)}

    def replace(self, **changes: Any) -> Component:
        """A copy with changed fields; its label stays as the user wrote it."""
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, **changes))


def load(target: str) -> Any:
    """Import the object behind "module:object". Raises `UsageError` if this fails for any reason."""
    module, _, name = target.partition(":")
    watch(module)
    try:
        return getattr(import_module(module), name)
    except (MemoryError, PrivkitError):
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"cannot import {target}: {shortened(one_line(error, None))[1:-1]}; repair or uninstall the package that "
            "brings it"
        ) from error


@cache
def part_table(kind: str) -> Mapping[str, str]:
    """Name -> "module:object" for all parts of one kind, with entry points; privkit's own names take precedence."""
    if kind not in PART_TABLES:
        raise unknown("kind", kind, PART_TABLES)
    foreign = {entry.name: entry.value for entry in plug_ins(kind) if NAME.match(entry.name)}
    return {**foreign, **load(PART_TABLES[kind])}


def plug_ins(kind: str) -> Iterable[EntryPoint]:
    """The entry points of one kind; none for bounds, so that no installed package can lower an ε."""
    return () if kind in _OURS else entry_points(group=f"privkit.{kind}")


def distribution(kind: str, name: str) -> dict[str, str]:
    """The installed package whose entry point defines a part's name: package -> version; empty for privkit's parts."""
    distributions = (
        [] if name in load(PART_TABLES[kind]) else [entry.dist for entry in plug_ins(kind) if entry.name == name]
    )
    return {dist.name: dist.version for dist in distributions if dist is not None}


def parse(kind: str, given: str | Mapping[str, Any] | Sequence[Any]) -> Component:
    """Build a component (a part with its options, such as a defense) from text or from a TOML table.

    `given` is `name`, `name:key=value,key=value`, or a mapping with a "name" key; the name may be the import path of a
    user's own part, `module:object`. A defense may be a chain of stages: names joined by `+`, each with an optional
    place (client, mixer, server) after `@`; a list of stages; or a mapping with "stages". Raises `UsageError` for an
    unknown name or option, with the nearest names, and for a value that is not allowed.

    >>> parse("defenses", "batch_shuffle:keep=0.25").spec
    BatchShuffle(keep=0.25, variant='final_shuffle', frozen_block='auto')
    >>> parse("defenses", ["gaussian_noise:sigma=2", {"name": "scaling", "place": "client"}]).label
    'gaussian_noise:sigma=2.0+scaling@client'
    """
    if kind == "defenses" and (stages := stages_given(given)) is not None:
        return _chain([_parsed(kind, stage) for stage in stages])
    return _parsed(kind, given)


def _parsed(kind: str, given: Any) -> Component:
    singular = kind_noun(kind)
    if kind == "models" and is_pair(given):
        return _imported(given)
    name, options = name_and_options(kind, given)
    if is_own_name(name, part_table(kind)):
        default = own(kind, name)
    elif name in part_table(kind):
        default = load(part_table(kind)[name])
    else:
        raise unknown(singular, name, part_table(kind))
    if kind == "defenses":
        options = _placed(name, default, options)
    filtered = kind == "datasets" and "classes" in options.keys() - getattr(default, "__dataclass_fields__", {}).keys()
    classes = options.pop("classes") if filtered else None
    spec = specify(singular + " " + name, default, options)
    if filtered:
        spec = _with_classes(f"dataset {name}", spec, classes)
    if is_own_name(name, part_table(kind)):
        _must_be_savable(name, spec)
    changed = {
        f.name: getattr(spec, f.name)
        for f in dataclasses.fields(spec)
        if getattr(spec, f.name) != getattr(default, f.name, MISSING)
    }
    place = f"@{changed.pop('place')}" if kind == "defenses" and "place" in changed else ""
    text = ",".join(f"{key}={as_written(value)}" for key, value in changed.items())
    return Component(name=name, spec=spec, label=":".join(filter(None, [name, text])) + place)


def _must_be_savable(name: str, spec: Any) -> None:
    """Raise `UsageError` for an option of a user's own part whose value JSON, and so a run's results, cannot hold."""
    for key, value in dataclasses.asdict(spec).items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise UsageError(
                f"option {key} of {name} is a {type(value).__name__}; use text, numbers, true or false, or lists"
            ) from None


def name_and_options(kind: str, given: Any) -> tuple[str, dict[str, Any]]:
    """Split a part, given as text or as a table, into its name and options; a chain of defenses is not allowed."""
    singular = kind_noun(kind)
    if isinstance(given, str):
        return read_part(given, placed=kind == "defenses")
    if not isinstance(given, Mapping):
        raise UsageError(f"a {singular} is a name or a table, got {shortened(given)}")
    options = dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UsageError(f"a {singular} given as a table needs a name, got {shortened(dict(given))}")
    return name, options


def _with_classes(what: str, spec: Any, classes: object) -> Any:
    from privkit.domains.chosen import with_classes

    try:
        return with_classes(spec, classes)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None


def stages_given(given: Any) -> list[Any] | None:
    """Split a chain of defenses into its stages, each as the user wrote it; None if there is no chain.

    >>> stages_given("gaussian_noise:sigma=1e+1+masking:keep=.2@server")
    ['gaussian_noise:sigma=1e+1', 'masking:keep=.2@server']
    """
    if isinstance(given, Mapping) and "stages" in given:
        if extra := sorted(map(str, given.keys() - {"stages", "name"})):
            raise UsageError(f"a chain has no options of its own; move {', '.join(extra)} to one of its stages")
        given = given["stages"]
        if not isinstance(given, list | tuple):
            raise UsageError(f"stages is a list of defenses, got {shortened(given)}")
    if isinstance(given, str):
        stages = re.split(r"\+(?=[A-Za-z_@]|$)", given)
        return stages if len(stages) > 1 else None
    return list(given) if isinstance(given, list | tuple) else None


def read_part(given: str, *, placed: bool = False) -> tuple[str, dict[str, Any]]:
    """Split `name:key=value,…` into name and options; with `placed`, a final `@place` becomes the option `place`.

    >>> read_part("masking:keep=.2@client", placed=True)
    ('masking', {'keep': 0.2, 'place': 'client'})
    """
    body, at, place = given.rpartition("@") if placed and "@" in given else (given, "", "")
    name, text = with_options(body) or body.partition(":")[::2]
    options = read_options(given, text)
    return name, options | {"place": place} if at else options


def _placed(name: str, default: Any, options: dict[str, Any]) -> dict[str, Any]:
    if "place" not in options or any(field.name == "place" for field in dataclasses.fields(default)):
        return options
    place = options.pop("place")
    if place != default.place:
        raise UsageError(f"{name} runs at the {default.place} only, got place={shortened(place)}; leave the place out")
    return options


def _chain(stages: Sequence[Component]) -> Component:
    from privkit.defenses.chain import Chain

    if len(stages) == 1:
        return stages[0]
    try:
        spec = Chain(stages=tuple(stage.spec for stage in stages))
    except ValueError as error:
        raise UsageError(f"defense {'+'.join(stage.label for stage in stages)}: {error}") from None
    return Component(name=spec.name, spec=spec, label="+".join(stage.label for stage in stages), stages=tuple(stages))


def specify(what: str, template: Any, options: Mapping[str, Any]) -> Any:
    """Build a frozen dataclass from `template` (its class, or an instance with default values) and options by name.
    Raises `UsageError`, in which `what` names the part, for an unknown option or a value that is not allowed."""
    from pydantic import TypeAdapter, ValidationError

    cls = template if isinstance(template, type) else type(template)
    if not dataclasses.is_dataclass(cls):
        raise UsageError(f"{what} is not a dataclass, as a part of a run must be; {_REPAIR}")
    try:
        types = get_type_hints(cls)
    except NameError as error:
        raise UsageError(f"{what}: its annotations cannot be read: {error}; {_REPAIR}") from None
    fields = [field.name for field in dataclasses.fields(cls)]
    values = {}  # in the field's type, so that 1 and 1.0 give the same specification
    for key, value in options.items():
        if key not in fields:
            raise unknown(f"option of {what}", str(key), fields)
        if value == "none" and type(None) in get_args(types[key]) and str not in get_args(types[key]):
            value = None  # TOML has no null
        try:
            values[key] = _validated(TypeAdapter(types[key]), value)
        except ValidationError as error:
            found = error.errors()[0]
            reason = found["msg"].removeprefix("Input ")
            if found["type"] == "sequence_str":
                reason = f'must be a list, such as {key}=["{value}"]'
            if found["type"] == "is_instance_of" and isinstance(value, str):
                reason += ", which no text gives (annotate the field as str)"
            raise UsageError(f"{what}: {key} {reason}, got {shortened(value)}") from None
        if isinstance(value, int) and value.bit_length() > 63:
            raise UsageError(f"{what}: {key} must have at most 64 bits, got {shortened(value)}")
    unset = [f.name for f in dataclasses.fields(cls) if f.init and f.default is f.default_factory is MISSING]
    if isinstance(template, type) and (needed := [name for name in unset if name not in values]):
        raise UsageError(
            f"{what} needs {' and '.join(f'{name}=…' for name in needed)}; write "
            f"{what.rpartition(' ')[2]}:{','.join(f'{name}=VALUE' for name in needed)}"
        )
    try:
        return cls(**values) if isinstance(template, type) else dataclasses.replace(template, **values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{what}: {error}") from None


def _validated(adapter: Any, value: Any) -> Any:
    """A value in the type of its field; a list, which is all that the command line and TOML have, may be a tuple."""
    from pydantic import ValidationError

    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        if not isinstance(value, list) or not any(found["type"] == "tuple_type" for found in error.errors()):
            raise
    return adapter.validate_python(_as_tuple(value), strict=True)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def read_options(given: str, text: str, what: str = "") -> dict[str, Any]:
    """Read `key=value,key=value` with TOML values; a bare word is a string. Raises `UsageError` for unreadable options;
    the error quotes the whole text `given`, and names the setting `what`, if any."""
    form = f"{what} as key=value" if what else "options as name:key=value"
    options: dict[str, Any] = {}
    for part in filter(None, split_options(text)):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"cannot read {shortened(part)} in {shortened(given)}; write {form},key=value")
        options[key.strip()] = _value(value)
    return options


def split_options(text: str) -> list[str]:
    """Split a text at commas; a list in brackets stays whole."""
    return _COMMA.split(text)


def _value(text: str) -> Any:
    """The TOML value of a text, or the text itself if it is no TOML value."""
    try:
        parsed = parse_toml(f"v = {_BARE_POINT.sub('0.', text)}")
    except TooMuch as error:
        raise UsageError(f"cannot read the value {shortened(text)}: {error}") from None
    except TomlError:
        return text.strip()
    return parsed["v"] if set(parsed) == {"v"} else text.strip()


def as_written(value: Any) -> str:
    """Format an option's value as a user would write it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_written, value))}]"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def is_pair(given: object) -> bool:
    """Whether a model is given by the import paths of its two segments, such as mynets.Lower:mynets.Upper."""
    return isinstance(given, str) and "." in given.partition(":")[0] and with_options(given) is None


def _imported(given: str) -> Component:
    from privkit.models.imported import ImportedPair

    lower, colon, upper = given.partition(":")
    if not colon or "." not in upper:
        raise UsageError(
            f"{shortened(given)} is not a pair of segments; name both by import path, "
            "package.module.Lower:package.module.Upper"
        )
    return Component(name="imported", spec=ImportedPair(lower=lower, upper=upper), label=given)
