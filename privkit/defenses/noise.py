"""Clipping and noise on smashed data. All functions except `overwritten` leave their inputs unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from privkit.accountants.spec.parts import UNMIXED, Noise
from privkit.accountants.spec.sensitivity import Ball, Clamp, ClipSet
from privkit.constraints import Magnitude
from privkit.defenses.base import Effect, OnSmashed, Place
from privkit.defenses.charge import Noised

BELOW = 1 - 1e-6
"""Clipping shrinks a norm to this share of its bound, so that rounding in float32 does not exceed the bound."""
ClipBy = Literal["coordinate", "image"]
"""What a clip bounds: each coordinate, or the L2 norm of an image's smashed data."""

_IN_PLACE = (
    "noise_in_place=true: the noise was written into the client's own tensor, the fault of accurate_sl's released "
    "code, so that a tanh before it had a wrong gradient; the accuracy is not that of the method"
)


def widened(values: Tensor) -> Tensor:
    """The values as float32 or wider, since bfloat16 rounds a bound of 0.15 up by 0.3 % and makes noise coarse."""
    return values if values.dtype == torch.float64 else values.float()


def clamp(smashed: Tensor, low: float, high: float) -> Tensor:
    """Clamp every coordinate to [low, high], in float32 or wider.

    Clamped coordinates get gradient 0. NaN stays NaN, so that training stops and reports the place of the error.
    """
    return widened(smashed).clamp(low, high)


def shrink(smashed: Tensor, radius: float) -> Tensor:
    """Scale each image's smashed data [M, B, ...] down to an L2 norm of at most `radius` > 0, as in DP-SGD.

    The result is float32 or wider. Norms stay a millionth below `radius`. Squares are summed by `sum`, which adds them
    pairwise, because `vector_norm` adds them in sequence and underestimates the norm of a million equal coordinates by
    0.06 %.
    """
    wide, unit = widened(smashed), unit_of(radius)
    aim = BELOW * radius * unit
    squared = (wide * unit).flatten(2).square().sum(2).clamp(min=aim * aim)
    return wide * (aim / squared.sqrt()).view(wide.shape[:2] + (1,) * (wide.ndim - 2))


def unit_of(radius: float) -> float:
    """A power of two u with u · radius in [0.5, 1), for a radius > 0 that is not extreme.

    Numbers are multiplied by u before they are squared, so that small squares do not underflow. The exponent is limited
    to ±126.

    >>> unit_of(1.0), unit_of(2.0**-100) * 2.0**-100, unit_of(1e-60) == 2.0**126
    (0.5, 0.5, True)
    """
    return float(2.0 ** -max(-126, min(frexp(radius)[1], 126)))


def clipped(smashed: Tensor, bound: float | None, clip_by: ClipBy) -> Tensor:
    """Clip smashed data [M, B, ...] to the set that `clip_set` describes; without a bound, only widen their dtype."""
    if bound is None:
        return widened(smashed)
    return shrink(smashed, bound) if clip_by == "image" else clamp(smashed, -bound, bound)


def clip_set(bound: float | None, clip_by: ClipBy, coordinates: int) -> ClipSet | None:
    """The accountant's description of the set to which `clipped` clips an image with this number of coordinates."""
    if bound is None:
        return None
    return Ball(radius=bound) if clip_by == "image" else Clamp(low=-bound, high=bound, dimensions=coordinates)


def simplex(labels: Tensor) -> Tensor:
    """Project labels [..., L] to {y ≥ 0, Σy ≤ 1}, a set of diameter √2 in L2 and 2 in L1, as for one-hot labels."""
    positive = widened(labels).clamp(min=0)
    return positive / positive.sum(-1, keepdim=True).clamp(min=1)


def gaussian(values: Tensor, sigma: float, generator: Generator) -> Tensor:
    """The values plus independent N(0, σ²) noise on each number, as a new tensor."""
    drawn = torch.randn(values.shape, generator=generator, device=values.device, dtype=values.dtype)
    return values + sigma * drawn


def laplace(values: Tensor, scale: float, generator: Generator) -> Tensor:
    """The values plus independent Laplace noise of the given scale b (variance 2b²) on each number, as a new tensor.

    The noise is the difference of two exponential variables. Inverse-transform sampling from a float32 uniform would
    return infinity once in 2²⁴ draws.
    """
    pair = torch.empty((2, *values.shape), device=values.device, dtype=values.dtype).exponential_(generator=generator)
    return values + scale * (pair[0] - pair[1])


def overwritten(smashed: Tensor, noisy: Tensor) -> Tensor:
    """Reproduce a bug in the released code of accurate_sl: write the noisy values into `smashed`, hidden from autograd.

    A Tanh before the noise n has saved its output y for the derivative 1 − y², which thus becomes 1 − (y + n)² and can
    be negative.
    """
    smashed.data.copy_(noisy.detach())
    return smashed


def require_one_hot(name: str, labels: Tensor, images: tuple[int, ...]) -> None:
    """Raise a ValueError for labels other than float [*images, L]."""
    if not labels.is_floating_point() or labels.shape[:-1] != images:
        wanted = ", ".join(map(str, images))
        raise ValueError(
            f"{name} changes labels and needs them one-hot, float [{wanted}, L], got {labels.dtype} of shape "
            f"{list(labels.shape)}; use torch.nn.functional.one_hot(labels, L).float()"
        )


