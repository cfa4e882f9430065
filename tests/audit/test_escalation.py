"""In an audit, an attack that fails goes on, and its row says how far, why it ended, and whether it has learned."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator

from privkit.attacks.base import Mounting, NoSession, Scores, Session
from privkit.attacks.fit import fit
from privkit.attacks.goals.labels import LabelObservation
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.inversion.ridge import Ridge
from privkit.attacks.labels.gradient_matching import GradientMatching
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "ended", "said"),
    [
        (0.02, " and won", (False, "attack not converged: the last doubling of its training lowered its own error")),
        (
            0.01,
            ", the largest work that is allowed (escalate)",
            (False, "attack not converged: it is no better than constant"),
        ),
        (0.0001, "; the last 2 doublings lowered the error by at most 5%", (None, "attack has not learned")),
    ],
)
def test_a_white_box_goes_on_in_cycles(tmp_path: Path, rate: float, ended: str, said: tuple[bool | None, str]) -> None:
    """From black images, with a step of three sizes.

    Over five seeds the errors at the end are .0266 (sd .0010), .155 (.0025) and .226 (.003), where the mean image has
    .0740 (.0026). The last doubling lowers the second by 24 % and the third by .1 %.
    """
    attack = f"white_box:epochs=1,start=zero,learning_rate={rate},total_variation=0,l2=0,order=known"
    row, at_budget = (
        again(tmp_path / str(most), defense="none", attack=attack, escalate=most)[0].rows[0] for most in (2, 0)
    )
    (note,) = [note for note in row.notes if note.startswith("the attack failed at its budget")]
    assert note.startswith("the attack failed at its budget, went on to 4 times its work (4 epochs, error ")
    assert note.endswith(ended)
    passed, detail = check(row)
    assert (passed, detail[: len(said[1])]) == said
    assert len(row.attack_curve) == 4
    assert row.attack_curve[:1] == at_budget.attack_curve
    assert row.queries == at_budget.queries
    assert check(at_budget) == (None, "attack has not learned: it is no better than constant guesses")


@dataclass(frozen=True, kw_only=True)
class SlowOnLabels:
    """Scores all rows alike, and after eight epochs by the gradients that came back."""

    name: ClassVar[str] = "slow_on_labels"
    goal: ClassVar[str] = "labels"
    needs: ClassVar[frozenset[str]] = GradientMatching.needs
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[Mounting[LabelObservation, Scores]] = Mounting()
    positive: int = 1
    epoch: int = -1
    epochs: int = 2
    late: ClassVar[int] = 8

    def run(self, observation: LabelObservation, draws: Generator, session: Session | None = None) -> Scores:
        found = GradientMatching().run(observation, draws)
        curve = fit(Curve([1.0] * 100), self.epochs, session or NoSession())
        if len(curve) >= self.late:
            return found
        return replace(found, values=torch.zeros_like(found.values), of_labels=None)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("late", "auc", "ended"), [(8, 1.0, " and won"), (99, 0.5, "by at most 5%")])
def test_an_attack_on_labels_goes_on_until_it_tells_more_than_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, auc: float, ended: str
) -> None:
    registered(monkeypatch, SlowOnLabels)
    monkeypatch.setattr(SlowOnLabels, "late", late)
    audit = {"defense": "none", "attack": "slow_on_labels", "escalate": 3}
    (row,) = again(tmp_path, **audit)[0].rows
    assert row.answers["auc"].value == pytest.approx(auc, abs=0.01)
    (note,) = [note for note in row.notes if note.startswith("the attack failed at its budget")]
    assert note.startswith(
        "the attack failed at its budget, went on to 4 times its work (8 epochs, error 0.5000, 0.5000"
    )
    assert note.endswith(ended)
