"""Describes the differences between two configurations in phrases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def config_differences(old: Any, new: Any, *, called: tuple[str, str] = ("there", "here")) -> Iterator[str]:
    """Yield a phrase with both values for each field in which two configurations differ. `called` names the old and the
    new configuration. A recording's files, which occur in several fields, are named once."""
    old, new = (json.loads(json.dumps(value)) for value in (old, new))  # lists and tuples are one
    yield from dict.fromkeys(_differences(old, new, called, ""))


def _differences(old: Any, new: Any, called: tuple[str, str], prefix: str) -> Iterator[str]:
    there, here = called
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            before, after = old.get(key), new.get(key)
            if before != after and key == "sha256" and isinstance(before, dict) and isinstance(after, dict):
                yield f"recording: {', '.join(_files(before, after, called))}"
            elif before != after:
                yield from _differences(before, after, called, f"{prefix}.{key}" if prefix else str(key))
        return
    if isinstance(old, list) and isinstance(new, list):
        gone, come = [part for part in old if part not in new], [part for part in new if part not in old]
        if len(gone) == len(come) == 1 and _short(gone) == _short(come):
            yield from _differences(gone[0], come[0], called, prefix)
            return
        said = [f"{_short(parts)} only {where}" for where, parts in ((there, gone), (here, come)) if parts]
        if said:
            yield f"{prefix}: {', '.join(said)}"
            return
    yield f"{prefix}: {_short(old)} {there}, {_short(new)} {here}"


def _files(old: dict[str, str], new: dict[str, str], called: tuple[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            told = (f"{one.get(name, 'none')[:8]} {where}" for one, where in zip((old, new), called, strict=True))
            yield f"{name} ({', '.join(told)})"


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, dict) and "name" in part for part in value):
        value = [part["name"] for part in value]
    return json.dumps(value)
