"""Patch SplitNN: each patch of an image passes through its own network, and the server joins the feature maps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn.functional import batch_norm, cross_entropy

from privkit.constraints import Count, NonNegative
from privkit.domains.images.domain import Images
from privkit.errors import UsageError
from privkit.models.base import NamedCuts, SplitModel
from privkit.models.resnet import STAGE_BLOCKS, pieces
from privkit.models.tokens import centered
from privkit.torch_utils.seeded import seeded

# Feature maps of P patches lie on the channel axis, the patch before the channel: [N, P·C, h, w]. Convolutions with own
# weights for each patch are then one grouped convolution, and all other layers remain unchanged.


class _SharedConv(nn.Conv2d):
    """Applies the same convolution to each of P patches: [N, P·C, h, w] -> [N, P·C', h', w']."""

    def forward(self, maps: Tensor) -> Tensor:
        patches = maps.reshape(-1, self.in_channels, *maps.shape[-2:])
        output = super().forward(patches)
        return output.reshape(len(maps), -1, *output.shape[-2:])


class SharedNorm(nn.BatchNorm2d):
    """A batch normalization whose weights P patches share, applied to one patch after another. Each patch is normalized
    by its own batch statistics, and the running statistics are updated P times per step.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Feature maps [N, P·C, h, w] -> the same shape."""
        patches = maps.shape[1] // self.num_features
        assert self.weight is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        weight, bias = self.weight.repeat(patches), self.bias.repeat(patches)
        if not self.training:
            mean, variance = self.running_mean.repeat(patches), self.running_var.repeat(patches)
            return batch_norm(maps, mean, variance, weight, bias, training=False, eps=self.eps)
        assert self.momentum is not None
        with torch.no_grad():
            of_patch = maps.detach().unflatten(1, (patches, -1))
            steps = torch.arange(patches - 1, -1, -1, device=maps.device, dtype=maps.dtype)
            shares = self.momentum * (1 - self.momentum) ** steps  # weight of each patch after all updates
            kept = (1 - self.momentum) ** patches
            self.running_mean.mul_(kept).add_(shares @ of_patch.mean((0, 3, 4)))
            self.running_var.mul_(kept).add_(shares @ of_patch.var((0, 3, 4), correction=1))
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(patches)
        return batch_norm(maps, None, None, weight, bias, training=True, eps=self.eps)


def shared(network: nn.Module) -> nn.Module:
    """Change the network in place, such that it applies the same weights to each of P patches stacked as channels."""
    for part in network.modules():
        if type(part) is nn.Conv2d:
            part.__class__ = _SharedConv
        elif type(part) is nn.BatchNorm2d:
            part.__class__ = SharedNorm
    return network


def one_a_patch(networks: Sequence[nn.Module]) -> nn.Module:
    """Join P networks of one architecture into one for patches stacked as channels: network i processes patch i. The
    first network is changed in place and returned.
    """
    for part, *others in zip(*(network.modules() for network in networks), strict=True):
        copies = [part, *others]
        if isinstance(part, nn.Conv2d):
            part.groups = len(networks)
            part.in_channels *= len(networks)
            part.out_channels *= len(networks)
        elif isinstance(part, nn.BatchNorm2d):
            part.num_features *= len(networks)
        for name, _ in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.cat([getattr(copy, name).detach() for copy in copies])))
        for name, buffer in list(part.named_buffers(recurse=False)):
            if buffer.ndim:
                setattr(part, name, torch.cat([getattr(copy, name) for copy in copies]))
    return networks[0]


_HIDDEN = (512, 256)  # widths inside AdaptationNet, table 1


