"""Experiments are the papers' own: each setting that a paper prints is what its experiments take, or says why not."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from privkit.domains.images.domain import Images
from privkit.papers import PAPERS, paper
from privkit.papers.presets import preset, preset_settings, presets
from privkit.papers.values import PrintedValue, deviations, printed_values
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve

SETTINGS = {"settings", "Table 2"}
"""Where papers print settings; Table 2 of accurate_sl alone."""
OF_ROW = {
    ("accurate_sl", "CNN on MNIST"): (
        *(
            "table_10_mnist",
            "table_3",
            "table_4",
            "table_4_rates",
            "table_4_weight_decay",
            "table_4_scaling",
            "table_6",
        ),
        *("figure_1c", "figure_4_mnist", "figure_5_mnist", "figure_5_fashion_mnist", "figure_9"),
    ),
    ("accurate_sl", "ResNet-20 on CIFAR-10"): ("table_10_cifar10", "table_8_cifar10", "figure_5_cifar10"),
    ("accurate_sl", "ResNet-18 on CIFAR-100"): ("table_5",),
    ("accurate_sl", "MLP on IMDB"): ("table_10_imdb", "table_8_imdb"),
    ("accurate_sl", "LSTM on Names"): ("table_10_names",),
    ("accurate_sl", "ALBERT-base-v2 on Amazon Reviews"): ("table_7_amazon",),
    ("accurate_sl", "ResNet-50 on ImageNet1K"): ("table_7_imagenet", "figure_5_imagenet"),
    ("patch_splitnn", "CIFAR-10"): ("table_5", "figure_5"),
    ("patch_splitnn", "CIFAR-100"): ("table_6", "figure_6"),
    ("patch_splitnn", "PCam"): ("table_7", "figure_7"),
}
"""Paper and row of a setting -> the experiments that have it; all others derive from the paper's preset."""
VARIED = {
    ("accurate_sl", "table_4_rates"): ("learning rate",),
    ("accurate_sl", "table_4_weight_decay"): ("weight decay",),
    ("accurate_sl", "table_4_scaling"): ("weight decay",),
    ("accurate_sl", "table_6"): ("optimizer", "learning rate"),
}
"""Paper and experiment -> the settings that its table varies."""
UNPRINTED = {"dp_cutmixsl": {"figure_8", "figure_10"}, "patch_shuffling": {"table_3"}}
"""Experiments of which the paper prints no setting: label inference, and Criteo."""
OPTIMIZERS = {"SGD": ("sgd", 0.0), "SGD-M": ("sgd", 0.9), "Adam": ("adam", 0.0), "AdamW": ("adamw", 0.0)}


def _attack(part: AuditConfig, name: str, value: str) -> Any:
    return next(getattr(one.spec, value) for one in part.attacks if one.name == name)


OF_COLUMN: dict[str, Callable[[AuditConfig], Any]] = {
    "learning rate": lambda part: part.training.learning_rate,
    "learning rate of the transformer": lambda part: part.training.learning_rate,
    "least learning rate of the transformer": lambda part: part.training.lowest_rate,
    "momentum": lambda part: part.training.momentum,
    "weight decay": lambda part: part.training.weight_decay or 0,
    "batch size": lambda part: part.training.batch_size,
    "epochs": lambda part: part.budget.epochs,
    "epoch": lambda part: part.budget.epochs,
    "warm-up epochs": lambda part: round((part.training.warm_up or 0) * part.budget.epochs, 1),
    "clients": lambda part: part.protocol.spec.clients,
    "tokens": lambda part: part.model.spec.grid**2,
    "transformer blocks": lambda part: part.model.spec.depth,
    "α of the upper loss": lambda part: part.model.spec.alpha,
    "attacker's epochs": lambda part: part.budget.attack_epochs,
}


def settings(name: str) -> Iterator[PrintedValue]:
    tables = SETTINGS if name == "accurate_sl" else {"settings"}
    yield from (one for one in printed_values(name) if one.table in tables)


REDUCED = ("_small", "_medium")
"""Endings of experiments that are smaller than the paper's."""


@cache
def of_paper(name: str) -> dict[str, AuditConfig]:
    """Experiments of a paper at its own size, as they resolve."""
    found = {path.stem: path for path in paper(name).experiments if not path.stem.endswith(REDUCED)}
    return {stem: resolve(preset_settings(path)) for stem, path in found.items()}


def named(name: str, one: PrintedValue) -> list[AuditConfig]:
    if (name, one.row) in OF_ROW:
        stems = OF_ROW[name, one.row]
        return [of_paper(name)[stem] for stem in stems if one.column not in VARIED.get((name, stem), ())]
    texts = {path.stem: path.read_text("utf-8") for path in paper(name).experiments if path.stem in of_paper(name)}
    derived = [stem for stem, text in texts.items() if f'preset = "{name}"\n' in text]
    varied = [stem for stem in derived if one.column == "clients" and "clients" in texts[stem]]
    return [resolve(preset(name)), *(of_paper(name)[stem] for stem in derived if stem not in varied)]


