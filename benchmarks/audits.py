"""Audits of one defense without the undefended model and without control experiments, each attack with its CPU time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

from privkit.audit.goals.context import AttackContext
from privkit.audit.run import run_audit
from privkit.reports.schema import Row
from privkit.run.progress import Progress
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve


class _Clock(Progress):
    """CPU seconds of each stage of a run, by its name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name, self._start = "", process_time()

    def stage(self, name: str, unit: str = "epochs") -> None:
        """The stage before it is over."""
        self.seconds[self._name] = process_time() - self._start
        self._name, self._start = name, process_time()


def defended(settings: Mapping[str, Any], seed: int) -> AuditConfig:
    """The configuration of these settings for one seed and the last defense, without the undefended model."""
    config = resolve(settings)
    return replace(config, defenses=config.defenses[-1:], seeds=(seed,))


def timed_rows(config: AuditConfig, out: Path) -> list[tuple[Row, float]]:
    """Run an audit: each row with the CPU seconds of its attack. Control experiments are left out, since they take
    longer than an attack and change no guess."""
    clock = _Clock()
    with patch.object(AttackContext, "controls", lambda context, mount, **of: ()):
        rows = run_audit(config, out=out, progress=clock).rows
    clock.stage("")
    stages = [f"attack {row.attack} on {row.defense}, seed {row.seed}" for row in rows]
    return [(row, clock.seconds.get(stage, 0.0)) for row, stage in zip(rows, stages, strict=True)]
