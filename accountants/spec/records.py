"""Specifications as JSON and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from privkit.accountants.spec import mechanism, mixing, parts, secrets, sensitivity

_CLASSES: dict[str, type[Any]] = {
    cls.kind: cls
    for module in (sensitivity, mixing, parts, secrets, mechanism)
    for cls in vars(module).values()
    if isinstance(cls, type) and hasattr(cls, "kind")
}
"""`kind` in JSON -> class, for every specification of these modules."""


def to_json(spec: object) -> Any:
    """A specification `spec` as nested dicts and lists of JSON types. The key `kind` of each dict names its class."""
    if is_dataclass(spec) and not isinstance(spec, type):
        kind: str = spec.kind  # type: ignore[attr-defined]
        return {"kind": kind} | {field.name: to_json(getattr(spec, field.name)) for field in fields(spec)}
    if isinstance(spec, tuple):
        return [to_json(part) for part in spec]
    return spec


def from_json(value: Any) -> Any:
    """Rebuild a specification from its JSON form `value`, which `to_json` gives. Its values are checked again; an
    unknown kind or field, a missing field or an invalid value raises ValueError."""
    if isinstance(value, list):
        return tuple(from_json(part) for part in value)
    if not isinstance(value, dict):
        return value
    rest = dict(value)
    kind = rest.pop("kind", None)
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise ValueError(f"unknown kind {kind!r} (allowed: {', '.join(sorted(_CLASSES))})")
    cls = _CLASSES[kind]
    known = {field.name for field in fields(cls)}
    if unknown := sorted(set(rest) - known):
        raise ValueError(f"{kind} has no field {unknown[0]!r} (allowed: {', '.join(sorted(known))})")
    try:
        return cls(**{name: from_json(part) for name, part in rest.items()})
    except TypeError as error:  # a field that is required is missing
        raise ValueError(f"{kind}: {error}") from error
