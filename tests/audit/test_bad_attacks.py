"""What goes wrong with one attack stays in its row, with a reason; the other cells go on."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import AuditRun, run_audit

pytestmark = pytest.mark.usefixtures("no_report")
SETTINGS: dict[str, Any] = {
    "dataset": "tiny_digits",
    "budget": "smoke:private=200,auxiliary=200,test=100,victims=50,epochs=1,attack_epochs=1",
    "training": "batch_size=25",
    "threads": 1,
}


def rows(run: AuditRun) -> dict[str, tuple[str, str]]:
    return {row.attack: (row.status, row.reason) for row in run.rows}


@pytest.mark.slow
@pytest.mark.usefixtures("no_controls")
def test_a_gan_that_diverges_is_an_error_and_the_others_go_on(tmp_path: Path) -> None:
    attacks = ["fsha:learning_rate=1e30,epochs=1", "unsplit:epochs=1", "mean_image"]
    run = run_audit(defense="none", attack=attacks, out=tmp_path / "run", **SETTINGS)
    found = rows(run)
    assert run.exit_code == 3
    assert found["unsplit:epochs=1"] == found["mean_image"] == ("done", "")
    (status, reason), *_ = found.values()
    assert status == "error"
    assert "not finite" in reason
    assert "Traceback" not in reason


@pytest.mark.slow
@pytest.mark.usefixtures("no_controls")
def test_clients_whose_segments_differ_leave_no_white_box(tmp_path: Path) -> None:
    attacks = ["white_box", "unsplit", "jigsaw_white_box", "sdar:simulator=known", "black_box"]
    settings = {**SETTINGS, "training": "batch_size=12"}
    run = run_audit(defense="none", protocol="psl:clients=2", attack=attacks, out=tmp_path / "run", **settings)
    found = rows(run)
    assert found.pop("black_box") == ("done", "")
    for status, reason in found.values():
        assert status == "not_applicable"
        assert "lower" in reason


def test_too_few_images_for_one_attack_are_no_matter_of_the_others(tmp_path: Path) -> None:
    settings = {**SETTINGS, "budget": "smoke:private=200,auxiliary=60,test=100,victims=50,epochs=1,attack_epochs=1"}
    run = run_audit(defense="none", attack=["black_box", "canaries"], out=tmp_path / "run", **settings)
    found = rows(run)
    assert found["canaries"][0] == "done"
    assert found["black_box"][0] == "not_applicable"
    assert "need at least 100 auxiliary records, got 60" in found["black_box"][1]


@pytest.mark.usefixtures("no_controls")
def test_segments_without_weights_are_attacked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "weightless.py").write_text(
        "from torch import nn\n"
        "class Lower(nn.AvgPool2d):\n    def __init__(self):\n        super().__init__(2)\n"
        "class Upper(nn.Sequential):\n    def __init__(self, classes):\n"
        "        super().__init__(nn.Flatten(), nn.LazyLinear(classes))\n"
    )
    attacks = ["white_box:epochs=1", "unsplit", "sdar", "fsha:epochs=1", "black_box", "canaries:on=gradient"]
    run = run_audit(
        defense="none", model="weightless.Lower:weightless.Upper", attack=attacks, out=tmp_path / "run", **SETTINGS
    )
    found = rows(run)
    for name in ("white_box:epochs=1", "unsplit", "sdar", "black_box"):
        assert found[name] == ("done", "")
    for name in ("fsha:epochs=1", "canaries:on=gradient"):  # nothing learns, so nothing comes back
        assert found[name][0] == "not_applicable"
        assert "learn" in found[name][1]
