"""Short audits that can be repeated in one folder, and attacks that are registered for one test only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from privkit.attacks.base import Mounting
from privkit.attacks.goals.reconstruct import ImageMounting
from privkit.audit.run import AuditRun, run_audit
from privkit.parts.registry import Component, parse
from privkit.run.progress import Progress
from tests.small import SMALL


class Notes(Progress):
    """Progress that keeps its notes and stages, so that a test can read them."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, name: str, unit: str = "epochs") -> None:
        self.stages.append(name)


def again(folder: Path, **changes: Any) -> tuple[AuditRun, Notes]:
    notes = Notes()
    return run_audit(out=folder, progress=notes, **{"defense": "batch_shuffle", **SMALL, **changes}), notes


def registered(monkeypatch: pytest.MonkeyPatch, attack: type) -> None:
    """Register an attack under its name during a test."""
    name: str = attack.name  # type: ignore[attr-defined]

    def parse_too(kind: str, given: Any) -> Component:
        return Component(name=name, spec=attack(), label=name) if given == name else parse(kind, given)

    monkeypatch.setattr("privkit.settings.resolve.parse", parse_too)
    monkeypatch.setattr("privkit.settings.early.check_parts", lambda settings: None)  # it knows registered names only


@dataclass(frozen=True, kw_only=True)
class Odd:
    """An attack that does what a test gives its class as `run`."""

    name: ClassVar[str]
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)
