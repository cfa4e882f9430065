"""Domains (descriptions of records) as JSON, for files that other programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens
from privkit.errors import shortened

_DOMAINS: Mapping[str, type[Images] | type[Tokens] | type[Tables]] = {
    domain.name: domain for domain in (Images, Tokens, Tables)
}


def domain_to_json(domain: Domain) -> dict[str, Any]:
    """Convert a domain (the description of one kind of record) to a JSON object of its name and fields."""
    return {"name": domain.name, **asdict(domain)}  # type: ignore[call-overload]  # every domain is a dataclass


def domain_from_json(given: Any) -> Domain:
    """Rebuild a domain from the object of `domain_to_json`; a `ValueError` names a missing, unknown or wrong field."""
    named = dict(given) if isinstance(given, dict) else {}
    name = named.pop("name", None)
    domain = _DOMAINS.get(name) if isinstance(name, str) else None
    if domain is None:
        raise ValueError(f"name must be one of {', '.join(_DOMAINS)}, got {shortened(name)}")
    known = [field.name for field in fields(domain)]
    if strangers := sorted(set(named) - set(known)):
        raise ValueError(f"{shortened(strangers[0])} is not a field of {name}, which have {', '.join(known)}")
    try:
        return TypeAdapter(domain).validate_json(json.dumps(named), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        said = f"{said[:1].lower()}{said[1:]}"
        raise ValueError(f"{where}: {said}" if where else said) from None
