"""Imports a user's own part: checks its attributes, and accepts a function that returns a dataset or a model."""

from __future__ import annotations

from collections.abc import Container
from types import FunctionType
from typing import Any

from privkit.errors import UsageError, shortened
from privkit.files.import_path import imported, with_options

_CONTRACTS: dict[str, tuple[str, ...]] = {
    "defenses": ("apply", "effects", "place", "on_gradient", "noiseless", "storages"),
    "attacks": ("run", "goal", "needs", "uses", "mounting"),
    "datasets": ("open", "domain"),
    "models": ("build", "domain"),
    "metrics": ("__call__", "name", "higher_is_closer"),
}
"""Kind of parts -> attributes that a user's own object of this kind must have."""
_FUNCTIONS = {"datasets": "privkit.domains.images.own:FromFunction", "models": "privkit.models.imported:FromFunction"}
"""Kind of parts -> the class that makes a part of a user's own function."""


def kind_noun(kind: str) -> str:
    """The singular noun for a kind of parts, such as "defense" for "defenses"."""
    return {"defenses": "defense"}.get(kind, kind.removesuffix("s"))


def is_own_name(name: str, names: Container[str]) -> bool:
    """Whether a name is the import path of a user's own part, rather than one of the registered `names`. Raises
    `UsageError` for a registered name that is followed by unreadable options."""
    registered, colon, rest = name.partition(":")
    if colon and registered in names:
        raise UsageError(
            f"cannot read {shortened(rest)} in {shortened(name)}; write options as name:key=value,key=value"
        )
    return bool(colon) and with_options(name) == (name, "")


def kinds_of(target: object) -> list[str]:
    """The kinds of parts (such as "defenses") to which a user's object can belong."""
    if isinstance(target, FunctionType):
        return list(_FUNCTIONS)
    kinds = [kind for kind, names in _CONTRACTS.items() if all(hasattr(target, name) for name in names)]
    return kinds or ["models"] * _is_module(target)  # one of a model's two segments; `own` names the missing one


def _is_module(target: object) -> bool:
    from torch.nn import Module

    return isinstance(target, Module) or (isinstance(target, type) and issubclass(target, Module))


def own(kind: str, path: str) -> Any:
    """Import a user's own part: a dataclass, or an instance whose field values are the defaults. Raises `UsageError` if
    the object lacks an attribute that parts of this kind must have."""
    singular = kind_noun(kind)
    if kind not in _CONTRACTS:
        raise UsageError(f"a {singular} has no import path, got {path}; privkit list {kind} names those that there are")
    target = imported(f"the {singular}", path)
    if isinstance(target, FunctionType) and kind in _FUNCTIONS:
        return imported("the specification", _FUNCTIONS[kind])(function=path)
    lacking = [name for name in _CONTRACTS[kind] if not hasattr(target, name)]
    if lacking and kind == "models" and _is_module(target):
        module, _, name = path.partition(":")
        raise UsageError(
            f"{path} is one torch module, and a split model is two; name both as {module}.{name}:{module}.Upper, or "
            "name a function that returns both"
        )
    if lacking:
        article = "an" if singular[0] in "aeiou" else "a"
        why = ", since it is a function and no class" if isinstance(target, FunctionType) else ""
        raise UsageError(
            f"{path} is not {article} {singular}: it has no {', '.join(lacking)}{why}; privkit new {singular} NAME "
            "writes one to start from"
        )
    return target
