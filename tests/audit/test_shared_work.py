"""Cells of one run share what their attacks learn alike, and each row stands as if its cell had run alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.attacks.order.token_reading import Asker
from privkit.audit.run import AuditRun, run_audit
from privkit.audit.seed_data import prepare
from privkit.settings.resolve import resolve
from tests.small import SMALL

JIGSAW, PASSES = "jigsaw:epochs=1,kicks=1", "jigsaw:epochs=1,kicks=1,passes=2"


def test_a_copy_of_the_records_remembers_nothing() -> None:
    data = prepare(resolve({"defense": "patch_shuffle", "attack": "mean_image", **SMALL}), 0, torch.device("cpu"))
    data.memory.keep("known", 1, 0.0)
    assert data.memory.recall("known") == 1
    assert data.copied().memory.recall("known") is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_the_second_jigsaw_answers_and_counts_as_it_would_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, ask = [0], Asker.round

    def counted(self: Asker, images: torch.Tensor) -> torch.Tensor:
        rounds[0] += 1
        return ask(self, images)

    monkeypatch.setattr(Asker, "round", counted)

    def run(*attacks: str) -> tuple[AuditRun, int]:
        before = rounds[0]
        given: dict[str, Any] = {**SMALL, "attack": list(attacks), "budget": "smoke:auxiliary=200", "escalate": 0}
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return run_audit(defense="batch_shuffle:frozen_block=false", out=folder, **given), rounds[0] - before

    (both, shared), (alone, rounds_alone) = run(JIGSAW, PASSES), run(PASSES)
    row, own = both.rows[-1], alone.rows[-1]
    assert row.attack == own.attack == PASSES
    assert (row.status, row.recovered, row.queries) == ("done", own.recovered, own.queries)
    assert [check.detail for check in row.checks] == [check.detail for check in own.checks]
    assert shared < 1.5 * rounds_alone
