"""In an audit, an attack that fails goes on, and its row says how far, why it ended, and whether it has learned."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator

from privkit.attacks.base import Mounting, NoSession, Session
from privkit.attacks.fit import fit
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.inversion.ridge import Ridge
from privkit.reports.schema import Row
from tests.attacks.test_fit import Curve
from tests.audit.audits import again, registered

pytestmark = pytest.mark.usefixtures("no_report", "no_controls")


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Draws images of noise, and after eight epochs what a ridge regression reads off the release."""

    name: ClassVar[str] = "slow"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = Ridge.needs
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[ImageMounting] = Mounting()
    late: ClassVar[int] = 8

    def run(self, observation: ImageObservation, draws: Generator, session: Session | None = None) -> Reconstruction:
        found = Ridge(epochs=0, components=64).run(observation, draws).images
        curve = fit(Curve([1.0] * 100), 2, session or NoSession())
        images = found if len(curve) >= self.late else torch.rand(found.shape, generator=draws)
        return Reconstruction(images=images, curve=curve)


def audited(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Row:
    registered(monkeypatch, Slow)
    few = "smoke:private=60,auxiliary=120,test=40,victims=30"
    (row,) = again(folder, defense="none", attack="slow", budget=few, training="batch_size=10", **changes)[0].rows
    return row


def check(row: Row) -> tuple[bool | None, str]:
    return next((check.passed, check.detail) for check in row.checks if check.name == "converged")


def test_it_goes_on_until_it_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, at_budget = (audited(tmp_path / str(most), monkeypatch, escalate=most) for most in (3, 0))
    assert len(row.attack_curve) == 8
    assert any("went on to 4 times its work (8 epochs" in note and note.endswith("and won") for note in row.notes)
    assert check(row)[1].startswith("convergence not judged")
    assert row.queries == at_budget.queries  # the same queries were asked again, and count once
    assert len(at_budget.attack_curve) == 2
    assert check(at_budget) == (None, "attack has not learned: it is no better than constant guesses")


def test_what_never_wins_has_not_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "late", 1000)
    row = audited(tmp_path, monkeypatch, escalate=5)
    assert any("the last 2 doublings lowered the error by at most 5%" in note for note in row.notes)
    assert len(row.attack_curve) == 8
    assert check(row) == (None, "attack has not learned: it is no better than constant guesses")
