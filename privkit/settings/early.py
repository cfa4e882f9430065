"""Names, options and values that are not allowed, refused before torch is imported: the sources are only read."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Mapping
from dataclasses import make_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import privkit
from privkit.constraints import Checked
from privkit.errors import unknown
from privkit.files.import_path import with_options
from privkit.parts.own_parts import is_own
from privkit.parts.registry import TABLES, named, read_options, specify, stages_given
from privkit.settings.quick_attacks import AUTO
from privkit.settings.same_domain import check_same_domain, reads_another

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
_LIGHT = ("annotated_types", "collections.abc", "privkit.constraints", "typing")
"""Modules of which annotations are made, and that are imported in no time."""


def check(settings: Mapping[str, Any]) -> None:
    """Refuse unknown names of parts, unknown options and their values, as `registry.parse` does later and more slowly.

    What cannot be told from the sources (a plug-in's options, rules between options) is left to that.

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
        _check_domains(settings, training.get("augment", "none"))


def _check_domains(settings: Mapping[str, Any], augment: str) -> None:
    """Dataset, model and what else reads records must be of one domain, where the sources of privkit's parts say it."""
    dataset, domain = _of_domain("datasets", settings.get("dataset"))
    if domain is None:
        return
    model, read = _of_domain("models", settings.get("model"))
    if read not in (None, "any", domain):
        fitting = [name for name, target in own_table("models").items() if constant(target, "domain") == domain]
        raise reads_another(model, read, dataset, domain, fitting)
    auxiliary, features = settings.get("auxiliary"), settings.get("features") or []
    check_same_domain(
        dataset,
        domain,
        auxiliary=str(auxiliary),
        other=_of_domain("datasets", auxiliary)[1] or domain,
        augment=augment,
        features=[features] if isinstance(features, str) else features,
    )


def _of_domain(kind: str, given: Any) -> tuple[str, str | None]:
    """The name of a dataset or model, and its domain; None for one that is not privkit's."""
    name = "" if given is None or _own_modules(kind, given) else named(kind, given)[0]
    target = own_table(kind).get(name)
    return name, None if target is None else constant(target, "domain")


def constant(target: str, name: str) -> Any:
    """A literal in the body of privkit's own "module:object", or of its nearest base that has one; None without it.

    >>> constant("privkit.models.vit:VIT_MICRO", "domain")
    'images'
    """
    found = _class(target)
    if found is None:
        return None
    for line in found[1].body:
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.value, ast.Constant)
            and ast.unparse(line.target) == name
        ):
            return line.value.value
    above = (constant(base, name) for base in _bases(*found) if base)
    return next((value for value in above if value is not None), None)


def _check_part(setting: str, kind: str, given: Any) -> None:
    """One part, or the stages of a chain: its name, then its options."""
    if setting == "defense" and (stages := stages_given(given)) is not None:
        for stage in stages:
            _check_part(setting, kind, stage)
        return
    if given is None:
        return
    if _own_modules(kind, given):
        return
    name, options = named(kind, given)
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


def _own_modules(kind: str, given: Any) -> bool:
    """Whether a model is a user's own two modules."""
    lower = given.partition(":")[0] if kind == "models" and isinstance(given, str) else ""
    return "." in lower and with_options(given) is None


def _check_options(what: str, target: str, options: Mapping[str, Any]) -> None:
    """The names of options, where the class tells its fields, and values whose annotation needs no torch."""
    known = fields(target)
    if not known:
        return
    for key in options:
        if key not in known:
            raise unknown(f"option of {what}", str(key), known)
    told = [(name, hint) for name, hint in known.items() if name in options and hint is not None]
    bases = (Checked,) if _derives(target, "Checked") else ()
    specify(what, make_dataclass("Told", told, bases=bases, kw_only=True), {name: options[name] for name, _ in told})


@cache
def fields(target: str) -> dict[str, Any] | None:
    """The dataclass fields of privkit's own "module:object", read from the source; None if it hides them.

    Returns:
        Name -> annotation, None if that needs an import.

    >>> sorted(fields("privkit.defenses.batch_shuffle:BatchShuffle"))
    ['frozen_block', 'keep', 'variant']
    """
    found = _class(target)
    if found is None:
        return None
    module, node = found
    inherited = [fields(base) if base else None for base in _bases(module, node)]
    if None in inherited:
        return None
    own = {
        line.target.id: _evaluated(module, line.annotation)
        for line in (node.body if "dataclass" in map(_called, node.decorator_list) else ())
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and not ast.unparse(line.annotation).startswith("ClassVar")
    }
    return {name: hint for names in (*inherited, own) for name, hint in (names or {}).items()}


def _class(target: str) -> tuple[str, ast.ClassDef] | None:
    """The class of "module:object", or of which the object is made, and its module; None if it is not privkit's."""
    module, _, name = target.partition(":")
    if not module.startswith("privkit."):
        return None
    for node in _source(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            call = node.value
            home = _home(module, call.func) if isinstance(call, ast.Call) else None
            return _class(home) if home else None
    return None


def _called(decorator: ast.expr) -> str:
    """The name of a decorator, with or without arguments."""
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _bases(module: str, node: ast.ClassDef) -> list[str | None]:
    """The bases of a class as "module:object"; None for one that is no plain name. Those of typing have no fields."""
    homes = [_home(module, base) for base in node.bases]
    return [home for home in homes if home is None or home.partition(":")[0] not in ("abc", "typing")]


def _derives(target: str, name: str) -> bool:
    """Whether a class of privkit's has a base of this name, however far above it."""
    found = _class(target)
    if found is None:
        return False
    bases = [base for base in _bases(*found) if base]
    return any(base.endswith(f":{name}") or _derives(base, name) for base in bases)


def _home(module: str, name: ast.expr) -> str | None:
    """Where what is named in a module is defined, as "module:object": there, or where it is imported from."""
    if not isinstance(name, ast.Name):
        return None
    return _imports(module).get(name.id, f"{module}:{name.id}")


@cache
def _imports(module: str) -> dict[str, str]:
    """What a module imports by name: name -> "module:name"; the first import of a name counts."""
    imports = [node for node in ast.walk(_source(module)) if isinstance(node, ast.ImportFrom)]
    names = [(alias.asname or alias.name, node.module) for node in imports for alias in node.names]
    return {name: f"{home}:{name}" for name, home in reversed(names)}


def _evaluated(module: str, annotation: ast.expr) -> Any:
    """An annotation of one of privkit's modules; None if it names what only an import of torch would give."""
    known: dict[str, Any] = {}
    nodes = list(ast.walk(annotation))
    marks = {node.func for node in nodes if isinstance(node, ast.Call)}  # such as Untuned(), which bounds no value
    for name in (node for node in nodes if isinstance(node, ast.Name)):
        home = _home(module, name) or ""
        there, _, called = home.partition(":")
        if there in _LIGHT:
            known[called] = getattr(import_module(there), called)
        elif not hasattr(builtins, called):
            known[called] = (lambda *_: None) if name in marks else _alias(there, called)
            if known[called] is None:
                return None
    return eval(compile(ast.Expression(annotation), module, "eval"), known)


def _alias(module: str, name: str) -> Any:
    """What an annotation's name stands for, such as `Size = Annotated[int, Ge(1), Le(1024)]`; None if it is a class."""
    for node in _source(module).body if module.startswith("privkit.") else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return _evaluated(module, node.value)
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
