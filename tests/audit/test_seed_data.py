"""Victims, auxiliary images and batches of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from privkit.audit.run import run_audit
from privkit.audit.seed_data import prepare
from privkit.cli.estimate import preview
from privkit.errors import DataError, UsageError
from privkit.parts.registry import part_table
from privkit.settings.resolve import resolve
from tests.audit.audits import Notes
from tests.small import SMALL


def test_private_auxiliary_and_test_images_are_disjoint() -> None:
    setting = prepare(resolve({"seed": 3, **SMALL}), 3, torch.device("cpu"))
    parts = (setting.splits.private.ids, setting.splits.auxiliary.ids, setting.splits.test.ids)
    together = torch.cat(parts)
    assert len(together.unique()) == len(together)


# --- auxiliary data and victims --------------------------------------------------------------------------------------


def test_the_papers_worst_case_attacks_test_images_with_the_training_set() -> None:
    config = resolve({"auxiliary": "training", **SMALL})
    setting = prepare(config, 0, torch.device("cpu"))
    assert torch.equal(setting.auxiliary.x, setting.splits.private.x)
    assert torch.isin(setting.victims.ids, setting.splits.test.ids).all()
    own = prepare(replace(config, victims="private"), 0, torch.device("cpu"))
    assert torch.isin(own.victims.ids, own.splits.private.ids).all()


def test_attacked_private_images_are_those_that_clients_hold() -> None:
    """With one client, and with two that take turns: images beyond the sum of `sizes` are nobody's."""
    for protocol, sizes in (("psl:clients=1", [60]), ("sl:clients=2", [40, 50])):
        settings = {**SMALL, "protocol": protocol, "partition": f"iid:sizes={sizes}", "training": "batch_size=20"}
        setting = prepare(resolve(settings), 0, torch.device("cpu"))
        held = [setting.shares.of(client) for client in range(len(sizes))]
        assert torch.isin(setting.victims.ids, setting.splits.private.ids[torch.cat(held)]).all()
        assert len(setting.victims) == 40


def test_candidates_are_disjoint_images_with_the_attacked_ones_among_them() -> None:
    disjoint = prepare(resolve(SMALL), 0, torch.device("cpu"))
    setting = prepare(resolve({"auxiliary": "candidates", **SMALL}), 0, torch.device("cpu"))
    assert setting.victims.ids.tolist() == disjoint.victims.ids.tolist()
    others = setting.auxiliary.ids[~torch.isin(setting.auxiliary.ids, setting.victims.ids)]
    assert sorted(others.tolist()) == sorted(disjoint.auxiliary.ids.tolist())
    assert len(setting.auxiliary) == len(others) + len(setting.victims)
    places = torch.isin(setting.auxiliary.ids, setting.victims.ids).nonzero().flatten()
    assert places.tolist() != list(range(len(others), len(setting.auxiliary)))  # their order gives nothing away
    assert setting.hashes["auxiliary"] == setting.auxiliary.sha256() != disjoint.hashes["auxiliary"]


def test_auto_links_candidates() -> None:
    labels = [attack.label for attack in resolve({"auxiliary": "candidates", "attack": "auto"}).every_attack]
    assert {"nearest_record:repeats=64", "nearest_record:repeats=64,passes=8"} <= set(labels)


def test_auxiliary_images_of_another_dataset_take_the_private_shape() -> None:
    setting = prepare(resolve({"auxiliary": "lfw_subset", **SMALL}), 0, torch.device("cpu"))
    assert setting.auxiliary.x.shape == (200, 1, 8, 8)
    assert setting.hashes["lfw_subset"] == setting.auxiliary.sha256()
    assert setting.dropped == 0


@pytest.mark.usefixtures("no_report")
def test_private_images_are_no_auxiliary_images_of_another_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pictures under another name: the private ones among them are left out, and the run says how many."""
    from privkit.domains import DATASETS

    monkeypatch.setitem(DATASETS, "same_digits", "privkit.domains.images.embedded:TinyDigits")
    part_table.cache_clear()
    try:
        config = resolve({"auxiliary": "same_digits", "attack": "mean_image", "defense": "none", **SMALL})
        setting = prepare(config, 0, torch.device("cpu"))
        notes = Notes()
        run = run_audit(config, out=tmp_path / "run", progress=notes)
    finally:
        part_table.cache_clear()
    private = {image.numpy().tobytes() for image in setting.splits.private.x}
    assert not any(image.numpy().tobytes() in private for image in setting.auxiliary.x)
    assert 0 < setting.dropped < 200
    assert len(setting.auxiliary) == 200 - setting.dropped
    assert run.rows[0].counts["auxiliary_dropped"] == setting.dropped
    assert notes.notes[0].removeprefix("seed 0: ") in run.rows[0].notes
    assert notes.notes == [
        f"seed 0: {setting.dropped} own images that were drawn are private or attacked ones: left out",
        "seed 0: no class mean (the adversary's own records are of other classes): guesses are compared with "
        "constant ones alone",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "smoke:auxiliary=60"}, "batch_size=50 is more than 15, a quarter of the 60 auxiliary images"),
        ({"dataset": "lfw_subset", "budget": "small"}, "20, test images; use --training batch_size=20"),
        ({"training": "batch_size=99"}, "50, attacked images (the smaller of victims=50 and 200 private ones); use"),
        (
            {"budget": "smoke:victims=1"},
            "1 attacked images (the smaller of victims=1 and 200 private ones) are too few",
        ),
        (
            {"budget": "smoke:auxiliary=2"},
            "2 auxiliary images, of which the control experiments take a quarter, are too few for any batch; raise the "
            "budget if the dataset has more images, or bring more",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_batches_that_the_data_do_not_fill_are_refused_before_training(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    notes = Notes()
    config = resolve({**SMALL, **settings})
    with pytest.raises(UsageError) as caught:
        run_audit(config, out=tmp_path / "run", progress=notes)
    assert message in str(caught.value)
    assert notes.stages == []
    with pytest.raises(UsageError) as previewed:
        preview(config)
    assert str(previewed.value) == str(caught.value)


def test_pictures_of_one_class_are_no_task(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (32, 32), "white").save(tmp_path / "cat" / "1.png")
    config = resolve({**SMALL, "dataset": "image_folder", "data_root": str(tmp_path)})
    for refused in (lambda: prepare(config, 0, torch.device("cpu")), lambda: preview(config)):
        with pytest.raises(DataError, match="image_folder has one class only"):
            refused()


def test_the_advised_batch_size_works() -> None:
    config = resolve({"dataset": "lfw_subset", "training": "batch_size=20"})
    assert len(prepare(config, 0, torch.device("cpu")).victims) == 100
