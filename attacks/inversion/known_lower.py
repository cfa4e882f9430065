"""Tools for a known lower segment: freeze it, compare it with the release, and mix its output as the clients do."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.mixed_releases import by_cell
from privkit.torch_utils.behind import Behind
from privkit.torch_utils.out_of_memory import in_chunks
from privkit.torch_utils.seeded import seeded
from privkit.torch_utils.without_noise import WithoutNoise

_FIXED_POINT_STEPS = 400
_FIXED = 1e-6  # relative residual at which the iterations stop
_DAMPED, _HASTENED = 0.5, 1.1  # factor on the step after a failed step, and after a successful one
_UNDONE = 1e-3  # relative residual of a row above which a note says that the block was undone only in part
_ROWS_UNDONE = 256  # rows that are undone at a time

_DRAWS, _UNBIASED = 8, 2.0
"""Number of averaged noisy outputs; largest squared bias of the noise-free output, in variances of this average."""
_FRESH_STD = 0.02  # standard deviation of parameters without their own initialization, such as class tokens


def frozen(lower: nn.Module, device: torch.device) -> nn.Module:
    """Copy a segment in evaluation mode, with weights that take no gradient; the original is unchanged."""
    return deepcopy(lower).to(device).eval().requires_grad_(False)


@torch.no_grad()
def quiet(lower: nn.Module, records: Tensor) -> nn.Module:
    """Remove the Gaussian noise that a lower segment draws, for attacks that compare its outputs one by one.

    Returns the segment unchanged if the noise-free output is not the mean of noisy outputs, or if there is no noise.
    Attacks that train through the segment need its noise.
    """
    made = WithoutNoise(lower)
    with seeded(records.device, 0):
        left, drawn = made(records), torch.stack([lower(records) for _ in range(_DRAWS)])
    variance, bias = drawn.var(0).mean(), (left - drawn.mean(0)).square().mean()
    return made if variance > 0 and bias <= _UNBIASED * variance / _DRAWS else lower


def fresh(lower: nn.Module, seed: int) -> nn.Module:
    """Copy a lower segment's architecture, with new weights drawn from `seed`; no weight is kept."""
    clone = deepcopy(lower).cpu().eval()
    with torch.no_grad(), seeded(torch.device("cpu"), seed):
        for parameter in clone.parameters():
            parameter.normal_(std=_FRESH_STD)
        for part in clone.modules():  # torch's modules draw their weights by this method
            for name in ("reset_parameters", "_reset_parameters"):
                if callable(getattr(part, name, None)):
                    getattr(part, name)()
                    break
    return clone


def mixed_release(smashed: Tensor, mixed: int, share: Tensor | None) -> Tensor:
    """Mix smashed data [N·k, ...] with public weights, as the clients do: k consecutive records give one of N rows.

    `share` [N, k, T] is the weight of each record at each of T positions (T = 1: at all positions); None for k = 1.

    Source: the mixing of CutMix and Mixup at the cut, Oh et al., DP-CutMixSL, Eq. 6-7.
    """
    if share is None:
        return smashed
    members = smashed.unflatten(0, (-1, mixed))
    weights = by_cell(share, smashed)
    if weights.shape[2] == 1:
        weights = weights.reshape(*weights.shape[:2], *[1] * (smashed.ndim - 1))
    else:
        weights = weights.unsqueeze(3) if smashed.ndim == 3 else weights.unflatten(2, (1, *smashed.shape[2:]))
    mixture: Tensor = (members * weights).sum(1)
    return mixture


def check_release(lower: nn.Module, view: View, image_shape: tuple[int, int, int]) -> None:
    """Raise `NotApplicable` unless the lower segment maps images of this shape to the shape of the release."""
    try:
        with torch.no_grad():
            given = lower(torch.zeros(1, *image_shape, device=view.smashed.device)).shape[1:]
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        raise NotApplicable(
            f"the lower segment cannot read images of {list(image_shape)} ({error}): give one that takes the images "
            f"themselves, with any preprocessing as its first layer"
        ) from error
    if given != view.smashed.shape[1:]:
        if not view.whole:
            raise NotApplicable(
                f"the lower segment gives {given[0]} tokens per image, of which {view.smashed.shape[1]} were "
                f"released, and it is not known which: take black_box, which reads any number of tokens"
            )
        raise NotApplicable(
            f"the lower segment gives {list(given)} an image, but {list(view.smashed.shape[1:])} was released: a "
            f"defense that changes the shape of the release must be part of the given lower segment"
        )


@torch.no_grad()
def before_block(block: nn.Module, released: Tensor) -> tuple[Tensor, Tensor]:
    """Undo a block that the clients run after the defense: map released tokens to the tokens before the block.

    The block acts on each row alone and is near the identity, such as a transformer block with residual paths. For a
    release y, the tokens z with block(z) = y are found by iterating z + γ·(y − block(z)) for each row, with γ in (0,
    1]. A step that does not reduce the residual is undone, and γ is halved.

    Returns tokens [N, T, D], and the relative residual of each row, [N]. A large residual means failure; a small
    residual means success only if no other tokens give the same release.

    Source: damped fixed points (Krasnoselskij 1955), as for residual blocks in Behrmann et al. 2019, "Invertible
    residual networks", Algorithm 1.
    """
    unit = released.flatten(1).norm(dim=1).clamp_min(torch.finfo(released.dtype).tiny)
    best = released.clone()
    away = released - block(best)
    residual, step = away.flatten(1).norm(dim=1) / unit, torch.ones_like(unit)
    for _ in range(_FIXED_POINT_STEPS):
        if bool((residual <= _FIXED).all()):
            break
        tried = best + step[:, None, None] * away
        left = released - block(tried)
        size = left.flatten(1).norm(dim=1) / unit
        nearer = size < residual
        best, away = (torch.where(nearer[:, None, None], new, old) for new, old in ((tried, best), (left, away)))
        residual = torch.where(nearer, size, residual)
        step = torch.where(nearer, step * _HASTENED, step * _DAMPED).clamp(max=1.0)
    return best, residual


def without_block(observation: ImageObservation) -> tuple[ImageObservation, str]:
    """Undo the block that the clients run after the defense, in the recorded views and in answers to queries.

    Returns the observation as if clients ended before the block, and a sentence on the residual. Without a block, or if
    an adversary without the lower segment cannot undo it, the observation keeps the releases as they are.
    """
    lower, public = observation.lower, observation.block
    if isinstance(lower, Behind):
        public, lower = lower.block, lower.front
    if public is None:
        return observation, ""
    block, residuals = frozen(public, observation.views[0].smashed.device), list[float]()

    def undone(view: View) -> View:
        def part(some: slice) -> Tensor:
            tokens, residual = before_block(block, view.smashed[some])
            residuals.append(float(residual.max()))
            return tokens

        return replace(view, smashed=in_chunks(part, len(view.smashed), _ROWS_UNDONE), cut_gradient=None)

    before = replace(observation.seen_through(undone), lower=lower, block=None)
    most = max(residuals)
    if most > _UNDONE and lower is None:
        told = f"the block behind the defense was not undone: relative residual {most:.1g}"
        return replace(observation, block=None), told
    how = "" if most <= _UNDONE else " only in part, so that what follows is approximate"
    return before, f"the block behind the defense was undone{how}: relative residual at most {most:.1g}"
