"""Every epoch is measured on validation images; the last and the best model are both kept and named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import privkit
from privkit.defenses import NoDefense
from privkit.domains.base import Batch
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import TinyDigits
from privkit.errors import UsageError
from privkit.settings.resolve import resolve
from privkit.training import Checkpoint, Clients, Trained, TrainingSpec, evaluate, train

SPEC = TrainingSpec(batch_size=10, optimizer="sgd", learning_rate=1.0, schedule="constant", best_by="mcc")


class Eager(Checkpoint):
    """Saves every epoch."""

    def save(self, state: dict[str, Any]) -> None:
        self.keep(state)


def trained(data: Batch, validation: Batch | None, epochs: int = 12, path: Path | None = None) -> Trained:
    """A small network at a rate at which the best epoch is not the last."""
    torch.manual_seed(0)
    lower, upper = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh()), nn.Linear(16, 10)
    edge = Clients.build(lower, NoDefense(), Images(shape=(1, 8, 8)), classes=10, seed=0)
    return train(edge, upper, data, SPEC, epochs=epochs, seed=0, validation=validation, checkpoint=Eager(path))


def test_the_best_epoch_is_the_first_of_the_largest_score() -> None:
    pool = TinyDigits().open(None, download=False, train_images=140).train
    data, others = pool.take(np.arange(100)), pool.take(np.arange(100, 140))
    found, plain = trained(data, others), trained(data, None)
    assert (plain.best, plain.validation, plain.curve) == (None, (), found.curve)
    assert all(torch.equal(a, b) for a, b in zip(found.upper.parameters(), plain.upper.parameters(), strict=True))
    values = [epoch["mcc"] for epoch in found.validation]
    assert found.best is not None
    assert found.best.number == 1 + values.index(max(values)) < 12  # else this test shows nothing
    found.edge.load_state_dict(found.best.edge)
    found.upper.load_state_dict(found.best.upper)
    again = evaluate(found.edge, found.upper, others, batch_size=10, seed=0).defined
    assert (
        {name: score.value for name, score in again.items()}
        == found.validation[found.best.number - 1]
        != found.validation[-1]
    )


def test_a_resumed_training_remembers_its_best_epoch(tmp_path: Path) -> None:
    pool = TinyDigits().open(None, download=False, train_images=140).train
    data, others = pool.take(np.arange(100)), pool.take(np.arange(100, 140))
    whole, path = trained(data, others), tmp_path / "training.ckpt"
    assert whole.best is not None
    trained(data, others, epochs=whole.best.number, path=path)
    again = trained(data, others, path=path)
    assert again.best is not None
    assert (again.validation, again.best.number) == (whole.validation, whole.best.number)
    assert all(torch.equal(again.best.upper[name], value) for name, value in whole.best.upper.items())


@pytest.mark.usefixtures("no_report")
def test_an_audit_keeps_both_and_names_the_one_that_it_attacks(tmp_path: Path) -> None:
    run = privkit.run_audit(
        dataset="tiny_digits",
        defense="none",
        attack=["mean_image", "mid_grey"],
        training="batch_size=10,optimizer=sgd,learning_rate=.5,schedule=constant,keep=best,private=true,clip=1,noise=4",
        budget="smoke:private=40,epochs=4,validation=40,test=20,victims=10,auxiliary=20",
        out=tmp_path,
    )
    first, second = run.rows
    assert first.kept == "best"
    assert [sorted(epoch) for epoch in first.validation_curve] == [["accuracy", "auc", "mcc"]] * 4
    values = [epoch["accuracy"] for epoch in first.validation_curve]
    assert first.best_epoch == 1 + values.index(max(values))
    assert set(first.task) == {"mcc", "auc", "accuracy_last", "accuracy_best"}
    assert first.accuracy == first.task["accuracy_best"]
    assert first.counts["validation"] == 40
    assert first.certificate is not None
    assert first.certificate.quantities["updates_of_one_record"] == 4  # one step an epoch
    assert 3 < first.certificate.quantities["updates_epsilon"] < first.certificate.epsilon == float("inf")
    assert any("noisy updates alone prove nothing" in sentence for sentence in first.certificate.assumptions)
    assert first.provenance.data.keys() >= {"private", "test", "validation"}
    assert (second.accuracy, second.validation_curve) == (
        first.accuracy,
        first.validation_curve,
    )  # taken from the run folder
    (home,) = (tmp_path / "models").iterdir()
    files = json.loads((home / "trained.json").read_text())["files"]
    assert set(files) == {f"{start}{side}.safetensors" for start in ("", "best_") for side in ("client", "upper")}
    one, other = (load_file(home / f"{start}upper.safetensors") for start in ("", "best_"))
    assert any(not torch.equal(one[name], other[name]) for name in one) == (first.best_epoch < 4)


@pytest.mark.usefixtures("no_report")
def test_the_best_epoch_on_test_images_is_named_a_peek(tmp_path: Path) -> None:
    """At this rate the accuracy falls again, so that the largest of the epochs is not the last one."""
    (row,) = privkit.run_audit(
        dataset="tiny_digits",
        defense="none",
        attack=["mean_image"],
        training="batch_size=10,optimizer=sgd,learning_rate=.7,schedule=constant,keep=best_test",
        budget="smoke:private=100,epochs=4,test=60,victims=10,auxiliary=20",
        out=tmp_path,
    ).rows
    values = [epoch["accuracy"] for epoch in row.validation_curve]
    assert row.accuracy is not None
    assert row.accuracy.value == max(values) > values[-1] == row.task["accuracy_last"].value
    assert (row.kept, row.best_epoch) == ("best_test", 1 + values.index(max(values)))
    assert any("so its accuracy is no estimate for new images" in note for note in row.notes)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(
        UsageError, match="keep=best needs validation images and an epoch; use budget=small:validation=500"
    ):
        resolve({"training": "keep=best"})
    with pytest.raises(UsageError, match="keep=best needs validation images"):
        resolve({"training": "keep=best", "budget": "smoke:epochs=0,validation=50"})
    for budget in ("smoke:validation=50", "smoke:epochs=0"):
        with pytest.raises(UsageError, match="keep=best_test chooses an epoch on the test images; train one at least"):
            resolve({"training": "keep=best_test", "budget": budget})
    with pytest.raises(UsageError, match="keep should be 'last', 'best' or 'best_test'"):
        resolve({"training": "keep=first"})
    with pytest.raises(UsageError, match="validation must be a whole number >= 0"):
        resolve({"budget": "smoke:validation=-1"})
    with pytest.raises(UsageError, match="batch_size=50 is more than 20, validation images; use"):
        privkit.run_audit(dataset="tiny_digits", defense="none", attack="mean_image", budget="smoke:validation=20")
