"""What is registered is documented, sourced, and survives JSON: a new part is tested by being registered."""

import dataclasses
import json
from typing import Any

import pytest

from privkit.attacks.scores.leak import roc_points
from privkit.audit.seed_data import open_data
from privkit.cli.sweeps import varied
from privkit.defenses.denoising import Masking
from privkit.errors import UsageError
from privkit.files.import_path import with_options
from privkit.laws.parts import EVERY
from privkit.parts.entries import meanings_of, part_entries, source_of, text_of
from privkit.parts.own_parts import kind_noun, kinds_of
from privkit.parts.registry import (
    PART_TABLES,
    as_written,
    distribution,
    is_pair,
    load,
    name_and_options,
    parse,
    part_table,
    read_part,
    specify,
    split_options,
)
from privkit.parts.threats import threat
from privkit.settings.budgets import BUDGETS
from privkit.settings.resolve import resolve
from privkit.shared.interval import Interval

NAMES = [(kind, name) for kind in PART_TABLES for name in sorted(part_table(kind))]


def documented(found: Any) -> str:
    """Docstring of a class or function, or of an instance's class."""
    return (found if isinstance(found, type) or callable(found) else type(found)).__doc__ or ""


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_everything_has_a_docstring_with_its_source(kind: str, name: str) -> None:
    text = documented(load(part_table(kind)[name]))
    assert len(text.strip().splitlines()[0]) > 20
    assert "Source:" in text


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, n in NAMES if k not in ("metrics", "accountants", "bounds")])
def test_specifications_keep_the_laws_of_every_part(kind: str, name: str) -> None:
    component = parse(kind, name)
    assert [how for law in EVERY.values() if (how := law(component, kind))] == []
    assert getattr(type(component.spec), "name", name) == name


@pytest.mark.parametrize("kind", list(PART_TABLES))
def test_describe_is_json(kind: str) -> None:
    entries = json.loads(json.dumps(part_entries(kind)))
    assert [entry["name"] for entry in entries] == sorted(part_table(kind))
    assert all(entry["summary"] for entry in entries)


def test_labels_say_what_differs_and_parse_back() -> None:
    for text in ("batch_shuffle", "batch_shuffle:keep=0.25", "batch_shuffle:keep=0.25,frozen_block=true"):
        component = parse("defenses", text)
        assert component.label == text
        assert parse("defenses", component.label) == component
    assert parse("models", "vit_tiny:cut=block2").label == "vit_tiny:cut=block2"
    assert parse("models", "vit_tiny").label == "vit_tiny"


BAD = [
    ({"defense": "batch_shufle"}, "unknown defense 'batch_shufle'; did you mean 'batch_shuffle'?"),
    ({"defense": "batch_shuffle:kep=1"}, "unknown option of defense batch_shuffle 'kep'; did you mean 'keep'?"),
    ({"defense": "batch_shuffle:keep"}, "write options as name:key=value"),
    ({"queries": "none"}, "cannot read 'none' in 'none'; write queries as key=value,key=value"),
    ({"defense": "batch_shuffle:keep=2"}, "keep must be a finite number >= 0 and <= 1"),
    ({"defense": "batch_shuffle:keep=true"}, "valid number"),
    ({"defense": "batch_shuffle:keep=nan"}, "keep must be a finite number >= 0 and <= 1"),
    ({"defense": []}, "at least one"),
    ({"defense": [{"keep": 1}]}, "needs a name"),
    ({"defense": 3}, "a defense is a name or a table"),
    ({"attack": "blackbox"}, "did you mean 'black_box'?"),
    ({"attack": "black_box:decoder=x"}, "'mae', 'released'"),
    ({"dataset": "cifar"}, "did you mean 'cifar10'?"),
    ({"dataset": "cifar10:batches=9"}, "batches must be a whole number >= 1 and <= 5"),
    ({"model": "vit_micr"}, "did you mean 'vit_micro'?"),
    ({"model": "my.lower"}, "name both by import path"),
    ({"model": "vit_micro:cut=block9"}, "block4"),
    ({"budget": "smal"}, "did you mean 'small'?"),
    ({"budget": "small:epochs=-1"}, "epochs must be a whole number >= 0"),
    ({"training": "batch_size=0"}, "batch_size must be"),
    ({"training": {"batchsize": 3}}, "did you mean 'batch_size'?"),
    ({"training": 3}, "a table of options"),
    ({"seed": -1}, "a seed is a whole number"),
    ({"seed": []}, "at least one seed"),
    ({"seed": True}, "a seed is a whole number"),
    ({"victims": "both"}, "victims must be private or test"),
    ({"device": "tpu"}, "device must be auto, cpu, cuda, or cuda:0, cuda:1, …, got 'tpu'"),
    ({"threads": 0}, "threads must be"),
    ({"auxiliary": "fashion"}, "did you mean 'fashion_mnist'?"),
    ({"skip_bad_rows": True}, "skip_bad_rows=true leaves out rows of text files, and digits reads none; leave it out"),
    ({"skip_bad_rows": "yes", "dataset": "names"}, "skip_bad_rows must be true or false"),
    ({"defence": "none"}, "did you mean 'defense'?"),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_settings_are_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_rows_are_skipped_by_a_setting_of_its_own() -> None:
    """It is the option of the dataset, in other words: both are one configuration."""
    flag = resolve({"dataset": "names:length=9", "skip_bad_rows": True})
    assert flag.dataset.label == "names:length=9,skip_bad_rows=true"
    assert flag.fingerprint == resolve({"dataset": "names:length=9,skip_bad_rows=true"}).fingerprint
    assert resolve({"dataset": flag.dataset.label, "skip_bad_rows": True}).dataset == flag.dataset
    assert resolve({"dataset": "names", "skip_bad_rows": False}).dataset.label == "names"


def test_an_augmentation_of_colors_is_refused_for_grey_images_before_any_work() -> None:
    config = resolve({"dataset": "tiny_digits", "budget": "smoke", "training": "augment=histology"})
    with pytest.raises(UsageError, match=r"histology changes colors, and these images have 1 channel; use crop_flip"):
        open_data(config)


def test_the_baseline_is_always_there_and_nothing_twice() -> None:
    assert [c.label for c in resolve({"defense": "patch_shuffle"}).defenses] == ["none", "patch_shuffle"]
    twice = resolve({"defense": ["patch_shuffle", "none", "patch_shuffle"]})
    assert [c.label for c in twice.defenses] == ["patch_shuffle", "none"]


def test_a_part_whose_annotations_cannot_be_read_is_refused() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Broken:
        width: "Missing" = 1  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UsageError, match="defense broken: its annotations cannot be read: name 'Missing' is not def"):
        specify("defense broken", Broken, {"width": 2})


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("defenses", "gaussian_noise:clip=none,at_inference=false"),
        ("partitions", "iid:sizes=[3,4]"),
        ("defenses", "mixup:concentration=inf"),
    ],
)
def test_a_label_gives_the_part_again(kind: str, given: str) -> None:
    assert parse(kind, given).label == given
    assert parse(kind, parse(kind, given).label) == parse(kind, given)


