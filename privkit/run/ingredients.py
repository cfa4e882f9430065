"""The provenance (code, data, versions, device) of each model, control experiment and result of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from privkit.attacks.scores.image import IMAGE_METRICS
from privkit.files.observed import hash_file
from privkit.metrics.perception import Perception
from privkit.parts.registry import Component, distribution, parse, part_table
from privkit.reports.schema import Provenance
from privkit.run.plan import Cell
from privkit.run.provenance import versions
from privkit.run.sources import files_read, sources
from privkit.settings.config import AuditConfig
from privkit.shared.own_records import OF_THE_DATASET

_TRAINED_ON = ("private", "validation", "test")  # data from which a defended model and its accuracy are computed


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """The provenance of one cell (defense, attack, seed), of its model, and of its control experiments."""

    model: Provenance  # provenance of the defended model
    control: Provenance  # provenance of the attack's control experiments
    cell: Provenance  # provenance of the result row: model, attack and metrics

    def on(self, images: Mapping[str, str]) -> Ingredients:
        """A copy that includes the data; `images` has the SHA-256 of each part of the data."""
        model = {part: images[part] for part in _TRAINED_ON if part in images}
        return Ingredients(
            model=self.model.model_copy(update={"data": model}),
            control=self.control.model_copy(update={"data": dict(images)}),
            cell=self.cell.model_copy(update={"data": dict(images)}),
        )

    def seen(self) -> Ingredients:
        """A copy with the files that the code of model, attack and metrics was observed to read in this process."""
        each = (self.model, self.control, self.cell)
        made = [made_of.model_copy(update={"files": made_of.files | files_read(made_of)}) for made_of in each]
        return Ingredients(model=made[0], control=made[1], cell=made[2])


def ingredients(
    config: AuditConfig, cells: Sequence[Cell], perception: Perception, here: Provenance
) -> dict[str, Ingredients]:
    """The provenance of each cell (defense, attack, seed), without data: cell id -> hashes of code and files, and
    `here`, which all results of this process share. Raises `UsageError` if a user's module was edited since its import.
    """
    shared = [("datasets", config.dataset), ("models", config.model)]
    shared += [("protocols", config.protocol), ("partitions", config.partition)]
    base = _joined(here, *(_part(kind, component) for kind, component in shared))
    defenses = {d.label: _part("defenses", d) for d in config.defenses}
    attacks = {a.label: _part("attacks", a) for a in config.every_attack}
    looks = _joined(
        _code({metric.__module__ for metric in IMAGE_METRICS.values()}),
        Provenance(files=perception.contents(), packages=versions(perception.packages())),
        *(_part("metrics", metric) for metric in config.metrics),
    )
    if config.auxiliary not in OF_THE_DATASET:
        looks = _joined(looks, _part("datasets", parse("datasets", config.auxiliary)))
    if config.tune is not None:
        looks = _joined(looks, Provenance(packages=versions({"optuna"})))
    of_cells = {}
    for cell in cells:
        model, attack = _joined(base, defenses[cell.defense.label]), attacks[cell.attack.label]
        of_cells[cell.id] = Ingredients(model=model, control=_joined(here, attack), cell=_joined(model, attack, looks))
    return of_cells


def _part(kind: str, component: Component) -> Provenance:
    """The provenance of one named part, or of a chain's stages: source, plug-in and files."""
    if component.stages:
        return _joined(*(_part(kind, stage) for stage in component.stages))
    path = component.name if ":" in component.name else ""
    target = part_table(kind).get(component.name, path).partition(":")[0]
    code = _code({*_modules(component.spec), *filter(None, [target])})
    plugin = distribution(kind, component.name)
    files = {} if kind == "datasets" else _files(component.spec)  # a dataset's images count, not their folder
    return code.model_copy(update={"packages": code.packages | plugin, "files": code.files | files})


def _code(modules: set[str]) -> Provenance:
    """The source files outside privkit, the weights that they name, and the installed packages that they import."""
    outside = sources(modules)
    return Provenance(code=outside.code, files=outside.files, packages=versions(outside.installed))


def _modules(spec: Any) -> Iterator[str]:
    """Names of the modules of a specification, of its bases and fields, and of the objects that it imports."""
    imports = getattr(spec, "imports", None)
    if callable(imports):
        yield from imports()
    yield from (base.__module__ for base in type(spec).__mro__)
    module, colon, _ = str(getattr(spec, "goal", "")).partition(":")  # an attack's own goal
    yield from [module] if colon else []
    for field in fields(spec) if is_dataclass(spec) else ():
        value = getattr(spec, field.name)
        if is_dataclass(value):
            yield from _modules(value)
        elif callable(value) and isinstance(getattr(value, "__module__", None), str):
            yield value.__module__


def _files(spec: Any) -> dict[str, str]:
    values = [getattr(spec, field.name) for field in fields(spec)] if is_dataclass(spec) else []
    named = [Path(value) for value in values if isinstance(value, str | Path)]
    named += spec.files() if callable(getattr(spec, "files", None)) else []
    paths = [path for path in named if path.suffix or len(path.parts) > 1]
    return {str(path): hash_file(path) for path in paths if path.is_file()}


def _joined(first: Provenance, *others: Provenance) -> Provenance:
    together = {name: dict(getattr(first, name)) for name in Provenance.model_fields}
    for other in others:
        for name, values in together.items():
            values |= getattr(other, name)
    return Provenance(**together)
