"""Attacks on a recording get its last rounds, and these are sent again: earlier ones were made by other weights."""

from pathlib import Path

import pytest
import torch

from privkit.audit.declared import declared_by
from privkit.audit.run import run_audit
from privkit.recording.read import Recording, read_recording
from tests.recording.made import Half, written
from tests.small import generator

ROWS = 6
MOVED = {"builder": "tests.recording.made:Half"}
pytestmark = pytest.mark.usefixtures("no_report", "no_controls")


def recorded(folder: Path, factors: list[float], passes: int = 1) -> Recording:
    """A round for each factor, which `Half` of the last one is recorded for."""
    each = len(factors) // passes
    truth = torch.rand(each * ROWS, 1, 8, 8, generator=generator())
    rounds = {
        f"round_{number}.smashed": factor * truth.split(ROWS)[number % each] for number, factor in enumerate(factors)
    }
    fields = {"lower": MOVED, "rounds": len(factors), "passes": passes}
    return read_recording(written(folder, {**rounds, "truth.images": truth}, **fields), trust=["tests"])


def test_a_replay_covers_the_attacked_rounds(tmp_path: Path) -> None:
    found = recorded(tmp_path / "r", [0.3, 0.45, 0.5, 0.5])
    told = declared_by(found).doubt(1)
    assert (
        "round 1 of the 4 attacked ones, sent again in eval mode, differs by 0.67 of its size (more than 0.05)" in told
    )
    assert "its weights changed while rounds were recorded, so record fewer, or after the last step" in told
    assert "round 1 of the 3 attacked ones" in declared_by(found.within(victims=3 * ROWS, own=40)).doubt(1)
    assert declared_by(found.within(victims=2 * ROWS, own=40)).doubt(1) == ""
    assert "the last round, sent again" in declared_by(recorded(tmp_path / "last", [0.5, 0.4])).doubt(1)


def test_an_attack_reads_the_last_rounds(tmp_path: Path) -> None:
    """Undefended; the oldest rounds were made by weights of the other sign, so that no guess at them came near."""
    recorded(tmp_path / "r", [-0.5, -0.5, 0.5])
    run = run_audit(
        recorded=tmp_path / "r",
        attack="white_box:epochs=1",
        budget=f"smoke:victims={ROWS},auxiliary=40",
        trust=["tests"],
        threads=1,
        out=tmp_path / "run",
    )
    assert run.rows[0].recovered["unaligned"]["mse"].value < 0.01
    assert (
        "1 of 3 recorded rounds were attacked, the last ones, because the budget has no more victims"
        in run.rows[0].notes
    )


def test_passes_are_read_from_the_last_one(tmp_path: Path) -> None:
    found = recorded(tmp_path / "r", [0.3, 0.3, 0.5, 0.5], passes=2)
    read = found.last_passes(2)
    assert [view.round for view in read] == [0, 1, 2, 3]
    assert all(
        torch.equal(read[number].smashed, found.views[other].smashed) for number, other in enumerate((2, 3, 0, 1))
    )
    assert len(found.last_passes(1)) == 2
    assert declared_by(found).doubt(1) == ""
    assert "round 1 of the 4 attacked ones" in declared_by(found).doubt(2)
    last = found.within(victims=ROWS, own=40)
    assert torch.equal(last.views[0].smashed, found.views[1].smashed)
    assert torch.equal(last.views[1].smashed, found.views[3].smashed)
    assert torch.equal(Half()(last.truth.x), last.views[1].smashed)
