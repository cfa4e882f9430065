"""What progress prints where there is no terminal."""

import pytest

from privkit.run.progress import Lines


def test_a_stage_is_counted_in_its_own_unit(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Lines()
    progress.stage("controls of black_box", unit="experiments")
    progress.step(1, 2)
    progress.step(2, 2)
    progress.stage("train none")
    progress.step(3, 3, 0.5)
    controls, training = capsys.readouterr().err.splitlines()
    assert controls.startswith("controls of black_box: 2 experiments, ")
    assert training.startswith("train none: 3 epochs, 0.5000, ")