@pytest.mark.parametrize("name", PAPERS)
def test_a_printed_setting_is_taken_or_has_a_reason(name: str) -> None:
    left = [one for one in settings(name) if not one.note or one.value is None]
    assert left
    for one in left:
        if one.column == "optimizer":
            found = {(part.training.optimizer, part.training.momentum or 0.0) for part in named(name, one)}
            assert found == {OPTIMIZERS[one.note]}, one
            continue
        values = {OF_COLUMN[one.column](part) for part in named(name, one)}
        assert len(values) == 1, one
        assert values.pop() == pytest.approx(one.value), one


@pytest.mark.parametrize("name", PAPERS)
def test_no_experiment_is_left_out(name: str) -> None:
    """Every file at the paper's size is compared with what the paper prints, or the paper prints nothing of it."""
    texts = {path.stem: path.read_text("utf-8") for path in paper(name).experiments if path.stem in of_paper(name)}
    derived = {stem for stem, text in texts.items() if f'preset = "{name}"\n' in text}
    listed = {stem for (own, _), stems in OF_ROW.items() if own == name for stem in stems}
    assert derived | listed | UNPRINTED.get(name, set()) == set(of_paper(name))
    for (own, stem), columns in VARIED.items():
        if own == name:
            assert {*columns} < {"optimizer", "learning rate", "weight decay", "batch size", "epochs"}, stem


@pytest.mark.parametrize("name", ["cutmixsl", "dp_cutmixsl"])
def test_every_client_holds_as_many_images_whatever_their_number(name: str) -> None:
    """Fig. 3 of DP-CutMixSL has one client, and the paper does not say how many images it holds."""
    for stem, config in of_paper(name).items():
        if stem in UNPRINTED.get(name, set()) | {"figure_3"}:
            continue
        for part in config.parts:
            assert part.budget.private == 4990 * part.protocol.spec.clients, stem


def test_a_medium_experiment_is_cutmixsls_preset_but_for_images_and_epochs() -> None:
    whole = resolve(preset("cutmixsl"))
    medium = [path for name in PAPERS for path in paper(name).experiments if path.stem.endswith("_medium")]
    assert medium
    for path in medium:
        for part in resolve(preset_settings(path)).parts:
            assert (part.model, part.training, part.auxiliary) == (whole.model, whole.training, whole.auxiliary)
            assert part.dataset == whole.dataset
            assert part.protocol.spec.clients == 10
            assert part.protocol.spec.grouping == "random"


@pytest.mark.parametrize("name", PAPERS)
def test_a_reason_is_a_sentence_about_a_setting_that_differs(name: str) -> None:
    for one in deviations(name):
        assert one.table in SETTINGS
        assert one.note[0].isupper(), one
        assert one.note.endswith("."), one
        if one.column in OF_COLUMN:
            assert any(OF_COLUMN[one.column](part) != pytest.approx(one.value) for part in named(name, one)), one


def test_every_experiment_at_the_papers_size_derives_from_a_preset_where_the_paper_has_one() -> None:
    """Those of accurate_sl have the settings of its Table 2 themselves; Criteo is not a picture."""
    for name in set(PAPERS) - {"accurate_sl"}:
        for path in paper(name).experiments:
            if not path.stem.endswith(REDUCED) and (name, path.stem) != ("patch_shuffling", "table_3"):
                assert any(f'preset = "{one}"\n' in path.read_text(encoding="utf-8") for one in presets()), path


def vit(tokens: int, patch: int, depth: int, width: int = 192, classes: int = 10) -> int:
    """Weights of a ViT on color images, by its layers: attention, network, norms; embedding; class token and head."""
    blocks = depth * (12 * width**2 + 13 * width)
    return blocks + (3 * patch**2 + 1 + tokens) * width + width + 2 * width + (width + 1) * classes


@pytest.mark.parametrize(
    ("name", "tokens", "weights"),
    [
        ("cutmixsl", (17, 192), vit(17, 8, 6)),
        ("dp_cutmixsl", (65, 192), vit(65, 4, 12)),
        # 64.1 million with a classifier of 1,000 classes in the place of 40: Yuan et al. 2021, T2T-ViT, table 1
        ("patch_shuffling", (196, 512), pytest.approx(64_100_000 - 960 * 513, rel=0.005)),
    ],
)
def test_a_preset_is_built_at_the_papers_size(name: str, tokens: tuple[int, int], weights: Any) -> None:
    config = resolve(preset(name))
    shape, classes = ((3, 224, 224), 40) if name == "patch_shuffling" else ((3, 32, 32), 10)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        split = config.model.spec.build(Images(shape=shape), classes, positions=True, seed=0)
        assert split.lower(torch.empty(2, *shape)).shape == (2, *tokens)
        assert sum(weight.numel() for half in (split.lower, split.upper) for weight in half.parameters()) == weights


@pytest.mark.parametrize("name", PAPERS)
def test_every_shuffle_says_whether_a_block_follows_it(name: str) -> None:
    """The arrangement decides what a shuffle gives away, so that no paper's file leaves it to a default."""
    for path in (*paper(name).experiments, *paper(name).presets):
        for defense in map(str, preset_settings(path)["defense"]):
            if "patch_shuffle" in defense or "batch_shuffle" in defense:
                assert "frozen_block" in defense, f"{path.name}: {defense}"