def test_attacks_take_the_budgets_epochs_unless_they_name_their_own() -> None:
    assert resolve({"budget": "small"}).attacks[0].spec.epochs == BUDGETS["small"].attack_epochs
    assert resolve({"attack": "black_box:epochs=3"}).attacks[0].spec.epochs == 3
    assert resolve({"attack": "mean_image"}).attacks[0].name == "mean_image"


def test_fingerprint_follows_what_changes_an_answer() -> None:
    same: list[dict[str, Any]] = [
        {},
        {"device": "cpu"},
        {"threads": 1},
        {"data_root": "/tmp"},
        {"gate": "ssim<=0.1"},
        {"victims": "private"},
    ]
    other: list[dict[str, Any]] = [
        {"seed": 1},
        {"defense": "none"},
        {"training": "batch_size=10"},
        {"auxiliary": "training"},
    ]
    prints = [resolve(settings).fingerprint for settings in (*same, *other)]
    assert len(set(prints[: len(same)])) == 1
    assert len(set(prints[len(same) - 1 :])) == len(other) + 1


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (text_of(text_of), "The paragraphs of a docstring before its first section."),
        (source_of(roc_points), "Fawcett 2006, Algorithm 1; scikit-learn `roc_curve`."),
        ([kind_noun("defenses"), kind_noun("attacks")], ["defense", "attack"]),
        ([kinds_of(Masking), kinds_of(len)], [["defenses"], []]),
        (distribution("defenses", "batch_shuffle"), {}),
        (name_and_options("attacks", {"name": "black_box", "epochs": 3}), ("black_box", {"epochs": 3})),
        (read_part("mine:Squash:bound=2"), ("mine:Squash", {"bound": 2})),
        (split_options(".1,[2,3]"), [".1", "[2,3]"]),
        ([as_written(value) for value in (None, True, (1, 2))], ["none", "true", "[1,2]"]),
        (is_pair("mynets.Lower:mynets.Upper"), True),
        (is_pair("mynets.models:Net"), False),
        (is_pair("vit_micro:cut=embedding"), False),
        (part_entries("partitions")[0]["allowed"]["smallest"], "a whole number >= 1"),
        (with_options("mine.stages:Squash:bound=2"), ("mine.stages:Squash", "bound=2")),
        (with_options("masking:keep=.2"), None),
        (meanings_of(Interval)["n"], "number of trials, records or seeds behind the value."),
        (
            varied("gaussian_noise:clip=2", ["sigma=.1,1.5"]),
            [f"gaussian_noise:sigma={sigma},clip=2.0" for sigma in (0.1, 1.5)],
        ),
        (threat("black_box"), ("query", ("images", "tables"))),
        (threat("canaries"), ("labels, members, canaries", ())),
        (parse("defenses", "gaussian_noise:sigma=2+masking@server").label, "gaussian_noise:sigma=2.0+masking"),
    ],
)
def test_a_part_is_read(found: Any, wanted: Any) -> None:
    assert found == wanted
