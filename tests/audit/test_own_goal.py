"""An attack of a user's own may have a goal of its author's own: one object, which no table of privkit's names."""

from pathlib import Path

import pytest

from privkit import run_audit
from privkit.cli.estimate import preview
from privkit.settings.resolve import resolve
from tests.small import SMALL

OWN = '''
from dataclasses import dataclass
from typing import ClassVar

import torch

from privkit.attacks.base import Mounting, Observation, Scores
from privkit.attacks.goals import Goal
from privkit.audit.goals.goal import AuditGoal


@dataclass(frozen=True, kw_only=True)
class Seats(Goal, AuditGoal):
    def ask(self, context):
        seen = Observation(image_shape=(1, 8, 8), batch_size=context.round_size, views=context.recording.views[:1])
        scores = context.attack.run(seen, context.generator())
        return context.row.model_copy(update={"answers": context.told(scores, scores.examples % 2 == 0)})


GOAL = Seats(observation=Observation, controls=lambda attack, seed, seen: ())


@dataclass(frozen=True, kw_only=True)
class EvenSeats:
    """Knows the answer."""

    name: ClassVar[str] = "even_seats"
    goal: ClassVar[str] = "seats_goal:GOAL"
    needs: ClassVar[frozenset[str]] = frozenset()
    uses: ClassVar[frozenset[str]] = frozenset()
    mounting: ClassVar[Mounting] = Mounting()

    def run(self, observation, generator, session=None):
        rows = torch.arange(len(observation.views[0].smashed))
        return Scores(values=(rows % 2 == 0).double(), examples=rows)
'''


@pytest.mark.slow
def test_an_own_goal_is_asked_gated_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seats_goal.py").write_text(OWN)
    (tmp_path / "seats_attack.py").write_text("from seats_goal import EvenSeats as Attack\n")
    monkeypatch.syspath_prepend(tmp_path)
    *lines, _ = preview(resolve({"attack": "seats_attack:Attack", "defense": "none", **SMALL})).splitlines()
    assert [line.split("  ")[1].startswith("about ") for line in lines] == [True]
    run = run_audit(
        attack="seats_attack:Attack", defense="batch_shuffle", gate="auc<=0.9", out=tmp_path / "run", **SMALL
    )
    (row,) = (one for one in run.rows if one.defense == "batch_shuffle")
    assert (row.status, row.answers["auc"].value) == ("done", 1.0)
    assert "seats_goal" in row.provenance.code
    assert [check.met for check in run.verdict.checks if check.kind == "gate"] == [False]
