"""Clipping and noise on the smashed data of one image. No function but `overwritten` writes in place."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

from privkit.accountants.spec.sensitivity import Ball, Clamp, ClipSet

ClipBy = Literal["coordinate", "image"]
"""What a clip bounds: each coordinate, or the L2 norm of an image's smashed data."""


IN_PLACE = (
    "noise_in_place=true: the noise was written into the client's own tensor, the fault of accurate_sl's released "
    "code, so that a tanh before it had a wrong gradient; the accuracy is not that of the method"
)
"""Said of every run with the fault."""


def widened(values: Tensor) -> Tensor:
    """At least float32: bfloat16 rounds a bound of 0.15 up by 0.3 %, and its noise has 256 steps a power of two.

    >>> widened(torch.zeros(1, dtype=torch.bfloat16)).dtype, widened(torch.zeros(1, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return values if values.dtype == torch.float64 else values.float()


def clamp(smashed: Tensor, low: float, high: float) -> Tensor:
    """Every coordinate into [low, high]. A NaN stays one, so that training stops and says where.

    Args:
        smashed: float [M, B, ...].
        low: of every coordinate.
        high: of every coordinate.

    Returns:
        At least float32, differentiable; the gradient is 0 where a coordinate was clamped.

    >>> clamp(torch.tensor([-1.0, 0.1, 7.0]), 0.0, 0.5).tolist()
    [0.0, 0.10000000149011612, 0.5]
    """
    return widened(smashed).clamp(low, high)


def shrink(smashed: Tensor, radius: float) -> Tensor:
    """Every image's smashed data into the L2 ball of this radius, as DP-SGD clips gradients.

    Args:
        smashed: float [M, B, ...]; one norm for each of the M·B images.
        radius: C > 0.

    Returns:
        At least float32, differentiable.

    >>> shrink(torch.tensor([[[3.0, 4.0], [0.3, 0.4]]]), 1.0)
    tensor([[[0.6000, 0.8000],
             [0.3000, 0.4000]]])
    """
    wide = widened(smashed)
    norm: Tensor = torch.linalg.vector_norm(wide.flatten(2), dim=2).view(wide.shape[:2] + (1,) * (wide.ndim - 2))
    return wide * (radius / norm.clamp(min=radius))


def clipped(smashed: Tensor, bound: float | None, clip_by: ClipBy) -> Tensor:
    """Smashed data [M, B, ...] in the clip set of `clip_set`; only widened if `bound` is None."""
    if bound is None:
        return widened(smashed)
    return shrink(smashed, bound) if clip_by == "image" else clamp(smashed, -bound, bound)


def clip_set(bound: float | None, clip_by: ClipBy, coordinates: int) -> ClipSet | None:
    """The clip set of `clipped` for an image with this number of coordinates, as the accountant knows it.

    >>> clip_set(2.0, "image", 100)
    Ball(radius=2.0, nonnegative=False)
    """
    if bound is None:
        return None
    return Ball(radius=bound) if clip_by == "image" else Clamp(low=-bound, high=bound, dimensions=coordinates)


def simplex(labels: Tensor) -> Tensor:
    """Project labels into {y ≥ 0, Σy ≤ 1}, which is no wider than the one-hot labels: √2, and 2 in L1.

    Args:
        labels: float [..., L]; one-hot ones do not change.

    >>> simplex(torch.tensor([[0.0, 1.0], [3.0, 1.0]])).tolist()
    [[0.0, 1.0], [0.75, 0.25]]
    """
    positive = widened(labels).clamp(min=0)
    return positive / positive.sum(-1, keepdim=True).clamp(min=1)


def gaussian(values: Tensor, sigma: float, generator: Generator) -> Tensor:
    """The values plus fresh N(0, σ²) noise on every coordinate, as a new tensor.

    Args:
        values: float of any shape, on the generator's device.
        sigma: standard deviation.
        generator: draws the noise.

    >>> z = torch.zeros(2, 3)
    >>> gaussian(z, 1.0, Generator().manual_seed(0)).unique().numel(), z.sum().item()
    (6, 0.0)
    """
    drawn = torch.randn(values.shape, generator=generator, device=values.device, dtype=values.dtype)
    return values + sigma * drawn


def laplace(values: Tensor, scale: float, generator: Generator) -> Tensor:
    """The values plus fresh Laplace noise of scale b (variance 2b²) on every coordinate, as a new tensor.

    The difference of two exponential variables, since inverting a float32 uniform would give infinity once in 2²⁴.

    Args:
        values: float of any shape, on the generator's device.
        scale: b.
        generator: draws the noise.

    >>> laplace(torch.zeros(2, 3), 1.0, Generator().manual_seed(0)).unique().numel()
    6
    """
    pair = torch.empty((2, *values.shape), device=values.device, dtype=values.dtype).exponential_(generator=generator)
    return values + scale * (pair[0] - pair[1])


def overwritten(smashed: Tensor, noisy: Tensor) -> Tensor:
    """The fault of a released code, on purpose: write the noisy values into the tensor behind autograd's back.

    A Tanh before it has saved that tensor for its derivative 1 − y², which becomes 1 − (y + n)² and may be negative.

    Args:
        smashed: the caller's tensor, which is changed.
        noisy: what it holds afterwards.

    >>> z = torch.zeros(2)
    >>> overwritten(z, torch.ones(2)) is z, z.tolist()
    (True, [1.0, 1.0])
    """
    smashed.data.copy_(noisy.detach())
    return smashed


def require_one_hot(name: str, labels: Tensor, images: tuple[int, ...]) -> None:
    """Refuse labels that are not float [..., L] for these images.

    Raises:
        ValueError: it says what was given.

    >>> require_one_hot("dp_sl", torch.eye(2).view(1, 2, 2), (1, 2))
    """
    if not labels.is_floating_point() or labels.shape[:-1] != images:
        wanted = ", ".join(map(str, images))
        raise ValueError(
            f"{name} changes labels and needs them one-hot, float [{wanted}, L], got {labels.dtype} of shape "
            f"{list(labels.shape)}; use torch.nn.functional.one_hot(labels, L).float()"
        )


def require_images(name: str, smashed: Tensor) -> int:
    """Coordinates of one image's smashed data [M, B, ...].

    Raises:
        ValueError: for other shapes or whole numbers.

    >>> require_images("dp_sl", torch.zeros(2, 3, 4, 5))
    20
    """
    if smashed.ndim < 3 or not smashed.is_floating_point() or not smashed.numel():
        raise ValueError(
            f"{name} needs smashed data of M messages of B images, float [M, B, ...], got {smashed.dtype} of shape "
            f"{list(smashed.shape)}"
        )
    return smashed[0, 0].numel()
