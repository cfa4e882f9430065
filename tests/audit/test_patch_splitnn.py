"""A whole audit of Patch SplitNN+ with dropped patches, whose adversary holds one storage of four."""

from pathlib import Path

import pytest

from privkit import run_audit


@pytest.mark.slow
def test_an_audit_with_dropped_patches_and_one_storage_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privkit.audit.run.build", lambda folder, *rest: folder)  # no page
    run = run_audit(
        dataset="tiny_digits",
        model="patch_splitnn:depth=20,patch=4,stride=4,drop=0.5,adaptation=shared",
        budget="smoke:private=50,auxiliary=100,test=25,victims=25,epochs=1,attack_epochs=1",
        training="batch_size=25,optimizer=sgd,momentum=0.9,weight_decay=0.0005,learning_rate=0.05",
        defense="split_parts:parts=4",
        attack=["white_box:epochs=0"],
        parts=["part_3"],
        out=tmp_path / "run",
    )
    baseline, split = run.rows
    assert (baseline.status, split.status) == ("done", "done")
    assert (baseline.parts, split.parts) == ((), ("part_3",))
    assert any("the adversary holds part_3 of" in note for note in split.notes)
    held, everything = (row.recovered["unaligned"]["mse"].value for row in (split, baseline))
    assert everything < 0.9 * held  # a ridge regression on every patch's maps sees more than on one's