class Patches(nn.Module):
    """Cuts images into square patches and stacks them as channels; in training, sets a share of the patches to zero."""

    def __init__(self, patch: int, stride: int, drop: float) -> None:
        super().__init__()
        self.patch, self.stride, self.drop = patch, stride, drop

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] in [0, 1] -> patches [N, P·C, p, p] in [-1, 1], row by row."""
        cut = centered(images).unfold(2, self.patch, self.stride).unfold(3, self.patch, self.stride)
        patches = cut.permute(0, 2, 3, 1, 4, 5).flatten(1, 2)
        if self.training and (dropped := int(patches.shape[1] * self.drop)):
            order = torch.rand(patches.shape[:2], device=patches.device).argsort(1)
            patches = patches * (order >= dropped)[:, :, None, None, None]
        return patches.flatten(1, 2)


class Concatenate(nn.Module):
    """Joins the feature maps of P = g·g patches into one map, arranged like the patches in the image. If patches
    overlap, the joined map is larger than the map of the whole image.
    """

    def __init__(self, grid: int) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, maps: Tensor) -> Tensor:
        """Feature maps [N, g·g·C, h, w] -> one map [N, C, g·h, g·w]."""
        g = self.grid
        cells = maps.unflatten(1, (g, g, -1)).permute(0, 3, 1, 4, 2, 5)
        joined: Tensor = cells.flatten(4, 5).flatten(2, 3)
        return joined


class WithAdaptation(nn.Module):
    """The server's network together with AdaptationNet, which classifies every patch separately during training.

    AdaptationNet maps feature maps [N, P·C, h, w] of P patches to logits [N, P·L, 1, 1] for L classes. Its loss has the
    factor `weight` = α·M/P if there are M networks for the patches.
    """

    def __init__(self, rest: nn.Module, adaptation: nn.Module, patches: int, weight: float) -> None:
        super().__init__()
        self.rest, self.adaptation, self.patches, self.weight = rest, adaptation, patches, weight

    def forward(self, maps: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Feature maps [N, P·C, h, w] -> logits [N, L]; in training, also the patches' logits [N, P, L]."""
        logits: Tensor = self.rest(maps)
        if not self.training:
            return logits
        return logits, self.adaptation(maps).flatten(1).unflatten(1, (self.patches, -1))

    def loss(self, outputs: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        """Each record's loss, [N]: its cross-entropy plus `weight` times the sum of its patches' (Eq. 1, 2)."""
        if isinstance(outputs, Tensor):
            return cross_entropy(outputs, labels, reduction="none")
        logits, of_patches = outputs
        repeated = labels.repeat_interleave(self.patches, 0)
        upper = cross_entropy(of_patches.flatten(0, 1), repeated, reduction="none").view(-1, self.patches).sum(1)
        return cross_entropy(logits, labels, reduction="none") + self.weight * upper


@dataclass(frozen=True, kw_only=True)
class PatchSplitNN(NamedCuts):
    """A ResNet whose first layers run on each of P patches separately; the server joins the patches' feature maps.

    The paper calls the first layers *upper* models; here they form the lower segment. Its output [N, P·C, h, w] holds C
    feature maps of patch 1, then of patch 2, …. The defense `split_parts:parts=P` stores the patches separately.

    Attributes:
        depth: 18 (the paper) or 20, CIFAR's small ResNet; see `ResNet`.
        cut: last layer of the patches' networks: "stem", "stage1" (the paper), "stage2" or, at depth 18, "stage3".
        patch: side of a patch in pixels.
        stride: pixels from one patch to the next; if it is smaller than `patch`, patches overlap.
        models: M, the number of networks for the patches: 1 for a single network; None for one network per patch.
        adaptation: the AdaptationNet of Patch SplitNN+, which classifies each patch in training: "none", "shared" by
            all patches (as in the released code), or "own" for one network per patch.
        alpha: weight α of AdaptationNet's loss; the paper has 1 on CIFAR-10, .6 on CIFAR-100 and .3 on PCam.
        drop: share of each training image's patches that are set to zero, in [0, 1).

    Source: Mabuchi and Ishikawa, "Patch-based Privacy Preserving Neural Network for Vision Tasks", §3, tables 1 to 4.
    In the paper a single network gets one patch after another, so each patch has its own batch statistics. Convolutions
    pad each patch separately with zeros.

    >>> split = PATCH_SPLITNN.build(Images(shape=(3, 32, 32)), 10, positions=True, seed=0)
    >>> split.lower(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 576, 16, 16])
    """

    domain: ClassVar[str] = "images"

    depth: Literal[18, 20] = 18
    cut: str = "stage1"
    patch: Count = 16
    stride: Count = 8
    models: Count | None = None
    adaptation: Literal["none", "shared", "own"] = "none"
    alpha: NonNegative = 1.0
    drop: Annotated[float, Ge(0), Lt(1)] = 0.0

    @property
    def cuts(self) -> tuple[str, ...]:
        return ("stem", *(f"stage{i + 1}" for i in range(len(STAGE_BLOCKS[self.depth]) - 1)))

    def grid(self, height: int, width: int) -> int:
        """The number g of patches per row and column of a square image. Raises `UsageError` if the image is not square,
        is smaller than a patch, or has an edge at which no patch ends.
        """
        if height != width:
            raise UsageError(f"patch_splitnn needs square images, got {height}×{width} pixels")
        if self.patch > width:
            raise UsageError(f"patch={self.patch} is larger than an image of {width}×{width} pixels")
        if (width - self.patch) % self.stride:
            fitting = [s for s in range(1, self.patch + 1) if (width - self.patch) % s == 0]
            raise UsageError(
                f"patches of {self.patch} pixels every {self.stride} do not end at the edge of {width} pixels; "
                f"for patch={self.patch}, stride may be {', '.join(map(str, fitting))}"
            )
        return (width - self.patch) // self.stride + 1

    def build(self, domain: Images, classes: int, *, positions: bool, seed: int) -> SplitModel:
        _, height, width = domain.shape
        grid = self.grid(height, width)
        count = grid * grid
        if self.models not in (None, 1, count):
            raise UsageError(
                f"models={self.models} is neither 1 nor the number of patches: patch={self.patch} and "
                f"stride={self.stride} make {count} of them; leave models out for one network per patch"
            )
        apart = self.models != 1 and count > 1
        with seeded(torch.device("cpu"), seed):
            chain = pieces(self.depth, domain.shape, classes)
            below = self.cuts.index(self.cut) + 1
            first, rest = self._parts(chain, below)
            if apart:
                others = [self._parts(pieces(self.depth, domain.shape, classes), below)[0] for _ in range(count - 1)]
                first = one_a_patch([first, *others])
            else:
                shared(first)
            lower = nn.Sequential(OrderedDict(patches=Patches(self.patch, self.stride, self.drop), networks=first))
            upper: nn.Module = nn.Sequential(OrderedDict(concatenate=Concatenate(grid), **rest))
            if self.adaptation != "none":
                weight = self.alpha * (count if apart else 1) / count
                upper = WithAdaptation(upper, self._adaptation(lower, domain, count, classes), count, weight)
        return SplitModel(lower=lower, upper=upper, hides_places=False)

    @staticmethod
    def _parts(chain: dict[str, nn.Module], below: int) -> tuple[nn.Module, dict[str, nn.Module]]:
        named = list(chain.items())
        return nn.Sequential(OrderedDict(named[:below])), dict(named[below:])

    def _adaptation(self, lower: nn.Module, domain: Images, patches: int, classes: int) -> nn.Module:
        lower.eval()
        with torch.no_grad():
            *_, maps, side, _ = lower(torch.zeros(1, *domain.shape)).shape
        lower.train()
        networks = [_adaptation_net(maps // patches, side, classes) for _ in range(patches)]
        if self.adaptation == "own" and patches > 1:
            return one_a_patch(networks)
        return shared(networks[0])


def _adaptation_net(channels: int, side: int, classes: int) -> nn.Module:
    """Build AdaptationNet for one patch (table 1); its linear layer is a convolution that covers the whole map."""
    half = (side + 1) // 2
    first, second = _HIDDEN
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(half),
        nn.Conv2d(channels, first, half),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        nn.Conv2d(first, second, 1),
        nn.BatchNorm2d(second),
        nn.ReLU(),
        nn.Conv2d(second, classes, 1),
    )


PATCH_SPLITNN = PatchSplitNN()
"""A 32×32 image has nine patches of 16×16 pixels, with stride 8; each patch has a network of its own."""
