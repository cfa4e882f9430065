"""VGG-16 of timm for small images, cut after a pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from privkit.domains.images.domain import Images
from privkit.models.base import NamedCuts, SplitModel
from privkit.models.chain import cut_chain
from privkit.torch_utils.seeded import seeded

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # configuration D


@dataclass(frozen=True, kw_only=True)
class Vgg16(NamedCuts):
    """VGG-16 with one linear classifier, as CIFAR has it.

    Thirteen convolutions of 3×3 and five poolings; the mean of what is left goes to the classifier, in place of the
    ImageNet network's two layers of 4096. Poolings round up, so that 28 pixels are enough for all five.

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

    @property
    def cuts(self) -> tuple[str, ...]:
        return tuple(f"pool{i + 1}" for i in range(len(_STAGES)))

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        """Build both segments; `positions` changes nothing. See `ModelSpec.build`."""
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


VGG16 = Vgg16()
"""VGG-16, cut after two convolutions and one pooling."""
