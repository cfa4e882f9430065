"""Names and options that do not exist, refused before torch is imported: the sources are read and not imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import privkit
from privkit.errors import unknown
from privkit.import_path import with_options
from privkit.own_parts import is_own
from privkit.quick_attacks import AUTO
from privkit.registry import TABLES, read_options, read_part, stages_given

SETTINGS = {
    "defense": "defenses",
    "attack": "attacks",
    "dataset": "datasets",
    "model": "models",
    "protocol": "protocols",
    "partition": "partitions",
}
"""Setting -> the kind of its parts."""
_TRAINING = "privkit.training.spec:TrainingSpec"


def check(settings: Mapping[str, Any]) -> None:
    """Refuse unknown names of parts and unknown options, as `registry.parse` does later and more slowly.

    What cannot be told from the sources (a plug-in's options, a value's type) is left to that.

    Raises:
        UsageError: with the nearest name that exists.

    >>> check({"defense": ["none", "batch_shuffle:kep=0.5"]})
    Traceback (most recent call last):
    privkit.errors.UsageError: unknown option of defense batch_shuffle 'kep'; did you mean 'keep'? (allowed: ...)
    """
    for setting, kind in SETTINGS.items():
        given = settings.get(setting)
        for part in given if isinstance(given, list | tuple) else [given]:
            if part in ("all", AUTO) and setting == "attack":
                continue
            _check_part(setting, kind, part)
    auxiliary = settings.get("auxiliary")
    if auxiliary not in ("disjoint", "training"):
        _check_part("dataset", "datasets", auxiliary)
    training = settings.get("training")
    if isinstance(training, str):
        training = read_options(training, training, "training")
    if isinstance(training, Mapping):
        _check_options("training", _TRAINING, training)


def _check_part(setting: str, kind: str, given: Any) -> None:
    """One part, or the stages of a chain: its name, then its options."""
    if setting == "defense" and (stages := stages_given(given)) is not None:
        for stage in stages:
            _check_part(setting, kind, stage)
        return
    if isinstance(given, str):
        if kind == "models" and "." in given.partition(":")[0] and with_options(given) is None:  # a user's own modules
            return
        name, options = read_part(given, placed=setting == "defense")
    elif isinstance(given, Mapping) and isinstance(given.get("name"), str):
        options = dict(given)
        name = options.pop("name")
    else:  # absent, or of a wrong type
        return
    own = own_table(kind)
    if is_own(name, own):
        return
    if name not in own:
        foreign = {entry.name for entry in entry_points(group=f"privkit.{kind}")}
        if name not in foreign:
            raise unknown(setting, name, {*own, *foreign})
    elif options:
        if setting == "dataset":
            options.pop("classes", None)  # every dataset has it, beside its fields
        if setting == "defense":
            _check_part("protocol", "protocols", options.pop("protocol", None))
            if options.get("place") is not None and "place" not in (fields(own[name]) or ()):
                options.pop("place")  # the registry compares it with the one place of the defense
        _check_options(f"{setting} {name}", own[name], options)


def _check_options(what: str, target: str, options: Mapping[str, Any]) -> None:
    """The names of options, where the class tells its fields."""
    known = fields(target)
    for key in options if known else ():
        if key not in known:  # type: ignore[operator]
            raise unknown(f"option of {what}", str(key), known or ())


def fields(target: str) -> frozenset[str] | None:
    """Names of the dataclass fields of privkit's own "module:object", read from the source; None where it hides them.

    >>> sorted(fields("privkit.defenses.batch_shuffle:BatchShuffle"))
    ['frozen_block', 'keep', 'variant']
    """
    module, _, name = target.partition(":")
    if not module.startswith("privkit."):
        return None
    tree = _source(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            inherited = [_inherited(module, tree, base) for base in node.bases]
            if None in inherited:
                return None
            own = {
                line.target.id
                for line in (node.body if "dataclass" in map(_called, node.decorator_list) else ())
                if isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and not ast.unparse(line.annotation).startswith("ClassVar")
            }
            return frozenset(own.union(*(names or () for names in inherited)))
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            call = node.value
            return _inherited(module, tree, call.func) if isinstance(call, ast.Call) else None
    return None


def _called(decorator: ast.expr) -> str:
    """The name of a decorator, with or without arguments."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _inherited(module: str, tree: ast.Module, base: ast.expr) -> frozenset[str] | None:
    """Fields of a class that is named in a module, defined there or imported from another of privkit's."""
    if not isinstance(base, ast.Name):
        return None
    if any(isinstance(node, ast.ClassDef) and node.name == base.id for node in tree.body):
        return fields(f"{module}:{base.id}")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == base.id for alias in node.names):
            if (node.module or "").split(".")[0] == "privkit":
                return fields(f"{node.module}:{base.id}")
            return frozenset() if node.module in ("abc", "typing") else None
    return None


def own_table(kind: str) -> Mapping[str, str]:
    """A table of the registry, name -> "module:object"; where it is imported already, with what a program added."""
    module, _, name = TABLES[kind].partition(":")
    return getattr(sys.modules[module], name) if module in sys.modules else _literal(kind)


@cache
def _literal(kind: str) -> dict[str, str]:
    """A table of the registry as its source has it."""
    module, _, name = TABLES[kind].partition(":")
    for node in _source(module).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and ast.unparse(node.target) == name:
            return dict(ast.literal_eval(node.value))
    raise AssertionError(f"{TABLES[kind]} is no table of literals")


@cache
def _source(module: str) -> ast.Module:
    """The syntax tree of one of privkit's modules; finding it by the import system would import its package."""
    place = Path(privkit.__file__).parent.joinpath(*module.split(".")[1:])
    path = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
    return ast.parse(path.read_text(encoding="utf-8"))
