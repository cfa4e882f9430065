"""Differences of two configurations, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def config_differences(
    old: Any, new: Any, *, called: tuple[str, str] = ("there", "here"), prefix: str = ""
) -> Iterator[str]:
    """Each field in which two configurations differ, with both values.

    Args:
        old: fields of a configuration, from a manifest.
        called: names for the old and the new one.
        prefix: the field that contains these.

    >>> old = {"delta": 1e-5, "defenses": [{"name": "none"}, {"name": "mixup", "group": 2}]}
    >>> new = {"delta": 1e-6, "defenses": [{"name": "none"}, {"name": "mixup", "group": 4}]}
    >>> list(config_differences(old, new))
    ['defenses.group: 2 there, 4 here', 'delta: 1e-05 there, 1e-06 here']
    """
    there, here = called
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                inner = f"{prefix}.{key}" if prefix else str(key)
                yield from config_differences(old.get(key), new.get(key), called=called, prefix=inner)
        return
    if isinstance(old, list) and isinstance(new, list):
        gone, come = [part for part in old if part not in new], [part for part in new if part not in old]
        if len(gone) == len(come) == 1 and _short(gone) == _short(come):
            yield from config_differences(gone[0], come[0], called=called, prefix=prefix)
            return
        said = [f"{_short(parts)} only {where}" for where, parts in ((there, gone), (here, come)) if parts]
        if said:
            yield f"{prefix}: {', '.join(said)}"
            return
    yield f"{prefix}: {_short(old)} {there}, {_short(new)} {here}"


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, dict) and "name" in part for part in value):
        value = [part["name"] for part in value]
    return json.dumps(value)
