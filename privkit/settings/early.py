"""Early checks of names, options and values against the index in `parts.json`, before torch is imported."""

from __future__ import annotations

import json
import math
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import annotated_types

from privkit import constraints
from privkit.errors import unknown
from privkit.parts.own_parts import is_own_name
from privkit.parts.registry import PART_TABLES, is_pair, name_and_options, read_options, specify, stages_given
from privkit.settings.quick_attacks import AUTO
from privkit.shared.own_records import OF_THE_DATASET

PART_SETTINGS = {
    "defense": "defenses",
    "attack": "attacks",
    "dataset": "datasets",
    "model": "models",
    "protocol": "protocols",
    "partition": "partitions",
}
"""Setting -> the kind of its parts."""
INDEX = Path(__file__).with_name("parts.json")
"""The index file: kind -> name -> `target` (module:object), `checked` (whether it is a `Checked`), and `fields`, which
has for each option the text of its annotation, None if that needs torch. A test compares the file with the parts, and
says how to write it again."""
_WORDS = {"Named": constraints.Named, "Sequence": Sequence, "inf": math.inf, "isfinite": math.isfinite} | {
    name: value for module in (typing, annotated_types) for name, value in vars(module).items()
}
"""Words in the annotations of the index -> what they mean."""


def check_parts(settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for unknown names, options and values of parts (defenses, attacks, …), without importing them.

    `registry.parse` later checks plug-ins' options and rules between options, too.
    """
    for setting, kind in PART_SETTINGS.items():
        given = settings.get(setting)
        for part in given if isinstance(given, list | tuple) else [given]:
            if part not in ("all", AUTO) or setting != "attack":
                _check_part(setting, kind, part)
    auxiliary = settings.get("auxiliary")
    if auxiliary not in OF_THE_DATASET:
        _check_part("dataset", "datasets", auxiliary)
    training = settings.get("training")
    if isinstance(training, str):
        training = read_options(training, training, "training")
    if isinstance(training, Mapping):
        _check_options("training", indexed()["training"]["training"], training)


def own_table(kind: str) -> Mapping[str, str]:
    """A table of the registry, name -> "module:object", with a user's additions if the table's module is imported."""
    module, _, name = PART_TABLES[kind].partition(":")
    if module in sys.modules:
        table: Mapping[str, str] = getattr(sys.modules[module], name)
        return table
    return {part: entry["target"] for part, entry in indexed()[kind].items()}


@cache
def indexed() -> dict[str, dict[str, dict[str, Any]]]:
    """The parsed index file `parts.json`."""
    parts: dict[str, dict[str, dict[str, Any]]] = json.loads(INDEX.read_text(encoding="utf-8"))
    return parts


def _annotation(text: str) -> Any:
    """Evaluate the text of a type annotation, as stored in the index of parts.

    >>> _annotation("Annotated[float, Gt(gt=0)] | None")
    typing.Optional[typing.Annotated[float, Gt(gt=0)]]
    """
    return eval(text, dict(_WORDS))


def _check_part(setting: str, kind: str, given: Any) -> None:
    """Check one part (a defense, attack, …), or the stages of a chain: first the name, then the options."""
    if setting == "defense" and (stages := stages_given(given)) is not None:
        for stage in stages:
            _check_part(setting, kind, stage)
        return
    if given is None or (kind == "models" and is_pair(given)):
        return
    name, options = name_and_options(kind, given)
    own = own_table(kind)
    if is_own_name(name, own):
        return
    if name not in own:
        foreign = {entry.name for entry in entry_points(group=f"privkit.{kind}")}
        if name not in foreign:
            raise unknown(setting, name, {*own, *foreign})
        return
    entry = indexed()[kind].get(name)
    if entry is None or entry["target"] != own[name]:  # newer than the index, or registered by a running program
        return
    if setting == "dataset":
        options.pop("classes", None)  # every dataset has this option, which is no field
    if setting == "defense":
        _check_part("protocol", "protocols", options.pop("protocol", None))
        if options.get("place") is not None and "place" not in entry["fields"]:
            options.pop("place")  # such a defense has one fixed place, with which the registry compares the option
    _check_options(f"{setting} {name}", entry, options)


def _check_options(what: str, entry: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check the names of options, and the values whose annotation the index has."""
    fields = entry["fields"]
    for key in options:
        if key not in fields:
            raise unknown(f"option of {what}", str(key), fields)
    known = [(name, _annotation(fields[name])) for name in fields if name in options and fields[name]]
    bases = (constraints.Checked,) if entry["checked"] else ()
    specify(what, make_dataclass("Known", known, bases=bases, kw_only=True), {name: options[name] for name, _ in known})
