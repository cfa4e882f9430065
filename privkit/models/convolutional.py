"""Convolutional networks as chains of named layers, cut behind one of the layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.base import NamedCuts, SplitModel
from privkit.models.tokens import Centered
from privkit.torch_utils.seeded import seeded


def cut_chain(pieces: Mapping[str, nn.Module], cut: str) -> SplitModel:
    """Cut a chain of modules after the one named `cut`, which may be any module but the last.

    `pieces` maps names to modules that, in this order, turn images scaled to [−1, 1] into logits. The lower segment
    first scales images from [0, 1]. Convolutions mix neighboring pixels, so smashed data reveal positions.
    """
    names = list(pieces)
    below = names.index(cut) + 1
    lower = OrderedDict({"center": Centered(), **{name: pieces[name] for name in names[:below]}})
    upper = OrderedDict((name, pieces[name]) for name in names[below:])
    return SplitModel(lower=nn.Sequential(lower), upper=nn.Sequential(upper), hides_places=False)


_MAPS, _WIDTH = (32, 64), 256


@dataclass(frozen=True, kw_only=True)
class Cnn(NamedCuts):
    """Two 3×3 convolutions, one pooling, and two linear layers, with tanh between them.

    Smashed data lie in [−1, 1] at every cut. For an image of 28×28 pixels, 12,544 numbers cross the cut at "pool", and
    256 at "fc". There are 3,232,906 weights for gray 28×28 images of ten classes.

    Attributes:
        cut: last layer of the lower segment: "conv1", "conv2", "pool" or "fc", with the tanh behind it.

    Source: accurate_sl, Table 1, "CNN on MNIST". The paper and its released code cut after "fc" and after "pool".

    >>> split = CNN.build(Images(shape=(1, 28, 28)), 10, positions=True, seed=0)
    >>> split.lower(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 256])
    """

    domain: ClassVar[str] = "images"

    cut: str = "fc"

    cuts: ClassVar[tuple[str, ...]] = ("conv1", "conv2", "pool", "fc")

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        channels, height, width = domain.shape
        if min(height, width) < 2:
            raise UsageError(f"cnn needs images of at least 2×2 pixels, got {height}×{width}")
        first, second = _MAPS
        with seeded(torch.device("cpu"), seed):
            pieces = {
                "conv1": nn.Sequential(nn.Conv2d(channels, first, 3, padding=1), nn.Tanh()),
                "conv2": nn.Sequential(nn.Conv2d(first, second, 3, padding=1), nn.Tanh()),
                "pool": nn.MaxPool2d(2),
                "fc": nn.Sequential(nn.Flatten(), nn.Linear(second * (height // 2) * (width // 2), _WIDTH), nn.Tanh()),
                "head": nn.Linear(_WIDTH, classes),
            }
        split = cut_chain(pieces, self.cut)
        split.lower.to(memory_format=torch.channels_last)  # convolutions then take two thirds of the time on a CPU
        return split


CNN = Cnn()  # the network of accurate_sl on MNIST, cut after its first linear layer


_SMALLEST = 12  # pixels per side; smaller images leave nothing after the second pooling


@dataclass(frozen=True, kw_only=True)
class LeNet5(NamedCuts):
    """LeNet-5: two 5×5 convolutions with poolings, and three linear layers, with tanh between them.

    Images below 32 pixels are padded by two pixels, as LeCun et al. padded 28-pixel digits. The second convolution
    reads all six maps and the output is linear, as in later implementations. Grey 28-pixel images take 61,706 weights.

    Attributes:
        cut: last layer of the lower segment: "conv1", "pool1", "conv2", "pool2", "fc1" or "fc2", with the tanh behind
            it. DP-CutMixSL cuts after "conv2".

    Source: LeCun et al. 1998, "Gradient-based learning applied to document recognition", §II.B.

    >>> LENET5.build(Images(shape=(1, 28, 28)), 10, positions=True, seed=0).lower(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 16, 10, 10])
    """

    domain: ClassVar[str] = "images"

    cut: str = "conv2"

    cuts: ClassVar[tuple[str, ...]] = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2")

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        channels, height, width = domain.shape
        if min(height, width) < _SMALLEST:
            raise UsageError(f"lenet5 needs images of at least {_SMALLEST}×{_SMALLEST} pixels, got {height}×{width}")
        pad = 2 if min(height, width) < 32 else 0
        left = [((side + 2 * pad - 4) // 2 - 4) // 2 for side in (height, width)]
        with seeded(torch.device("cpu"), seed):
            pieces = {
                "conv1": nn.Sequential(nn.Conv2d(channels, 6, 5, padding=pad), nn.Tanh()),
                "pool1": nn.AvgPool2d(2),
                "conv2": nn.Sequential(nn.Conv2d(6, 16, 5), nn.Tanh()),
                "pool2": nn.AvgPool2d(2),
                "fc1": nn.Sequential(nn.Flatten(), nn.Linear(16 * left[0] * left[1], 120), nn.Tanh()),
                "fc2": nn.Sequential(nn.Linear(120, 84), nn.Tanh()),
                "head": nn.Linear(84, classes),
            }
        return cut_chain(pieces, self.cut)


LENET5 = LeNet5()  # LeNet-5, cut after the second convolution


_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # configuration D


@dataclass(frozen=True, kw_only=True)
class Vgg16(NamedCuts):
    """VGG-16 with one linear classifier, as is usual for CIFAR.

    Thirteen 3×3 convolutions and five poolings are followed by the spatial mean and the classifier, without the
    ImageNet network's two layers of 4096 units. Poolings round up, so that 28 pixels suffice for all five.

    Attributes:
        cut: last layer of the lower segment: "pool1" (after two convolutions and one pooling) to "pool5".
        batch_norm: whether each convolution is followed by batch normalisation.

    Source: Simonyan and Zisserman 2015, table 1, column D; the cut is CutMixSL §4's.

    >>> split = Vgg16().build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0)
    >>> split.lower(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64, 16, 16])
    """

    domain: ClassVar[str] = "images"

    cut: str = "pool1"
    batch_norm: bool = False
    cuts: ClassVar[tuple[str, ...]] = tuple(f"pool{i + 1}" for i in range(len(_STAGES)))

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        from timm.models.vgg import VGG

        with seeded(torch.device("cpu"), seed):
            features = VGG(
                [layer for stage in _STAGES for layer in (*stage, "M")],
                in_chans=domain.shape[0],
                mlp_ratio=1 / 4096,  # timm's classifier of 100 million weights is not used
                norm_layer=nn.BatchNorm2d if self.batch_norm else None,
            ).features
            head = nn.Linear(_STAGES[-1][-1], classes)
            nn.init.normal_(head.weight, 0, 0.01)
            nn.init.zeros_(head.bias)
        pieces: dict[str, nn.Module] = {}
        start = 0
        for end, layer in enumerate(features):
            if isinstance(layer, nn.MaxPool2d):
                layer.ceil_mode = True
                pieces[f"pool{len(pieces) + 1}"] = features[start : end + 1]
                start = end + 1
        pieces["head"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
        return cut_chain(pieces, self.cut)


VGG16 = Vgg16()  # VGG-16, cut after two convolutions and one pooling
