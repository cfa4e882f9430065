"""Where a run's numbers come from: versions, source revision, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import privkit
from privkit.config import AuditConfig
from privkit.grid import plan
from privkit.reports.schema import Manifest, PlannedCell

PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-image", "scikit-learn", "mlxtend", "safetensors")
MOST_THREADS = 8


def default_threads() -> int:
    """CPU threads of a new run: all that this process may use, at most eight."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, usable)


def manifest(config: AuditConfig, *, device: str, threads: int) -> Manifest:
    """Describe a run before it starts; the datasets' hashes are added as they are read."""
    return Manifest(
        privkit=privkit.__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=tuple(sys.argv),
        config=config.answers(),
        fingerprint=config.fingerprint,
        git=git_revision(),
        packages={name: found for name in PACKAGES if (found := _version(name))},
        hardware=hardware(device),
        threads=threads,
        seeds=config.seeds,
        cells=tuple(
            PlannedCell(
                cell=cell.id, model=cell.model_id, defense=cell.defense.label, attack=cell.attack.label, seed=cell.seed
            )
            for cell in plan(config)
        ),
    )


def hardware(device: str) -> dict[str, str | int | float | None]:
    """Processor, memory, accelerator and system."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "device": device,
        "accelerator": name,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(_memory() / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def git_revision() -> dict[str, str | bool | None]:
    """Commit of privkit's own checkout and whether it was changed; None for an installed wheel."""
    home = Path(privkit.__file__).resolve().parent.parent
    if not (home / ".git").exists():
        return {"commit": None, "dirty": None}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(home), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _version(package: str) -> str | None:
    """Installed version, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> int:
    """Physical memory in bytes, 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
