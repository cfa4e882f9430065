"""Networks for the patches of an image: one a patch or one for all, evaluated in one call on stacked channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

# Feature maps of P patches lie on the channel axis, the patch before the channel: [N, P·C, h, w]. So a network of one
# copy a patch is a grouped convolution, and every other layer stays what it is.


class SharedConv(nn.Conv2d):
    """One convolution for each of P patches: [N, P·C, h, w] -> [N, P·C', h', w']."""

    def forward(self, maps: Tensor) -> Tensor:
        patches = maps.reshape(-1, self.in_channels, *maps.shape[-2:])
        output = super().forward(patches)
        return output.reshape(len(maps), -1, *output.shape[-2:])


class SharedNorm(nn.BatchNorm2d):
    """One batch normalization for P patches, which see it one after another.

    So each patch is normalized by its own batch, and the running statistics move P times a step.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """[N, P·C, h, w] -> the same shape."""
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
            shares = self.momentum * (1 - self.momentum) ** steps  # what each patch weighs after the later ones
            kept = (1 - self.momentum) ** patches
            self.running_mean.mul_(kept).add_(shares @ of_patch.mean((0, 3, 4)))
            self.running_var.mul_(kept).add_(shares @ of_patch.var((0, 3, 4), correction=1))
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(patches)
        return batch_norm(maps, None, None, weight, bias, training=True, eps=self.eps)


def shared(network: nn.Module) -> nn.Module:
    """The network with its convolutions and normalizations shared by all patches; it is changed in place.

    Args:
        network: of convolutions without groups, batch normalizations, and layers that act on each channel.
    """
    for part in network.modules():
        if type(part) is nn.Conv2d:
            part.__class__ = SharedConv
        elif type(part) is nn.BatchNorm2d:
            part.__class__ = SharedNorm
    return network


def one_a_patch(networks: Sequence[nn.Module]) -> nn.Module:
    """P networks of one architecture as one, on stacked channels; the first is changed in place.

    >>> networks = [nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)) for _ in range(2)]
    >>> one_a_patch(networks)(torch.rand(5, 6, 8, 8)).shape
    torch.Size([5, 8, 6, 6])
    """
    for part, *others in zip(*(network.modules() for network in networks), strict=True):
        copies = [part, *others]
        if isinstance(part, nn.Conv2d):
            part.groups = len(networks)
            part.in_channels *= len(networks)
            part.out_channels *= len(networks)
        elif isinstance(part, nn.BatchNorm2d):
            part.num_features *= len(networks)
        elif next(part.parameters(recurse=False), None) is not None:
            raise TypeError(
                f"only convolutions and batch normalizations can stand one a patch, got {type(part).__name__}"
            )
        for name, _ in list(part.named_parameters(recurse=False)):
            setattr(part, name, nn.Parameter(torch.cat([getattr(copy, name).detach() for copy in copies])))
        for name, buffer in list(part.named_buffers(recurse=False)):
            if buffer.ndim:
                setattr(part, name, torch.cat([getattr(copy, name) for copy in copies]))
    return networks[0]
