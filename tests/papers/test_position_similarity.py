"""Fig. 5 of patch shuffling, from the models of a run."""

from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from privkit.audit.run import AuditRun
from privkit.cli.app import app
from privkit.papers.patch_shuffling.figures import of_run, position_similarity


def papers(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["papers", *arguments])


def test_the_undefended_model_of_a_run_is_drawn(small_run: AuditRun, tmp_path: Path) -> None:
    done = papers("patch_shuffling", "--figures", str(tmp_path), "--results", str(small_run.folder))
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"position_similarity.png", "position_similarity.svg"}
    axis = of_run(small_run.folder)["position_similarity"]().axes[0]
    cosines = np.asarray(axis.images[0].get_array(), float)
    assert axis.get_title() == "none, seed 0"  # shuffled tokens have no positions
    assert cosines.shape == (20, 20)  # sixteen maps of four by four, each with a gap behind it
    assert np.nanmax(cosines) <= 1 + 1e-6
    assert np.allclose([cosines[5 * i + i, 5 * j + j] for i in range(4) for j in range(4)], 1)


def test_every_map_is_of_its_token_against_all() -> None:
    rows = np.eye(4, dtype=np.float32)
    (panel, _) = position_similarity({"a": rows}).axes
    picture = np.asarray(panel.images[0].get_array(), float)
    assert np.nansum(picture) == 4  # each is like itself alone
    assert np.array_equal(picture[[0, 0, 4, 4], [0, 4, 0, 4]], np.ones(4))


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    wrong = {
        ("patch_shuffling", "--figures", "x"): "draws the models of a run",
        ("patch_shuffling", "--figures", "x", "--results", str(tmp_path)): "is not a run folder",
        ("dp_cutmixsl", "--figures", "x", "--results", str(tmp_path)): "draws no figure of a run",
    }
    for arguments, message in wrong.items():
        assert message in str(papers(*arguments).exception)
