"""Tokens on a common scale, whatever the lower segment and the defense made of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_SHRINKAGE = 1e-3
"""Added to a channel's variance, in units of the mean one: channels that hardly vary are not blown up."""


class Standardized(nn.Module):
    """Tokens twice: with each channel moved to mean 0 and variance near 1, and with each token so.

    The first keeps a token's size, which identity and spectral releases speak by; the second is untroubled by tokens of
    very different sizes. Correlations of channels stay, since whitened tokens were measured to be learned worse: their
    small directions are learned as early as the large ones, and contents are matched to the wrong patches.

    Args:
        sample: rows of a release [N, T, D]; the mean and variance of its channels are kept.

    >>> sample = torch.tensor([[[0.0, 5.0], [2.0, 5.0]]])
    >>> Standardized(sample)(sample).round(decimals=2)[0, 0].tolist()
    [-1.0, 0.0, -1.0, 1.0]
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, sample: Tensor) -> None:
        super().__init__()
        tokens = sample.detach().cpu().double().flatten(0, -2)
        variance = tokens.var(0, correction=0)
        self.register_buffer("mean", tokens.mean(0).float())
        self.register_buffer("scale", (variance + _SHRINKAGE * variance.mean() + 1e-12).sqrt().float())

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [..., D] -> [..., 2D]."""
        alone = functional.layer_norm(tokens, tokens.shape[-1:])
        return torch.cat([(tokens - self.mean) / self.scale, alone], -1)
