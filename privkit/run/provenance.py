"""The provenance of a run's numbers: code, data, versions, source revision, device and threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import privkit
from privkit.attacks.scores.image import IMAGE_METRICS
from privkit.files.observed import hash_file
from privkit.metrics.perception import Perception
from privkit.parts.registry import Component, distribution, part_table
from privkit.reports.schema import Manifest, PlannedCell, Provenance
from privkit.run.plan import Cell, plan
from privkit.run.sources import files_read, own_source, sources
from privkit.settings.config import AuditConfig

_PACKAGES = {name: name for name in ("torch", "torchvision", "timm", "numpy", "scipy")}
_PACKAGES |= {"scikit-image": "skimage", "scikit-learn": "sklearn"}
"""The libraries that compute in an audit -> what they are imported as."""

_MOST_THREADS = 8
_TRAINED_ON = ("private", "validation", "test")  # data from which a defended model and its accuracy are computed


def default_threads() -> int:
    """Number of CPU threads of a new run: OMP_NUM_THREADS, or all that this process may use; at most eight."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said) > 0:
        return min(_MOST_THREADS, int(said))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_THREADS, usable)


def manifest(config: AuditConfig, *, threads: int) -> Manifest:
    """Make the manifest that describes a run, before the run starts."""
    return Manifest(
        privkit=privkit.__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=tuple(word.encode("utf-8", "backslashreplace").decode() for word in sys.argv),  # a path may be no UTF-8
        config=config.answers(),
        settings=dict(config.settings),
        fingerprint=config.fingerprint,
        threads=threads,
        seeds=config.seeds,
        cells=tuple(
            PlannedCell(
                cell=cell.id,
                model=cell.model_id,
                defense=cell.defense.label,
                attack=cell.attack.label,
                seed=cell.seed,
                twin_of=cell.twin_of,
            )
            for cell in plan(config)
        ),
    )


def circumstances(device: str, threads: int) -> Provenance:
    """The provenance that all numbers of this process share: versions of privkit and libraries, device, threads."""
    from privkit.training.distributed import joined_processes

    packages = {
        "privkit": f"{privkit.__version__}, source {own_source()[:12]}",
        "python": platform.python_version(),
        **{name: number for name, module in _PACKAGES.items() if (number := _version(name, module))},
    }
    if device == "cuda":
        import torch

        device = f"cuda, {torch.cuda.get_device_name()}"
    together, system = joined_processes()[1], f"{platform.system()} {platform.machine()}"
    return Provenance(
        packages=packages,
        machine={"device": device, "threads": str(threads), **({"processes": str(together)} if together > 1 else {})},
        noted={"commit": _git_revision(), "processor": _processor(), "system": system},
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of installed packages, given by their import names; packages without a distribution are left out."""
    names = set(packages)
    known = _distributions(tuple((entry, _changed(entry)) for entry in sys.path)) if names else {}
    return {name: number for top in names for name in known.get(top, ()) if (number := _version(name, top))}


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@cache
def _distributions(path: tuple[tuple[str, int], ...]) -> Mapping[str, list[str]]:
    return packages_distributions()


@cache
def _git_revision() -> str:
    """The commit of privkit's own checkout, and whether files were changed; "none" for an installed wheel."""
    home = Path(privkit.__file__).resolve().parent.parent
    if not (home / ".git").exists():
        return "none"

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(home), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    return f"{commit or 'unknown'}{', with changes' if changes else ''}"


def _version(package: str, module: str) -> str | None:
    try:
        installed = version(package)
    except PackageNotFoundError:
        return None
    loaded = getattr(sys.modules.get(module), "__version__", None)
    if not isinstance(loaded, str) or loaded == installed:
        return installed
    if loaded.partition("+")[0] == installed.partition("+")[0]:
        return str(loaded) if package == "torch" else installed  # torch.__version__ names the build, such as +cpu
    return f"{loaded} loaded, {installed} installed"


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


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
        files = {name: made_of.files | files_read(made_of) for name, made_of in vars(self).items()}
        return Ingredients(**{name: getattr(self, name).model_copy(update={"files": files[name]}) for name in files})


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
    if config.other is not None:
        looks = _joined(looks, _part("datasets", config.other))
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
    """Names of the modules that define a specification, its bases, its fields, and the objects that it imports."""
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
