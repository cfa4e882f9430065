"""A row says if its accuracy is of test images that are sent without the defense, and if a partition has no effect."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from tests.small import SMALL


@pytest.mark.usefixtures("no_report", "no_controls")
@pytest.mark.parametrize(
    ("defense", "clear"),
    [
        ("vanilla_cutout", "vanilla_cutout"),
        ("gaussian_noise:at_inference=false+patch_shuffle", "gaussian_noise"),
        ("gaussian_noise", ""),
        ("nopeek", ""),
    ],
)
def test_accuracy_without_the_defense_is_said(defense: str, clear: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {**SMALL, "defense": defense, "attack": "mean_image"}
    given["budget"] = "smoke:private=60,auxiliary=60,test=50,victims=50,epochs=0"
    row = run_audit(out=tmp_path / "run", **given).rows[-1]
    said = [note for note in row.notes if note.startswith("accuracy is measured on test images sent without")]
    assert said == [f"accuracy is measured on test images sent without {clear}; attacks read releases with it"] * (
        clear != ""
    )


@pytest.mark.usefixtures("no_report", "no_controls")
@pytest.mark.parametrize(("protocol", "count"), [("sl", 1), ("psl:clients=2", 0)])
def test_a_partition_of_one_clients_records_is_noted(protocol: str, count: int, tmp_path: Path) -> None:
    given: dict[str, Any] = {**SMALL, "defense": "none", "attack": "mean_image", "protocol": protocol}
    given |= {"partition": "dirichlet", "budget": "smoke:private=60,auxiliary=60,test=50,victims=50,epochs=0"}
    (row,) = run_audit(out=tmp_path / "run", **given).rows
    said = "partition=dirichlet has no effect, since one client holds all records; use more clients"
    assert sum(note.startswith(said) for note in row.notes) == count
