"""A stage starts over where its saved state is at fault, and only there."""

from pathlib import Path

import pytest

from privkit.audit.defended import or_anew


@pytest.mark.parametrize("message", ["can't allocate memory: you tried to allocate 8 bytes", "CUDA out of memory"])
def test_a_state_outlives_memory_that_runs_out(tmp_path: Path, message: str) -> None:
    saved, told = tmp_path / "training.ckpt", list[str]()
    saved.write_text("epochs of work")

    def stage() -> None:
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="memory"):
        or_anew(stage, saved, told.append)
    assert saved.read_text() == "epochs of work"
    assert told == []


def test_a_state_of_another_stage_is_removed(tmp_path: Path) -> None:
    saved, told = tmp_path / "training.ckpt", list[str]()
    saved.write_text("of another network")

    def stage() -> str:
        if saved.exists():
            raise KeyError("weight")
        return "begun anew"

    assert or_anew(stage, saved, told.append) == "begun anew"
    assert len(told) == 1
