"""VGG-16, ResNets, LeNet-5, a small CNN: the cut network is the reference, with its published size and shapes."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import timm
import torch
from timm.models.vgg import VGG, cfgs
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import ResNet18_Weights, ResNet50_Weights

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models import SplitModel
from privkit.models.convolutional import CNN, LENET5, VGG16, Cnn, LeNet5, Vgg16
from privkit.models.resnet import RESNET18, RESNET20, RESNET20_TANH, RESNET50, ResNet


def resnet18(size: int) -> nn.Module:
    """timm's own; on small images patch SplitNN's table 4 changes the first convolution and takes the pooling out."""
    net = timm.create_model("resnet18", num_classes=10, in_chans=3)
    if size < 64:
        net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return net


def vgg16(batch_norm: bool) -> nn.Module:
    """timm's own features, their mean, and a linear classifier."""
    features = VGG(cfgs["vgg16"], mlp_ratio=1 / 4096, norm_layer=nn.BatchNorm2d if batch_norm else None).features
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class PlainResNet20(nn.Module):
    """He et al. §4.2 as a list of weights: 3×3 convolutions, shortcuts without weights."""

    features = 64

    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 16, *[16] * 6, *[32] * 6, *[64] * 6]
        layers = []
        for before, after in pairwise(sizes):
            layers += [nn.Conv2d(before, after, 3, 1 + (before == after // 2), 1, bias=False), nn.BatchNorm2d(after)]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(self.features, 10)

    def forward(self, images: Tensor) -> Tensor:
        pairs = [self.layers[i : i + 2] for i in range(0, len(self.layers), 2)]
        maps = self.activation(pairs[0](images))
        for first, second in zip(pairs[1::2], pairs[2::2], strict=True):
            inner = second(self.activation(first(maps)))
            if inner.shape != maps.shape:
                maps = torch.cat([maps[:, :, ::2, ::2], torch.zeros_like(inner)[:, maps.shape[1] :]], 1)
            maps = self.activation(inner + maps)
        return self.head(self.pooled(maps))

    def activation(self, maps: Tensor) -> Tensor:
        return maps.relu()

    def pooled(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


class PlainTanhResNet20(PlainResNet20):
    """The same as accurate_sl's release has it on CIFAR-10: tanh throughout, and maxima of 4×4 pixels."""

    features = 256

    def activation(self, maps: Tensor) -> Tensor:
        return maps.tanh()

    def pooled(self, maps: Tensor) -> Tensor:
        return functional.max_pool2d(maps, 4).flatten(1).tanh()


class PlainLeNet(nn.Module):
    """LeCun et al. §II.B with a full second convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c3 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.c5, self.f6, self.out = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        s2 = functional.avg_pool2d(self.c1(images).tanh(), 2)
        s4 = functional.avg_pool2d(self.c3(s2).tanh(), 2)
        return self.out(self.f6(self.c5(s4.flatten(1)).tanh()).tanh())


def plain_cnn() -> nn.Module:
    """PyTorch's MNIST example with padded convolutions and tanh: accurate_sl, table 1."""
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 64, 3, padding=1), nn.Tanh()]
    return nn.Sequential(
        *convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12_544, 256), nn.Tanh(), nn.Linear(256, 10)
    )


CASES: list[tuple[Any, Callable[[], nn.Module], tuple[int, int, int]]] = [
    (VGG16, lambda: vgg16(False), (3, 32, 32)),
    (RESNET18, lambda: resnet18(32), (3, 32, 32)),
    (RESNET20, PlainResNet20, (3, 32, 32)),
    (RESNET20_TANH, PlainTanhResNet20, (3, 32, 32)),
    (LENET5, PlainLeNet, (1, 28, 28)),
    (CNN, plain_cnn, (1, 28, 28)),
]


@torch.no_grad()
def copied(split: SplitModel, whole: nn.Module) -> None:
    """The whole network gets moved weights, and the split one the same, in order."""
    own = [value for half in (split.lower, split.upper) for value in half.state_dict().values()]
    theirs = list(whole.state_dict().values())
    assert [value.shape for value in own] == [value.shape for value in theirs]
    draws = torch.Generator().manual_seed(0)
    for a, b in zip(own, theirs, strict=True):
        if a.is_floating_point():
            a.add_(torch.rand(a.shape, generator=draws) - 0.5, alpha=0.06)
            b.copy_(a)


@pytest.mark.slow(but=4)
@pytest.mark.parametrize(
    ("spec", "reference", "shape", "cut"),
    [
        *((*case, cut) for case in CASES for cut in (case[0].cuts[0], case[0].cuts[-1])),
        *(
            pytest.param(*case, cut, marks=pytest.mark.slow)  # a quick law says that a cut changes no function
            for case in CASES
            for cut in case[0].cuts[1:-1]
        ),
        (Vgg16(batch_norm=True), lambda: vgg16(True), (3, 32, 32), "pool2"),
        (RESNET18, lambda: resnet18(96), (3, 96, 96), "stem"),
        pytest.param(
            *(RESNET50, lambda: timm.create_model("resnet50", num_classes=10), (3, 64, 64), "stage3"),
            marks=pytest.mark.slow,  # test_weights_and_multiplications… builds one
        ),
    ],
)
def test_lower_then_upper_is_the_reference(
    spec: Any, reference: Callable[[], nn.Module], shape: tuple[int, int, int], cut: str
) -> None:
    split, whole = replace(spec, cut=cut).build(Images(shape=shape), 10, positions=True, seed=0), reference().eval()
    copied(split, whole)
    images = torch.rand(2, *shape)
    with torch.no_grad():
        ours, theirs = split.upper.eval()(split.lower.eval()(images)), whole((images - 0.5) / 0.5)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert (theirs[0] - theirs[1]).abs().max() > 1e-4 * theirs.abs().max()


@pytest.mark.parametrize(
    ("spec", "shape", "smashed"),
    [
        (VGG16, (3, 32, 32), (64, 16, 16)),  # after two convolutions and one pooling: CutMixSL §4
        (Vgg16(cut="pool3"), (3, 32, 32), (256, 4, 4)),
        (Vgg16(cut="pool5"), (1, 28, 28), (512, 1, 1)),
        (LENET5, (1, 28, 28), (16, 10, 10)),
        (LeNet5(cut="pool1"), (1, 28, 28), (6, 14, 14)),
        (LeNet5(cut="fc1"), (1, 28, 28), (120,)),
        (CNN, (1, 28, 28), (256,)),  # accurate_sl's table 1
        (Cnn(cut="pool"), (1, 28, 28), (64, 14, 14)),  # 12,544 numbers in accurate_sl's table 1
        (ResNet(cut="stem"), (3, 32, 32), (64, 32, 32)),
        (ResNet(cut="stem"), (3, 224, 224), (64, 56, 56)),
        (
            ResNet(cut="pool"),
            (3, 32, 32),
            (512,),
        ),  # ResNet-18 before its classifier: 512 numbers in accurate_sl's table 1
        (ResNet(depth=20, cut="stage2"), (3, 32, 32), (32, 16, 16)),
        (RESNET20_TANH, (3, 32, 32), (256,)),  # accurate_sl's table 1
        (replace(RESNET20_TANH, cut="stage2"), (3, 32, 32), (32, 16, 16)),  # the earlier cut of its table 8
        (ResNet(depth=50, cut="pool"), (3, 64, 64), (2048,)),  # as released; accurate_sl's table 1 prints 512
    ],
)
def test_smashed_shapes(spec: Any, shape: tuple[int, int, int], smashed: tuple[int, ...]) -> None:
    split = spec.build(Images(shape=shape), 10, positions=True, seed=0)
    with torch.no_grad():
        assert split.lower.eval()(torch.zeros(2, *shape)).shape == (2, *smashed)
    assert split.class_token == "none"


@pytest.mark.parametrize(
    ("spec", "shape", "weights"),
    [
        (RESNET20, (3, 32, 32), 269_722),  # 0.27 million, He et al. 2016, table 6
        (RESNET20_TANH, (3, 32, 32), 269_722 + 10 * 192),  # 256 numbers go to its classifier, not 64
        (RESNET18, (3, 224, 224), 11_181_642),  # torchvision's 11,689,512 with a thousand classes
        (LENET5, (1, 28, 28), 61_706),
        (CNN, (1, 28, 28), 320 + 18_496 + 3_211_520 + 2_570),
        (VGG16, (3, 32, 32), 14_714_688 + 5_130),  # thirteen convolutions and the classifier
    ],
)
def test_weights_counted(spec: Any, shape: tuple[int, int, int], weights: int) -> None:
    split = spec.build(Images(shape=shape), 10, positions=True, seed=0)
    assert sum(w.numel() for half in (split.lower, split.upper) for w in half.parameters()) == weights


@pytest.mark.parametrize(
    ("spec", "published"), [(RESNET18, ResNet18_Weights.DEFAULT.meta), (RESNET50, ResNet50_Weights.DEFAULT.meta)]
)
def test_weights_and_multiplications_of_imagenet_are_torchvisions(spec: Any, published: dict[str, Any]) -> None:
    split = spec.build(Images(shape=(3, 224, 224)), 1000, positions=True, seed=0)
    assert sum(w.numel() for half in (split.lower, split.upper) for w in half.parameters()) == published["num_params"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        split.upper(split.lower(torch.zeros(2, 3, 224, 224)))
    assert round(counter.get_total_flops() / 4e9, 3) == published["_ops"]  # two images, two operations a product


def test_an_activation_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="activation must be one of relu, tanh, got 'gelu'"):
        ResNet(activation="gelu")  # type: ignore[arg-type]


def test_lenet_says_how_small_is_too_small() -> None:
    with pytest.raises(UsageError, match=r"lenet5 needs images of at least 12×12 pixels, got 8×8"):
        LENET5.build(Images(shape=(1, 8, 8)), 10, positions=True, seed=0)
    split = LENET5.build(Images(shape=(1, 12, 12)), 10, positions=True, seed=0)
    assert split.upper(split.lower(torch.zeros(1, 1, 12, 12))).shape == (1, 10)


def test_cnn_says_how_small_is_too_small() -> None:
    with pytest.raises(UsageError, match=r"cnn needs images of at least 2×2 pixels, got 1×8"):
        CNN.build(Images(shape=(1, 1, 8)), 10, positions=True, seed=0)


def test_depths_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="depth must be one of 18, 20, 50, got 34"):
        ResNet(depth=34)  # type: ignore[arg-type]
