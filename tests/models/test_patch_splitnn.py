"""Patch SplitNN: the paper's patterns and costs, and one network against one per patch."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.patch_splitnn import Patches, PatchSplitNN, SharedNorm, WithAdaptation, shared
from privkit.models.resnet import RESNET18
from privkit.training.stacked import Stacked

CIFAR = Images(shape=(3, 32, 32))
PCAM = Images(shape=(3, 96, 96))
TABLES = [  # tables 2 and 3: patch, stride, number of patches, overlap, side of the joined maps, MACs in millions
    (CIFAR, 16, 16, 4, 0, 32, 38.519),
    (CIFAR, 16, 8, 9, 8, 48, 38.519),
    (CIFAR, 14, 6, 16, 8, 56, 29.491),
    (CIFAR, 11, 7, 16, 4, 44, 18.206),
    (CIFAR, 12, 5, 25, 7, 60, 21.667),
    (CIFAR, 8, 8, 16, 0, 32, 9.630),
    (CIFAR, 8, 6, 25, 2, 40, 9.630),
    (CIFAR, 7, 5, 36, 2, 42, 7.373),
    (PCAM, 48, 48, 4, 0, 24, 26.948),
    (PCAM, 48, 24, 9, 24, 36, 26.948),
    (PCAM, 42, 18, 16, 24, 44, 22.228),
    (PCAM, 33, 21, 16, 12, 36, 14.820),
    (PCAM, 36, 15, 25, 21, 45, 15.158),
    (PCAM, 24, 24, 16, 0, 24, 6.737),
    (PCAM, 24, 18, 25, 6, 30, 6.737),
    (PCAM, 21, 15, 36, 6, 36, 6.515),
]


def published_macs(lower: nn.Module, shape: tuple[int, ...]) -> float:
    """Millions of multiply-accumulates by the rule of the paper's counter: convolutions, and 4 a normalized element."""
    total = 0

    def count(part: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal total
        if isinstance(part, nn.Conv2d):
            total += output.numel() * prod(part.weight.shape[1:])
        elif isinstance(part, nn.BatchNorm2d):
            total += 4 * output.numel()

    handles = [part.register_forward_hook(count) for part in lower.modules()]
    lower.eval()(torch.zeros(1, *shape))
    for handle in handles:
        handle.remove()
    return total / 1e6


@pytest.mark.slow(but=3)
@pytest.mark.parametrize(("domain", "patch", "stride", "number", "overlap", "joined", "macs"), TABLES)
def test_patterns_and_costs_are_those_of_tables_2_and_3(
    domain: Images, patch: int, stride: int, number: int, overlap: int, joined: int, macs: float
) -> None:
    spec = PatchSplitNN(patch=patch, stride=stride, models=1)
    split = spec.build(domain, 10, positions=True, seed=0)
    assert spec.grid(*domain.shape[1:]) ** 2 == number
    assert patch - stride == overlap
    assert published_macs(split.lower, domain.shape) / number == pytest.approx(macs, abs=5e-4)
    joint = split.upper[0](split.lower(torch.zeros(1, *domain.shape)))  # type: ignore[index]
    assert joint.shape == (1, 64, joined, joined)


def test_feature_maps_are_joined_where_their_patches_lie() -> None:
    split = PatchSplitNN(patch=8, stride=8, models=1).build(CIFAR, 10, positions=True, seed=0)
    images = torch.full((1, 3, 32, 32), 0.5)
    images[:, :, 8:16, 24:] = 1.0  # the patch in row 1, column 3
    split.lower.eval()
    joint = split.upper[0](split.lower(images)) - split.upper[0](split.lower(torch.full_like(images, 0.5)))  # type: ignore[index]
    touched = joint.abs().sum((0, 1)) > 0
    assert touched[8:16, 24:].any()
    touched[8:16, 24:] = False
    assert not touched.any()


def test_one_patch_as_large_as_the_image_is_the_plain_network() -> None:
    images = torch.rand(3, 3, 32, 32)
    plain = RESNET18.build(CIFAR, 10, positions=True, seed=5)
    whole = PatchSplitNN(patch=32, stride=1).build(CIFAR, 10, positions=True, seed=5)
    expected = plain.upper(plain.lower(images))
    torch.testing.assert_close(whole.upper(whole.lower(images)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("adaptation", ["none", "own"])
def test_equal_networks_one_a_patch_are_one_network_for_all(training: bool, adaptation: Any) -> None:
    def tied(models: int | None) -> tuple[nn.Module, nn.Module]:
        kind = {None: adaptation, 1: "shared" if adaptation == "own" else "none"}[models]
        split = PatchSplitNN(models=models, adaptation=kind).build(CIFAR, 10, positions=True, seed=1)
        return split.lower, split.upper

    one, own = tied(1), tied(None)
    for shared_part, apart in zip(one, own, strict=True):
        state = shared_part.state_dict()
        for name, value in apart.state_dict().items():
            shape = [9 if a != b else 1 for a, b in zip(value.shape, state[name].shape, strict=True)]
            apart.state_dict()[name].copy_(state[name].repeat(shape) if value.ndim else state[name])
    images = torch.rand(2, 3, 32, 32)
    for part in (*one, *own):
        part.train(training)
    first, second = (upper(lower(images)) for lower, upper in (one, own))
    for a, b in zip(*((o,) if isinstance(o, Tensor) else o for o in (first, second)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_networks_of_patches_learn_apart() -> None:
    split = PatchSplitNN(patch=16, stride=16).build(CIFAR, 10, positions=True, seed=0)
    released = split.lower.eval()(torch.rand(2, 3, 32, 32))
    released[:, 64:128].sum().backward()  # patch 2 of 4
    weight = split.lower.networks.stem.conv1.weight  # type: ignore[union-attr]
    moved = weight.grad.abs().sum((1, 2, 3)).view(4, 64).sum(1) > 0  # type: ignore[union-attr, operator, misc]
    assert moved.tolist() == [False, True, False, False]
    drawn = weight.detach().view(4, 64, -1)  # type: ignore[union-attr, operator]
    assert len(drawn.unique(dim=0)) == 4


def test_shared_statistics_are_those_of_patches_seen_one_after_another() -> None:
    norm, alone = SharedNorm(4), nn.BatchNorm2d(4)
    maps = torch.randn(6, 12, 3, 3) * 2 + 1
    together = norm(maps)
    each = torch.cat([alone(patch) for patch in maps.split(4, 1)], 1)
    torch.testing.assert_close(together, each)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value)


def test_dropping_nothing_changes_no_bit_and_draws_nothing() -> None:
    images = torch.rand(2, 3, 32, 32)
    whole, none = Patches(16, 8, 0.0), Patches(16, 8, 0.1)  # a tenth of nine patches is none
    state = torch.random.get_rng_state()
    assert torch.equal(whole(images), none(images))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.7])
def test_each_image_loses_its_own_patches_in_training_only(rate: float) -> None:
    cut = Patches(16, 8, rate)
    images = torch.rand(64, 3, 32, 32)
    dropped = cut(images).unflatten(1, (9, 3)).abs().sum((2, 3, 4)) == 0
    assert (dropped.sum(1) == int(9 * rate)).all()
    assert len({tuple(row.tolist()) for row in dropped}) > 1
    assert not (cut.eval()(images).unflatten(1, (9, 3)).abs().sum((2, 3, 4)) == 0).any()


def test_the_loss_is_equations_1_and_2() -> None:
    rest, net = nn.Flatten(), nn.Identity()
    for models in (1, 4):
        upper = WithAdaptation(rest, net, 4, 0.6 * models / 4)
        logits, of_patches, labels = torch.randn(5, 3), torch.randn(5, 4, 3), torch.tensor([0, 1, 2, 0, 1])
        each = [nn.functional.cross_entropy(of_patches[:, i], labels) for i in range(4)]
        expected = nn.functional.cross_entropy(logits, labels) + 0.6 * sum(each) * models / 4
        torch.testing.assert_close(upper.loss((logits, of_patches), labels).mean(), expected)


@pytest.mark.slow
def test_adaptation_works_in_training_only_and_has_table_1s_layers() -> None:
    split = PatchSplitNN(adaptation="shared").build(CIFAR, 10, positions=True, seed=0)
    released = split.lower(torch.rand(2, 3, 32, 32))
    logits, of_patches = split.upper(released)
    assert (logits.shape, of_patches.shape) == ((2, 10), (2, 9, 10))
    assert split.upper.eval()(released).shape == (2, 10)
    adaptation: nn.Module = split.upper.adaptation  # type: ignore[assignment]
    weights = sum(p.numel() for p in adaptation.parameters())
    linear = (64 * 8 * 8 * 512 + 512) + (512 * 256 + 256) + (256 * 10 + 10)
    assert weights == linear + 2 * 512 + 2 * 256


def test_the_networks_of_many_clients_run_as_one_call() -> None:
    split = PatchSplitNN(patch=16, stride=16).build(Images(shape=(1, 32, 32)), 10, positions=True, seed=0)
    stack = Stacked(split.lower, 2)
    images = torch.rand(2, 3, 1, 32, 32)
    stack.settle(images)
    assert stack.batched
    stack.eval()
    torch.testing.assert_close(stack(images)[1], stack.copy(1).eval()(images[1]), rtol=1e-4, atol=1e-5)


def test_clients_that_drop_patches_still_run_as_one_call() -> None:
    """Each client's images lose patches of their own, as one after the other would."""
    stack = Stacked(Patches(16, 8, 0.5), 3)
    images = torch.rand(1, 4, 3, 32, 32).repeat(3, 1, 1, 1, 1)
    stack.settle(images)
    assert stack.batched
    dropped = stack(images).unflatten(2, (9, 3)).abs().sum((3, 4, 5)) == 0
    assert (dropped.sum(2) == 4).all()
    assert len(dropped.flatten(0, 1).unique(dim=0)) > 4


@pytest.mark.parametrize(
    ("spec", "domain", "sentence"),
    [
        (
            PatchSplitNN(patch=16, stride=10),
            CIFAR,
            r"do not end at the edge of 32 pixels; .*stride may be 1, 2, 4, 8, 16",
        ),
        (PatchSplitNN(patch=40, stride=8), CIFAR, "larger than an image of 32×32"),
        (PatchSplitNN(models=4), CIFAR, "models=4 is neither 1 nor the number of patches.* 9 of them"),
        (PatchSplitNN(), Images(shape=(3, 32, 48)), "needs square images, got 32×48"),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused(spec: PatchSplitNN, domain: Images, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        spec.build(domain, 10, positions=True, seed=0)


def test_patches_share_one_normalization() -> None:
    assert isinstance(shared(nn.Sequential(nn.BatchNorm2d(2)))[0], SharedNorm)  # type: ignore[index]
