"""The scale of a release: multiplication by a public factor hides nothing, so attacks must not depend on the scale."""

from __future__ import annotations

from math import log2

import torch
from torch import Tensor

_SMALL, _LARGE = 1 / 8, 8.0
"""Range of a release's standard deviation in which decoders read it unscaled."""
_SHRINKAGE = 1e-3  # share of the mean variance that is added to each channel's variance
_USUAL, _ZERO = 1e-12, 1e-30
"""Lower limits of variances, for a usual release and for a release of zeros. The inverse of the second is a float32."""


def least_variance(release: Tensor) -> float:
    """A positive lower limit for variances in denominators, in (0, 1e-12].

    The limit falls with the square of the release's largest number. So attacks still work if a defense multiplies the
    release by a public factor such as 1e-9.

    >>> least_variance(torch.tensor([0.0, 100.0])), least_variance(torch.zeros(2))
    (1e-12, 1e-30)
    >>> 1e-33 < least_variance(torch.tensor([1e-9])) <= 1e-30
    True
    """
    most = float(release.detach().abs().max())
    return max(_ZERO, min(_USUAL, (torch.finfo(torch.float32).eps * most) ** 2))


def mean_and_scale(numbers: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Compute mean and standard deviation along an axis, float32. The deviation of a nearly constant channel is
    enlarged."""
    variance = numbers.var(dim, correction=0)
    scale = (variance + _SHRINKAGE * variance.mean() + least_variance(numbers)).sqrt()
    return numbers.mean(dim).float(), scale.float()


def usual_unit(release: Tensor) -> float:
    """The power of 2 by which to multiply a release, so that its standard deviation is about 1.

    The factor is 1 if the standard deviation is already in [1/8, 8], or is 0. Token decoders need numbers of this size:
    after multiplication by 0.01, one decoder ignored its input.

    >>> release = torch.tensor([-1.0, 1.0])
    >>> usual_unit(release), usual_unit(1e-3 * release), usual_unit(1e3 * release), usual_unit(0 * release)
    (1.0, 1024.0, 0.0009765625, 1.0)
    """
    spread = float(release.detach().double().std(correction=0))
    return 1.0 if spread == 0 or _SMALL <= spread <= _LARGE else 2.0 ** -round(log2(spread))
