"""Tests whether released data lie in the declared clip set, up to the declared noise."""

from __future__ import annotations

from math import log, sqrt
from typing import TYPE_CHECKING

import torch
from scipy.special import chdtrc, ndtri
from torch import Tensor

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.sensitivity import Ball, BoxLabels, Categories, Clamp, ClipSet, Known, OneHot, PatchBall
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.defenses.noise import simplex
from privkit.defenses.residual import LEVEL, ROUNDED, Law
from privkit.recording.replay import Replay

if TYPE_CHECKING:
    from privkit.recording.read import Recording


def beyond(recording: Recording, mechanism: SplitMechanism) -> str:
    """A sentence if releases lie further outside the declared clip set than the noise explains; otherwise empty. The
    clip set is the range of the declared clipping. Noise moves a point out of a convex set by at most the noise's
    length; so a correct recording is refuted with probability at most `LEVEL`."""
    clip = mechanism.smashed
    if isinstance(clip, Known | Categories):
        return ""
    return _far(recording, clip, mechanism) if isinstance(clip, Ball | PatchBall) else _wide(recording, clip, mechanism)


def _far(recording: Recording, clip: Ball | PatchBall, mechanism: SplitMechanism) -> str:
    """The test of `beyond` for a ball and Gaussian noise, on all records (or patches) together and on each alone."""
    found, norms = [], []
    for view in recording.views:
        sent = view.smashed.double()
        patched = isinstance(clip, PatchBall) and sent.ndim == 3 and sent.shape[1] == clip.patches
        scale, out = declared_noise_scale(view.weights, sent, mechanism), sent - _in_ball(clip, sent)
        rows, scales, out = (part.flatten(0, 1) if patched else part.flatten(1) for part in (sent, scale, out))
        most = (1 + ROUNDED) * scales.amax(1).clamp(min=torch.finfo(torch.float64).tiny)
        norms.append(rows.norm(dim=1))
        found.append(((out.norm(dim=1) - 1e-5 * norms[-1]).clamp(min=0) / most).square())
    sizes, freedom = torch.cat(found), rows.shape[1]
    said = f"{'patches' if patched else 'rows'} that lie in its {clip.kind} before their noise, but "
    if float(chdtrc(freedom, float(sizes.max()))) * len(sizes) < LEVEL / 2:
        return f"{said}one of norm {float(torch.cat(norms)[int(sizes.argmax())]):.3g} was released"
    if float(chdtrc(freedom * len(sizes), float(sizes.sum()))) < LEVEL / 2:
        times = sqrt(float(sizes.sum()) / (freedom * len(sizes)))
        return f"{said}they lie {times:.3g} times as far out of it as noise would carry them"
    return ""


def _wide(recording: Recording, clip: Clamp | BoxLabels | OneHot, mechanism: SplitMechanism) -> str:
    least, largest = (clip.low, clip.high) if isinstance(clip, Clamp) else (0.0, 1.0)
    count = sum(view.smashed.numel() for view in recording.views)
    reach = log(count / (2 * LEVEL)) if law_of(mechanism) == "laplace" else float(-ndtri(LEVEL / (2 * count)))
    apart = mechanism.mixing.kind != "none"  # masks leave zeros
    low, high = (min(least, 0.0), max(largest, 0.0)) if apart else (least, largest)
    for view in recording.views:
        sent = view.smashed
        over = torch.maximum(sent - high, low - sent) - declared_noise_scale(view.weights, sent, mechanism) * reach
        over -= 1e-5 * sent.abs()
        if float(over.max()) > 0:
            number = float(sent.flatten()[int(over.argmax())])
            return f"numbers in [{least:g}, {largest:g}] with their noise on them, but {number:.3g} was released"
    return ""


def followed_out(one: Replay, inside: Tensor, scale: Tensor, mechanism: SplitMechanism) -> str:
    """A sentence if releases follow the outputs of the lower segment even outside the clip set; otherwise empty. A
    segment that was recorded without the clipping has outputs outside the set, but a correct release is a point
    of the set plus noise."""
    over = (one.clean - inside).double()
    reach = float(over.square().sum())
    if float(over.abs().max()) <= 1e-4 * float(inside.abs().max()):
        return ""
    along = float((over * (one.released - inside).double()).sum())
    chance = sqrt(float((over * scale).square().sum()) * mechanism.noise.distribution.variance_factor)
    if along < max(0.5 * reach, float(-ndtri(LEVEL / 4)) * chance):
        return ""
    return f"a {mechanism.smashed.kind}, but releases follow lower(truth) out of it, by up to {over.abs().max():.3g}"


def clipped_to(clip: ClipSet | Categories, clean: Tensor) -> Tensor | None:
    """Clip the outputs [N, ...] to the set; None for `Known` and `Categories`, which do not limit the values."""
    if isinstance(clip, Clamp):
        return clean.clamp(clip.low, clip.high)
    if isinstance(clip, BoxLabels):
        return clean.clamp(0, 1)
    if isinstance(clip, OneHot):
        return simplex(clean)
    return _in_ball(clip, clean) if isinstance(clip, Ball | PatchBall) else None


def _in_ball(clip: Ball | PatchBall, clean: Tensor) -> Tensor:
    rows = clean.clamp(min=0) if clip.nonnegative else clean
    if isinstance(clip, PatchBall) and clean.ndim == 3 and clean.shape[1] == clip.patches:
        shrunk: Tensor = clip.radius / rows.norm(dim=2, keepdim=True).clamp(min=clip.radius)
        return rows * shrunk
    radius = clip.radius * (sqrt(clip.patches) if isinstance(clip, PatchBall) else 1.0)
    shrunk = radius / rows.flatten(1).norm(dim=1).clamp(min=radius)
    return rows * shrunk.view(-1, *[1] * (clean.ndim - 1))


def law_of(mechanism: SplitMechanism) -> Law:
    """The law of the noise on single numbers: "laplace" or "gaussian"."""
    return "laplace" if mechanism.noise.law == "laplace" else "gaussian"


def declared_noise_scale(weights: Tensor | None, released: Tensor, mechanism: SplitMechanism) -> Tensor:
    """The declared noise scale (σ or b) of every number of a release [N, ...], float64 of the same shape."""
    scale = torch.tensor(mechanism.noise.smashed, dtype=torch.float64)
    if mechanism.noise.site == "mixer" or weights is None or weights.shape[1] == 1:
        return scale.expand(released.shape)
    ones = torch.ones(len(released) * weights.shape[1], *released.shape[1:])
    return scale * mixed_release(ones, weights.shape[1], weights.square()).sqrt()
