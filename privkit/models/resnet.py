"""ResNet-18, ResNet-50 and CIFAR's ResNet-20, built from timm's blocks and cut after the stem or after a stage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.domains.images.domain import Images
from privkit.models.base import SMALL_IMAGE, NamedCuts, SplitModel
from privkit.models.convolutional import cut_chain
from privkit.torch_utils.seeded import seeded

STAGE_BLOCKS = {18: (2, 2, 2, 2), 20: (3, 3, 3), 50: (3, 4, 6, 3)}
_CHANNELS = {18: (64, 128, 256, 512), 20: (16, 32, 64), 50: (64, 128, 256, 512)}
_MAX_SIDE = 2  # largest side of the map that max pooling leaves

_Depth = Literal[18, 20, 50]
_Activation = Literal["relu", "tanh"]
Pooling = Literal["mean", "max"]


def _tanh(inplace: bool = False) -> nn.Module:
    """A tanh activation for timm; timm's request for an in-place activation is ignored."""
    return nn.Tanh()


class _Shortcut(nn.Module):
    """A shortcut without weights (He et al.'s option A): keeps every second pixel and doubles the channels by zeros."""

    def forward(self, maps: Tensor) -> Tensor:
        return functional.pad(maps[:, :, ::2, ::2], (0, 0, 0, 0, 0, maps.shape[1]))


@dataclass(frozen=True, kw_only=True)
class ResNet(NamedCuts):
    """A residual network of basic blocks, or of bottlenecks at depth 50.

    Depths 18 and 50 have a 3×3 stem without pooling for images below 64 pixels per side, as is usual on CIFAR (patch
    SplitNN, table 4), and the ImageNet stem for larger images. Depth 20 is the CIFAR network of 0.27 million weights;
    its shortcuts have no weights.

    Attributes:
        depth: number of layers: 18 or 50 (four stages), or 20 (three stages).
        activation: "relu", or "tanh", which also follows the pooling, so that smashed data lie in [−1, 1] at every cut.
        pooling: "mean" over each of the last feature maps, or "max", which keeps 2×2 maxima of each map.
        cut: last layer of the lower segment: "stem", "stage1", ..., or "pool" (the pooled vector [N, D], before the
            classifier, where accurate_sl cuts).

    Source: He et al. 2016, table 1 (18 and 50) and §4.2 (20); accurate_sl, Table 1, and its release for tanh and max.

    >>> split = RESNET20.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0)
    >>> split.lower(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 16, 32, 32])
    >>> RESNET20.cuts
    ('stem', 'stage1', 'stage2', 'stage3', 'pool')
    """

    domain: ClassVar[str] = "images"

    depth: _Depth = 18
    activation: _Activation = "relu"
    pooling: Pooling = "mean"
    cut: str = "stage1"

    @property
    def quick_attacks(self) -> tuple[str, ...]:
        """The attack that `--attack auto` adds for cut="pool": it identifies more images than a black-box attack."""
        return ("posterior_mean:repeats=4,contrast=1,mirror=true",) if self.cut == "pool" else ()

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("stem", *(f"stage{i + 1}" for i in range(len(STAGE_BLOCKS[self.depth]))), "pool")

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        with seeded(torch.device("cpu"), seed):
            chain = pieces(self.depth, domain.shape, classes, activation=self.activation, pooling=self.pooling)
            return cut_chain(chain, self.cut)


def pieces(
    depth: _Depth, shape: Sequence[int], classes: int, *, activation: _Activation = "relu", pooling: Pooling = "mean"
) -> dict[str, nn.Module]:
    """Build the network with random weights as a chain of named modules: stem, stages, pool and head. `shape` is (C, H,
    W); the other arguments are as in `ResNet`.
    """
    from timm.models import resnet

    channels, height, width = shape
    first = _CHANNELS[depth][0]
    net: Any = resnet.ResNet(
        resnet.Bottleneck if depth == 50 else resnet.BasicBlock,  # type: ignore[arg-type]
        STAGE_BLOCKS[depth],
        num_classes=classes,
        in_chans=channels,
        channels=_CHANNELS[depth],
        stem_type="deep",  # the only stem of free width; its convolutions are replaced
        stem_width=first // 2,
        act_layer=_tanh if activation == "tanh" else nn.ReLU,
    )
    if small := depth == 20 or min(height, width) < SMALL_IMAGE:
        net.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
    else:
        net.conv1 = nn.Conv2d(channels, first, 7, stride=2, padding=3, bias=False)
    if depth == 20:
        for stage in (net.layer2, net.layer3):
            stage[0].downsample = _Shortcut()
    net.init_weights()
    stem = {"conv1": net.conv1, "bn1": net.bn1, "act1": net.act1}
    if not small:
        stem["maxpool"] = net.maxpool
    stages = {f"stage{i + 1}": getattr(net, f"layer{i + 1}") for i in range(len(STAGE_BLOCKS[depth]))}
    pool, head = net.global_pool, net.fc
    if pooling == "max":
        pool = nn.Sequential(nn.AdaptiveMaxPool2d(_MAX_SIDE), nn.Flatten())
        head = nn.Linear(_MAX_SIDE**2 * net.num_features, classes)
    if activation == "tanh":
        pool = nn.Sequential(pool, nn.Tanh())
    return {"stem": nn.Sequential(OrderedDict(stem)), **stages, "pool": pool, "head": head}


RESNET18 = ResNet()  # ResNet-18, cut after the first stage

RESNET50 = ResNet(depth=50)  # ResNet-50, cut after the first stage

RESNET20 = ResNet(depth=20)  # ResNet-20 of CIFAR, cut after the first stage

RESNET20_TANH = ResNet(depth=20, activation="tanh", pooling="max", cut="pool")
"""The network of accurate_sl on CIFAR-10: 256 numbers in [−1, 1] go to its classifier, and 8,192 leave "stage2"."""
