"""The provenance of a run's numbers: versions, source revision, device and threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import privkit
from privkit.reports.schema import Manifest, PlannedCell, Provenance
from privkit.run.plan import plan
from privkit.run.sources import own_source
from privkit.settings.config import AuditConfig

_PACKAGES = {name: name for name in ("torch", "torchvision", "timm", "numpy", "scipy")}
_PACKAGES |= {"scikit-image": "skimage", "scikit-learn": "sklearn"}
"""The libraries that compute in an audit -> what they are imported as."""

_MOST_THREADS = 8


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
        argv=tuple(sys.argv),
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
