"""Laws of every registered model on images: a new model is tested by being registered."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.laws import models as laws
from privkit.models import MODELS, SplitModel
from privkit.parts.registry import load, parse

EVERY = {name: load(target) for name, target in MODELS.items()}
SPECS = {name: spec for name, spec in EVERY.items() if spec.domain == "images"}
SHAPE = (3, 32, 32)
IMAGES = Images(shape=SHAPE)
DEEP = ("t2t_vit", "vit_tiny")  # their blocks are all alike: these see three cuts
LARGE = ("resnet50", "vit_base")  # which take seconds to build, and are `ResNet` and `Vit` like the others
SMALL = [name for name in SPECS if name not in LARGE]
LIGHT = (
    "cnn",
    "lenet5",
    "pit_tiny",
    "resnet20",
    "resnet20_tanh",
    "vgg16",
)  # whose last cut is tried with three clients, too


WHOLE = [name for name in SMALL if name != "patch_splitnn"]  # models whose layers see the whole image at every cut


def cuts(name: str) -> list[str]:
    """Every cut of a model; of a deep one the first two and the last."""
    every = list(SPECS[name].cuts)
    return [*every[:2], every[-1]] if name in DEEP else every


def build(name: str, shape: tuple[int, int, int] = SHAPE, *, seed: int = 0, **fields: Any) -> SplitModel:
    if name == "patch_splitnn":  # four patches of any square image
        fields = {"patch": shape[1] // 2, "stride": shape[1] // 2, **fields}
    split: SplitModel = replace(SPECS[name], **fields).build(Images(shape=shape), 10, positions=True, seed=seed)
    return split


def images(*lead: int, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.rand(*lead, *shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def shaken(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every weight and running statistic moved, so that none is 0 or 1 as it starts."""
    draws = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.add_(torch.randn(weight.shape, generator=draws), alpha=0.02)
    for name, value in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            value.add_(torch.rand(value.shape, generator=draws))
    return module


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("resnet18", "t2t_vit", "vgg16") else name
        for name in WHOLE
    ],
)
def test_a_cut_moves_weights_and_changes_no_function(name: str) -> None:
    """Both segments together are one network wherever the cut is, and the class token is where it is said to be."""
    owner = {"class_token": "client"} if name == "t2t_vit" else {}  # blocks below the cut miss a token of the server's
    assert laws.gives_logits(SPECS[name], IMAGES) == ""
    assert laws.a_cut_changes_no_function(SPECS[name], IMAGES, cuts(name), **owner) == ""


@pytest.mark.parametrize("name", SPECS)
def test_an_unknown_cut_lists_those_that_exist(name: str) -> None:
    for bad in ("block99", "", "1"):
        with pytest.raises(ValueError, match="cut must be one of") as caught:
            replace(SPECS[name], cut=bad)
        assert all(cut in str(caught.value) for cut in SPECS[name].cuts)
        assert repr(bad) in str(caught.value)
    with pytest.raises(UsageError, match=f"cut must be one of {SPECS[name].cuts[0]}"):
        parse("models", f"{name}:cut=nowhere")
    last = SPECS[name].cuts[-1]
    component = parse("models", f"{name}:cut={last}")
    assert component.spec.cut == last
    assert parse("models", component.label) == component


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in ("patch_splitnn", "t2t_vit") else name for name in SMALL],
)
def test_weights_follow_the_seed_and_nothing_else(name: str) -> None:
    spec = replace(SPECS[name], patch=16, stride=16) if name == "patch_splitnn" else SPECS[name]
    assert laws.weights_follow_the_seed(spec, IMAGES) == ""


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 28, 28),
        (3, 64, 48),
        *(pytest.param(s, marks=pytest.mark.slow) for s in [(3, 28, 28), (1, 32, 32), (1, 16, 16)]),
    ],
)
def test_grey_and_color_of_any_size(name: str, shape: tuple[int, int, int]) -> None:
    split = build(name, shape)
    with torch.no_grad():
        smashed = split.lower.eval()(images(2, shape=shape))
        assert split.upper.eval()(smashed).shape == (2, 10)
    assert smashed.isfinite().all()
    assert smashed.ndim in (2, 3, 4)


@pytest.mark.parametrize("name", [name for name in SMALL if name != "lenet5"])
def test_eight_pixels_are_enough(name: str) -> None:
    split = build(name, (1, 8, 8))
    with torch.no_grad():
        assert split.upper.eval()(split.lower.eval()(images(2, shape=(1, 8, 8)))).shape == (2, 10)


@pytest.mark.slow(but=4)
@pytest.mark.parametrize(("name", "end"), [*((n, e) for n in SMALL for e in (0, 1)), *((n, -1) for n in LIGHT)])
@pytest.mark.parametrize("training", [True, False])
def test_three_clients_in_one_call_equal_one_after_the_other(name: str, end: int, training: bool) -> None:
    """Values, gradients and running statistics, and torch falls back to no loop over clients."""
    shape = (3, 16, 16)
    cut = SPECS[name].cuts[end]
    lowers = [shaken(build(name, shape, seed=i, cut=cut).lower, i).train(training) for i in range(3)]
    x = images(3, 2, shape=shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*batching rule.*")
        together, weights, buffers = laws.stacked(lowers, x)
        (together**2).sum().backward()
    alone = torch.stack([lower(batch) for lower, batch in zip(lowers, x, strict=True)])
    (alone**2).sum().backward()
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    for i, lower in enumerate(lowers):
        for key, weight in lower.named_parameters():
            ours, theirs = weights[key].grad, weight.grad
            assert ours is not None
            assert theirs is not None
            scale = theirs.abs().max().clamp_min(1)
            torch.testing.assert_close(ours[i] / scale, theirs / scale, atol=1e-4, rtol=0)
        for key, value in lower.named_buffers():
            torch.testing.assert_close(buffers[key][i], value, atol=1e-5, rtol=1e-5)


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("name", SMALL)
def test_what_is_said_about_places_is_what_is_seen(name: str) -> None:
    """The numeric test finds what the model says, wherever it can tell."""
    assert all(
        SPECS[name].build(IMAGES, 10, positions=positions, seed=0).hides_places is not None
        for positions in (True, False)
    )
    assert laws.positions_are_as_said(SPECS[name], IMAGES) == ""
