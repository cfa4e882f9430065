"""Audits of recordings whose records have several labels each: what wins, what fails, and what cannot be mounted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from privkit.audit.export import export
from privkit.audit.run import run_audit
from privkit.errors import UsageError
from privkit.recording.recorder import Recorder
from privkit.reports.schema import Row
from privkit.shared.interval import clopper_pearson
from tests.audit.test_recorded import same
from tests.audit.test_several_labels import SMALL
from tests.recording.made import written
from tests.recording.test_several import FACTS
from tests.small import generator

ROWS, ROUNDS, OWN = 40, 3, 60
pytestmark = pytest.mark.usefixtures("no_report", "no_controls")


def recorded(folder: Path, seed: int = 0, told: int = 0) -> None:
    """Rounds whose returned gradients are longer for records with label 1.

    Labels of the seed `told`, unless it is 0, are recorded in the place of these.
    """
    draws, size = generator(seed), ROWS * ROUNDS
    facts = torch.randint(2, (size, 3), generator=draws)
    known = torch.randint(2, (size, 3), generator=generator(told)) if told else facts
    lower, upper = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), nn.Linear(8, 3)
    with torch.no_grad():
        for weight in (*lower.parameters(), *upper.parameters()):
            weight.copy_(torch.randn(weight.shape, generator=draws) / 8)
    recorder = Recorder()
    for label, y in zip(facts[:, 1:2].split(ROWS), known.split(ROWS), strict=True):
        x = torch.rand(ROWS, 1, 8, 8, generator=draws)
        released = recorder(lower(x), x=x, y=y)
        released.backward((1 + label) * torch.randn(ROWS, 8, generator=draws).sign())
    own, of_own = torch.rand(OWN, 1, 8, 8, generator=draws), torch.randint(2, (OWN, 3), generator=draws)
    recorder.save(folder, name="none", own=own, own_labels=of_own, lower=lower, upper=upper)


def rows(folder: Path, *attacks: str) -> dict[str, Row]:
    settings: dict[str, Any] = {"budget": f"smoke:victims={ROWS * ROUNDS},auxiliary={OWN}", "threads": 1}
    run = run_audit(recorded=folder / "r", attack=list(attacks), out=folder / "run", **settings)
    return {row.attack: row for row in run.rows}


def test_what_reads_one_label_a_record_says_so_and_the_rest_runs(tmp_path: Path) -> None:
    recorded(tmp_path / "r")
    one = "reads one label per record, and these records have several each"
    server = "it computes cross-entropy with the server's segment, but these images have several labels each"
    expected = {
        "release_clustering": f"release_clustering {one}",
        "exploit": f"exploit {one}",
        "release_clustering:named_by=likeness": "release_clustering:named_by=likeness needs images of its own with one",
        "gradient_matching": server,
        "sdar": server,
        "label_leak": "",
        "label_leak:positive=3": "positive=3 is not a label: there are 3 classes",
        "nearest_record": "",
    }
    found = rows(tmp_path, *expected)
    assert found.keys() == expected.keys()
    for name, reason in expected.items():
        assert found[name].status == ("not_applicable" if reason else "done")
        assert found[name].reason.startswith(reason), (name, found[name].reason)
    notes = found["label_leak"].notes
    assert "each record has 3 labels: the attack asked whether label 1 is among them" in notes
    assert any(note.startswith("no class mean (records have several labels each)") for note in notes)
    assert "class_mean" not in found["nearest_record"].floors


def test_the_label_that_gradients_tell_is_read_and_another_is_not(tmp_path: Path) -> None:
    """Of a label that they do not tell, AUC has standard deviation 0.05 over 120 records."""
    recorded(tmp_path / "r")
    found = rows(tmp_path, "label_leak:positive=1", "label_leak:positive=2")
    told, untold = (row.answers["auc"].value for row in found.values())
    assert told == 1
    assert 0.3 < untold < 0.7


def test_true_labels_reach_no_attack(tmp_path: Path) -> None:
    """Other labels beside the same rounds change no score."""
    stored = []
    for told in (0, 7):
        home = tmp_path / str(told)
        recorded(home / "r", told=told)
        (row,) = rows(home, "label_leak:positive=2").values()
        stored.append(np.load(home / "run" / "cells" / row.cell / "scores.npz"))
    assert np.array_equal(stored[0]["values"], stored[1]["values"])
    assert not np.array_equal(stored[0]["positive"], stored[1]["positive"])


def test_a_classifier_of_one_label_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "r")
    with pytest.raises(UsageError, match="names one class an image, and these records have several labels each"):
        run_audit(
            recorded=tmp_path / "r", attack="nearest_record", features="classifier", out=tmp_path / "run", threads=1
        )


@pytest.mark.parametrize(
    ("labels", "right", "of"), [(None, 15, 22), (FACTS, 15, 22), (FACTS, 46 / 3, 22), (None, 613, 700)]
)
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_the_interval_of_a_recorded_accuracy_is_that_of_the_run(
    labels: Tensor | None, right: float, of: int, precision: torch.dtype, tmp_path: Path
) -> None:
    """The share 15 / 22, times 22, is a little below 15, and one answer fewer was counted for the lower limit.

    A loop's mean of float32 is 613.00001 of 700, and one answer more was counted for the upper limit.
    """
    measured = {"accuracy": torch.tensor(right / of, dtype=precision).item(), "test_images": of}
    written(tmp_path / "r", {"truth.labels": labels}, measured=measured)
    (row,) = rows(tmp_path, "mid_grey").values()
    assert row.accuracy == clopper_pearson(right, of)


@pytest.mark.slow
def test_a_trained_model_of_several_labels_is_recorded(tmp_path: Path) -> None:
    """The audit of its recording has the run's numbers, bit for bit."""
    attacks = ["nearest_record", "unmix:epochs=1,passes=2"]
    run = run_audit(
        **{**SMALL, "dataset": "tests.audit.test_several_labels:DigitFacts"},
        defense="gaussian_noise:sigma=0.5,clip=5",
        attack=attacks,
        training="loss=multi_label,batch_size=20",
        out=tmp_path / "trained",
    )
    same(run, tmp_path, attacks, budget="smoke")
    found = export(run.folder, tmp_path / "again")
    assert (found.several, found.own_labels, found.classes) == (True, True, 3)
    assert found.labels is not None
    assert torch.equal(torch.cat([view.labels for view in found.views if view.labels is not None])[:20], found.labels)
