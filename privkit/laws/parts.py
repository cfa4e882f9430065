"""Tests a part (defense, attack, …) against its laws: those of its kind, and those of all kinds (options, JSON, …)."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from privkit.attacks.outputs import BadOutput
from privkit.constraints import allowed
from privkit.errors import DataError, PrivkitError, UsageError, one_line, unknown
from privkit.files.import_path import faults_of, imported
from privkit.parts.entries import meanings_of, text_of
from privkit.parts.own_parts import is_own_name, kind_noun, kinds_of
from privkit.parts.registry import Component, is_pair, load, parse, part_table, read_part, stages_given

KINDS_WITH_LAWS = ("defenses", "attacks", "datasets", "models", "metrics")  # kinds of parts that have laws
_SHORTEST = 20  # characters of a docstring's first line


def _is_frozen(component: Component, kind: str) -> str:
    parameters = getattr(type(component.spec), "__dataclass_params__", None)
    return "" if parameters is not None and parameters.frozen else "make it a @dataclass(frozen=True, kw_only=True)"


def _is_documented(component: Component, kind: str) -> str:
    """Check that the docstring's first line describes the part, and that each option is explained."""
    spec = component.spec
    text = text_of(spec).partition("\n")[0]
    if len(text) < _SHORTEST or text_of(spec) == inspect.cleandoc(object.__doc__ or ""):
        return f"give its class a docstring whose first line says what it is, in {_SHORTEST} characters or more"
    meanings = meanings_of(type(spec))
    silent = [field.name for field in dataclasses.fields(spec) if field.name not in meanings]
    return f"say under Attributes: what {', '.join(silent)} means" if silent else ""


def _ranges_are_declared(component: Component, kind: str) -> str:
    words = allowed(type(component.spec))
    numbers = [
        field.name
        for field in dataclasses.fields(component.spec)
        if isinstance(getattr(component.spec, field.name), int | float) and field.name not in words
    ]
    if numbers:
        return f"annotate {', '.join(numbers)} with a range, such as privkit.constraints.Positive"
    return ""


def _survives_json(component: Component, kind: str) -> str:
    fields = json.loads(json.dumps(component.to_json()))
    given = {key: value for key, value in fields.items() if value is not None}
    return "" if parse(kind, given).spec == component.spec else "its options as JSON give another part"


EVERY: dict[str, Callable[[Component, str], str]] = {
    "it is a frozen dataclass": _is_frozen,
    "its docstring says what it is": _is_documented,
    "its numbers have ranges": _ranges_are_declared,
    "its options survive JSON": _survives_json,
}
"""The laws of parts of all kinds."""


def kind_of(given: str) -> str:
    """Find the kind of a part, such as "defenses" or "models", from its name on the command line. Raises `UsageError`
    if the part fits no kind or several kinds."""
    if stages_given(given) is not None:
        return "defenses"
    if is_pair(given):
        return "models"
    name, _ = read_part(given, placed=True)
    own = is_own_name(name, {name for kind in KINDS_WITH_LAWS for name in part_table(kind)})
    kinds = (
        kinds_of(imported("the part", name)) if own else [kind for kind in KINDS_WITH_LAWS if name in part_table(kind)]
    )
    if len(kinds) == 1:
        return kinds[0]
    singular = [kind_noun(kind) for kind in kinds]
    if kinds:
        raise UsageError(f"{name} may be a {' or a '.join(singular)}; add --kind {singular[0]} or {singular[1]}")
    if own:
        raise UsageError(
            f"{name} is not a part; privkit new KIND NAME writes one ({', '.join(map(kind_noun, KINDS_WITH_LAWS))})"
        )
    raise unknown("part", name, {name for kind in KINDS_WITH_LAWS for name in part_table(kind)}, "privkit list")


def laws(given: str, kind: str, dataset: str | None = None, root: Path | None = None) -> Iterator[tuple[str, str]]:
    """Test a part, written as on the command line, against the laws of its kind (one of `KINDS_WITH_LAWS`). Yields
    pairs: a law, and a sentence on how the part breaks it (empty if it does not). A model is tested on records of
    `dataset`; if this is None, on images of usual sizes. `root` is the folder of official datasets."""
    component = parse(kind, given)
    if not is_pair(given):  # a class of privkit describes a pair of segments
        yield from _held({law: partial(_on, of, kind) for law, of in EVERY.items()}, component)
    with faults_of(f"{kind_noun(kind)} {given}", component.spec):
        yield from _of_kind(component, kind, dataset, root)


def _of_kind(component: Component, kind: str, dataset: str | None, root: Path | None) -> Iterator[tuple[str, str]]:
    home = load(f"privkit.laws.{kind}:LAWS")
    if kind == "datasets":
        pools = component.spec.open(root, download=False, train_images=1)
        yield from _held(home, pools)
    elif kind == "models":
        from privkit.laws.models import fitting, gives_logits

        if dataset is None:
            domain = fitting(component.spec)
        else:
            domain, classes = _data(dataset, root)
            home = {law: partial(of, classes=classes) if of is gives_logits else of for law, of in home.items()}
        yield from _held({law: partial(_on, of, domain) for law, of in home.items()}, component.spec)
    elif kind == "attacks":
        from privkit.attacks.goals import goal_of
        from privkit.laws.attacks import Mounted

        reads = goal_of(component.spec).reads(component.spec)
        if reads and not {"images", "any"} & set(reads):
            read = " and ".join(reads)
            raise UsageError(
                f"{component.name} reads {read}, and laws mount attacks on images; audit it on its records"
            )
        yield from _held(home, Mounted(component.spec))
    elif kind == "defenses":
        from privkit.laws.defenses import called

        for law, broken in _held(home, component.spec):
            yield (law if broken else called(law, component.spec)), broken
    else:
        yield from _held(home, component.spec)


def _held(laws: dict[str, Callable[[Any], str]], part: Any) -> Iterator[tuple[str, str]]:
    """Yield each law with a sentence on how the part breaks it; an error that several laws meet is reported once."""
    from privkit.audit.contained import contained

    first: dict[str, str] = {}
    for law, broken in laws.items():
        try:
            with contained():
                how = broken(part)
            yield law, how
            continue
        except (MemoryError, DataError):
            raise
        except (PrivkitError, BadOutput) as error:
            told = str(error)
        except Exception as error:  # a user's part may raise anything
            told = f"it raised {one_line(error, None)}"
        yield law, f'not decided, as "{first[told]}" ended in the same error' if told in first else told
        first.setdefault(told, law)


def _on(law: Callable[[Any, Any], str], second: Any, part: Any) -> str:
    return law(part, second)


def _data(dataset: str, root: Path | None) -> tuple[Any, int]:
    import numpy as np

    spec = parse("datasets", dataset).spec
    with faults_of(f"dataset {dataset}", spec):
        pools = spec.open(root, download=False, train_images=1)
    return pools.train.take(np.arange(1)).domain, pools.classes
