"""A noisy defense's rows name accuracy with and without noise, of the last and the best epoch, and what was unusual."""

from pathlib import Path
from typing import ClassVar

import pytest

import privkit
from privkit.templates.defense import Template
from tests.small import SMALL


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_row_names_noisy_and_noise_free_accuracy_of_both_epochs(tmp_path: Path) -> None:
    run = privkit.run_audit(
        **SMALL | {"budget": "smoke:epochs=2,validation=50"},
        defense=[
            "none",
            "bounded+gaussian_noise:sigma=5,noise_in_place=true+scaling:factor=.1,variant=undone",
            "bounded+gaussian_noise:sigma=5+masking:keep=.5,variant=logits",
        ],
        attack="mean_image",
        model="cnn",
        out=tmp_path,
    )
    plain, faulty, noisy = run.rows
    assert {row.status for row in run.rows} == {"done"}
    named = {f"accuracy_{epoch}_{kind}" for epoch in ("last", "best") for kind in ("noisy", "noise_free")}
    assert named.isdisjoint(plain.task)
    for row in (faulty, noisy):
        assert named < set(row.task)
        assert row.accuracy == row.task["accuracy_last_noisy"]
        assert row.certificate is not None
        assert row.certificate.kind == "differential_privacy"
    assert noisy.task["accuracy_last_noise_free"].value > noisy.task["accuracy_last_noisy"].value
    assert [sum("fault" in note for note in row.notes) for row in run.rows] == [0, 1, 0]
    assert any("scaling" in note and "released code for MNIST" in note for note in faulty.notes)


class Straight(Template):
    """A stage that trains by another gradient on purpose.

    Attributes:
        bound: as it was.
    """

    straight_through: ClassVar[bool] = True


@pytest.mark.usefixtures("no_report")
def test_a_row_says_that_training_goes_straight_through(tmp_path: Path) -> None:
    run = privkit.run_audit(**SMALL, defense=f"{__name__}:Straight", attack="mean_image", out=tmp_path / "run")
    told = "trains with a straight-through gradient, which is not the derivative of its release"
    assert [sum(told in note for note in row.notes) for row in run.rows] == [0, 1]
