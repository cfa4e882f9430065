"""Recognition by a classifier: trained on images that are not attacked, with its ceiling and floors, in an audit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, nn

from privkit.audit.run import run_audit
from privkit.cli.estimate import preview
from privkit.domains.base import Batch
from privkit.errors import DataError, UsageError
from privkit.metrics.feature_networks import FeatureNetwork
from privkit.metrics.perception import Perception
from privkit.metrics.perceptual import recognized, recognized_floors, taught
from privkit.reports.gate import Gate
from privkit.settings.resolve import resolve

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "dataset": "tiny_digits",
    "budget": "smoke:private=40,auxiliary=400,test=40,victims=40,epochs=1",
    "training": "batch_size=10",
    "threads": 1,
    "defense": "none",
    "attack": ["nearest_record", "mid_grey"],
}


def digits(count: int, start: int = 0) -> Batch:
    """Grey images whose quarter says their class, one of four."""
    draws = Generator().manual_seed(start)
    y = torch.randint(4, (count,), generator=draws)
    x = 0.4 * torch.rand(count, 1, 8, 8, generator=draws)
    for image, label in zip(x, y.tolist(), strict=True):
        image[:, 4 * (label // 2) :, 4 * (label % 2) :][:, :4, :4] += 0.5
    return Batch(x=x, y=y, ids=start + torch.arange(count))


@pytest.fixture(scope="module")
def classifier() -> FeatureNetwork:
    return taught(digits(200), 4, seed=0)


def test_originals_are_recognized_and_constant_guesses_are_one_class(classifier: FeatureNetwork) -> None:
    victims = digits(100, start=1000)
    assert recognized(victims.y, victims.x, classifier).mean() > 0.95
    grey = recognized(victims.y, torch.full_like(victims.x, 0.5), classifier)
    assert grey.mean() in [(victims.y == label).double().mean() for label in range(4)]
    floors = recognized_floors(victims.x, victims.y, classifier)
    assert floors["originals"] == recognized(victims.y, victims.x, classifier).mean()
    pairs = [recognized(victims.y, victims.x.roll(shift, 0), classifier).mean() for shift in range(1, len(victims))]
    assert floors["other_originals"] == pytest.approx(sum(pairs) / len(pairs))


def test_images_with_transparency_are_refused_before_training(tmp_path: Path) -> None:
    np.savez(tmp_path / "rgba.npz", images=np.zeros((90, 8, 8, 4), dtype=np.uint8), labels=np.arange(90) % 2)
    own = {**SETTINGS, "dataset": f"arrays:path={tmp_path / 'rgba.npz'}", "budget": "smoke:private=40,auxiliary=40"}
    with pytest.raises(UsageError, match="features=classifier reads grey or color images, and these have 4 channels"):
        preview(resolve({**own, "features": "classifier"}))


def test_the_same_seed_gives_the_same_bits_and_the_global_generator_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privkit.metrics.perceptual._STEPS", 3)
    before, images = torch.get_rng_state(), digits(5).x
    classifier, again, other = (taught(digits(200), 4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again(images), classifier(images))
    assert not torch.equal(other(images), classifier(images))
    assert classifier.label == "classifier of 200 auxiliary images"


@pytest.mark.slow
@pytest.mark.usefixtures("no_report", "no_controls")
def test_rows_have_it_with_ceiling_and_floors(tmp_path: Path) -> None:
    run = run_audit(**SETTINGS, features=["classifier"], out=tmp_path / "run")
    nearest, grey = run.rows
    assert nearest.feature_networks == ("classifier of 400 auxiliary images",)
    found = {name: nearest.recovered[name]["recognized"].value for name in ("unaligned", "matched")}
    assert found["unaligned"] > 0.6  # the nearest auxiliary record is of the same class
    assert grey.recovered["unaligned"]["recognized"].value < 0.4
    assert {name: floor["unaligned"]["recognized"].value for name, floor in grey.floors.items()}.keys() == {
        "mid_grey",
        "mean_image",
        "class_mean",
    }
    (told,) = [note for note in nearest.notes if note.startswith("recognized: ")]
    ceiling, other = (float(word) for word in told.split() if word[0].isdigit())
    assert ceiling > 0.85
    assert other < 0.25
    defended = nearest.model_copy(update={"defense": "blur"})
    assert [met for _, met, _ in Gate.parse("recognized<=0.2").findings([defended])] == [False]


def test_a_file_is_read_and_must_score_the_classes(tmp_path: Path) -> None:
    path = tmp_path / "mine.pt"
    network = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))
    torch.jit.script(network).save(str(path))  # type: ignore[no-untyped-call]
    perception = Perception.of([f"classifier:{path}"], CPU)
    (label,) = perception.labels
    assert label.startswith("classifier:mine.pt ")
    assert list(perception.contents()) == ["classifier:mine.pt"]
    assert perception.fitted(digits(8), 4, 0) is perception
    with pytest.raises(UsageError, match="gives 4 scores per image, but there are 10 classes"):
        perception.fitted(digits(8), 10, 0)
    several = replace(digits(8), y=torch.ones(8, 3, dtype=torch.int64))
    for one in (perception, Perception.of(["classifier"], CPU)):
        with pytest.raises(UsageError, match="several labels each; leave it out"):
            one.fitted(several, 3, 0)


@pytest.mark.parametrize(
    ("features", "error", "says"),
    [
        (["classifier:missing.pt"], DataError, "cannot be read as TorchScript"),
        (["classifier", "classifier:x.pt"], UsageError, "one classifier at most, got classifier, classifier:x.pt"),
        (["classifier:"], UsageError, "needs the path of a TorchScript file; classifier alone trains one"),
    ],
)
def test_what_cannot_be_loaded_is_said_before_any_work(
    tmp_path: Path, features: list[str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        run_audit(**SETTINGS, features=features, out=tmp_path / "run")