def require_images(name: str, smashed: Tensor) -> int:
    """The number of coordinates of one image in smashed data, float [M, B, ...]; raises a ValueError for other data."""
    if smashed.ndim < 3 or not smashed.is_floating_point() or not smashed.numel():
        raise ValueError(
            f"{name} needs smashed data of M messages of B images, float [M, B, ...], got {smashed.dtype} of shape "
            f"{list(smashed.shape)}"
        )
    return smashed[0, 0].numel()


class AddedNoise(OnSmashed[Noised]):
    """Clips smashed data and adds independent noise to every coordinate; the release keeps the data's dtype.

    Attributes:
        place: the party that adds the noise: "client", "mixer" (trusted) or "server", whose noise does not protect
            against the server itself.
        at_inference: whether test images get noise, too.
        noise_in_place: whether to write the noise through `.data` into the client's own tensor, as accurate_sl's code
            does: the release is the same, but a Tanh that precedes the noise gets a wrong gradient. For
            reproduction only.
    """

    effects: ClassVar[frozenset[Effect]] = frozenset({"noises"})
    law: ClassVar[Literal["gaussian", "laplace"]] = "gaussian"
    clip_by: ClipBy = "coordinate"

    clip: float | None
    noise_in_place: bool

    @property
    def added(self) -> Noise:
        """Distribution and scale of the noise."""
        return Noise(law=self.law, smashed=getattr(self, self.noise_fields[0]))

    @property
    def variance(self) -> float:
        """Variance of the noise on every coordinate."""
        return self.added.smashed * self.added.smashed * (1 if self.added.law == "gaussian" else 2)

    @property
    def remarks(self) -> tuple[str, ...]:
        return (_IN_PLACE,) if self.noise_in_place else ()

    def defended(self, smashed: Tensor, generator: Generator) -> tuple[Tensor, Noised]:
        coordinates = require_images(self.name, smashed)
        added, draw = self.added, gaussian if self.law == "gaussian" else laplace
        noisy = draw(clipped(smashed, self.clip, self.clip_by), added.smashed, generator).to(smashed.dtype)
        receipt = Noised(
            clip=clip_set(self.clip, self.clip_by, coordinates),
            noise=added,
            mixing=UNMIXED,
            added_by=self.place,
            at_inference=self.at_inference,
        )
        return overwritten(smashed, noisy) if self.noise_in_place else noisy, receipt

    def public_transform(self, smashed: Tensor) -> Tensor:
        return clipped(smashed.unsqueeze(0), self.clip, self.clip_by)[0].to(smashed.dtype)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(AddedNoise):
    """Gaussian noise on smashed data; differentially private only if they are clipped. Labels are not protected.

    Attributes:
        sigma: standard deviation of the noise, > 0, in units of the smashed data.
        clip: bound c > 0 to which smashed data are clipped; None leaves them unbounded, and then nothing is proven. If
            the model ends in a tanh, c = 1 changes nothing.
        clip_by: "coordinate" clamps each coordinate to [−c, c]; "image" shrinks an image's smashed data to L2 norm c.

    `place`, `at_inference` and `noise_in_place` are explained in `AddedNoise`.

    Source: accurate_sl §3 (noise on the output of the cut's Tanh); patch_shuffling Table I, "GN".

    >>> release, receipt = GaussianNoise(clip=None).apply(torch.zeros(1, 2, 3), torch.zeros(1, 2), Generator())
    >>> release.smashed.shape, receipt.certificate().kind
    (torch.Size([1, 2, 3]), 'nothing')
    """

    name: ClassVar[str] = "gaussian_noise"
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)

    sigma: Magnitude = 0.7
    clip: Magnitude | None = 1.0
    clip_by: ClipBy = "coordinate"
    place: Place = "client"
    at_inference: bool = True
    noise_in_place: bool = False


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(AddedNoise):
    """Laplace noise on smashed data; differentially private only if they are clipped. Labels are not protected.

    Attributes:
        scale: scale b > 0 of the noise, in units of the smashed data; its standard deviation is √2·b.
        clip: bound c > 0: each coordinate is clamped to [−c, c]. None leaves coordinates unbounded, and then nothing is
            proven. There is no option to clip by L2 norm, since ε is at most the L1 distance of neighboring records
            divided by b. For n clamped coordinates, the accountant bounds this distance by 2n·c.

    `place`, `at_inference` and `noise_in_place` are explained in `AddedNoise`.

    Source: accurate_sl appendix B.1. The paper's Table 11 uses √n/b, although the L1 diameter of [−1, 1]^n is 2n.

    >>> _, receipt = LaplaceNoise(scale=4.0).apply(torch.zeros(1, 1, 2), torch.zeros(1, 1), Generator())
    >>> receipt.certificate().epsilon <= 2 * 2 / 4.0
    True
    """

    name: ClassVar[str] = "laplace_noise"
    law = "laplace"
    noise_fields: ClassVar[tuple[str, ...]] = ("scale",)

    scale: Magnitude = 0.7
    clip: Magnitude | None = 1.0
    place: Place = "client"
    at_inference: bool = True
    noise_in_place: bool = False
