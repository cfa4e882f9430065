"""Many images at once, optimized until a known lower segment releases from them what was released from the victims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import cos, isfinite, pi
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privkit.attacks.assign import hungarian, pair_costs, sinkhorn, take
from privkit.attacks.base import AttackDiverged
from privkit.attacks.inversion.known_lower import mix
from privkit.torch_utils.seeded import seeded

STEPS_AN_EPOCH = 100
STEPS_A_ROUND = 25  # of the permutation
EXPLAINED = 1e-4  # 40 dB below a release's own variance it is explained: no metric of images shows what comes after
HOME = 2.0  # nats for a token's own row: batch shuffling that keeps .4 of ten images' tokens
RESTART_NOISE = 0.25
EDGE = 0.02  # a sigmoid's gradient dies at 0 and 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Released rows of k images each, and what is known before the first step.

    Attributes:
        smashed: [N, ...], as in `View`.
        start: [N·k, C, H, W] in [0, 1].
        unit: variance of the whole release: a matching error is given in it.
        mixed: k.
        weights: public weights [N, k, T], or None.
        anchor: like `start`: images that the guess is kept near; None for the start.
        places: [N, T, T] nats of released token t at place s, or None.
        group: rows over which tokens were shuffled; 1 if inside each row.
    """

    smashed: Tensor
    start: Tensor
    unit: Tensor
    mixed: int = 1
    weights: Tensor | None = None
    anchor: Tensor | None = None
    places: Tensor | None = None
    group: int = 1

    def repeated(self, times: int) -> Problem:
        """The same rows several times over."""

        def again(x: Tensor) -> Tensor:
            return x.repeat(times, *[1] * (x.ndim - 1))

        return replace(
            self,
            smashed=again(self.smashed),
            start=again(self.start),
            weights=None if self.weights is None else again(self.weights),
            anchor=None if self.anchor is None else again(self.anchor),
            places=None if self.places is None else again(self.places),
        )


@dataclass(frozen=True, kw_only=True)
class Method:
    """How images are optimized; the meaning and the ranges of all fields are `WhiteBox`'s."""

    epochs: int
    learning_rate: float
    decay: bool
    bounds: Literal["sigmoid", "project", "none"]
    temperature: float
    order: Literal["known", "shuffled", "batch", "guessed"]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Images [N·k, C, H, W] in [0, 1], the objective of each row [N], and its mean after each epoch."""

    images: Tensor
    objective: Tensor
    curve: list[float]


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, down plus across, of each image.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
    tensor([1.])
    """
    down, across = images.diff(dim=2).abs(), images.diff(dim=3).abs()
    return down.flatten(1).mean(1) + across.flatten(1).mean(1)


def fit(
    lower: nn.Module,
    problem: Problem,
    method: Method,
    priors: tuple[float | Tensor, float | Tensor],
    seed: int,
    saved: dict[str, Any] | None = None,
    after_epoch: Callable[[dict[str, Any]], None] = lambda state: None,
) -> Fit:
    """Minimize the matching error of all rows, each independent of the others (Adam works coordinate by coordinate).

    Args:
        lower: of `frozen`.
        problem: the rows.
        method: the recipe.
        priors: weights of total variation and of the mean squared distance from the anchor, for all rows or [N] each.
        seed: of the guessed order and of a lower segment's own draws.
        saved: a state that `after_epoch` was given; None starts afresh.
        after_epoch: called with a state after each epoch.

    Raises:
        AttackDiverged: if the objective is not finite.
    """
    k, device = problem.mixed, problem.smashed.device
    free = problem.start.clone()
    if method.bounds == "sigmoid":
        free = torch.logit(free.clamp(EDGE, 1 - EDGE))
    free.requires_grad_()
    optimizer = torch.optim.Adam([free], lr=method.learning_rate, amsgrad=True)
    curve: list[float] = []
    if saved is not None:
        with torch.no_grad():
            free.copy_(saved["free"])
        optimizer.load_state_dict(saved["optimizer"])
        curve = list(saved["curve"])

    def images() -> Tensor:
        return free.sigmoid() if method.bounds == "sigmoid" else free

    anchor = problem.start if problem.anchor is None else problem.anchor
    target, total = problem.smashed, method.epochs * STEPS_AN_EPOCH
    rearranges = method.order in ("shuffled", "batch")
    if method.order == "guessed":
        target = take(target, _guess(target, seed))

    def objective() -> Tensor:
        x = images()
        unexplained = (mix(lower(x), k, problem.weights) - target).square().flatten(1).mean(1) / problem.unit
        away = (x - anchor).square().flatten(1).mean(1)
        smooth, near = (term.view(-1, k).mean(1) for term in (total_variation(x), away))
        return unexplained + priors[0] * smooth + priors[1] * near

    @torch.no_grad()
    def judged() -> Tensor:
        nonlocal target
        if rearranges:  # rounds blend less and less: only the last one's target compares over epochs
            target = _rearranged(lower, problem, images(), method, 1.0)
        return objective()

    for epoch in range(len(curve), method.epochs):
        with seeded(device, seed + epoch):
            for step in range(epoch * STEPS_AN_EPOCH, (epoch + 1) * STEPS_AN_EPOCH):
                if rearranges and step % STEPS_A_ROUND == 0:
                    target = _rearranged(lower, problem, images(), method, step / total)
                if method.decay:
                    optimizer.param_groups[0]["lr"] = method.learning_rate * (1 + cos(pi * step / total)) / 2
                (free.grad,) = torch.autograd.grad(objective().sum(), free)
                optimizer.step()
                if method.bounds == "project":
                    with torch.no_grad():
                        free.clamp_(0, 1)
            value = judged().mean().item()
        if not isfinite(value) or not free.isfinite().all():
            raise AttackDiverged(f"white_box: the objective is {value} after {(epoch + 1) * STEPS_AN_EPOCH} steps")
        curve.append(max(value, EXPLAINED))
        after_epoch({"free": free.detach(), "optimizer": optimizer.state_dict(), "curve": curve})
    with torch.no_grad(), seeded(device, seed):
        found = problem.start if method.epochs == 0 else images().clamp(0, 1)
        return Fit(images=found.detach().clone(), objective=judged(), curve=curve)


@torch.no_grad()
def _rearranged(lower: nn.Module, problem: Problem, images: Tensor, method: Method, progress: float) -> Tensor:
    """Released tokens on the places where they fit now: blended by Sinkhorn's plan, or one each by the assignment."""
    n, tokens, channels = problem.smashed.shape
    group = problem.group
    released = problem.smashed.reshape(n // group, group * tokens, channels)
    costs = pair_costs(released, lower(images).reshape(released.shape))
    if problem.places is not None:
        costs = costs + problem.places.repeat(1, 1, group).view(n // group, group * tokens, group * tokens)
    scale = 1.0 if problem.places is not None else 0.002  # costs in nats, or in shares of their mean
    if group > 1:  # images that start as one are told apart by nothing else
        row = torch.arange(group * tokens, device=costs.device) // tokens
        costs = costs - HOME * scale * (row.unsqueeze(1) == row)
    if progress >= 0.5 and method.temperature == 0:
        return take(released, hungarian(costs)).view_as(problem.smashed)
    warm = scale * max(method.temperature, 10 ** (1 - 2 * progress))
    return (sinkhorn(costs, warm).transpose(1, 2) @ released).view_as(problem.smashed)


def _guess(tokens: Tensor, seed: int) -> Tensor:
    """One uniform order for each row."""
    draws = torch.Generator().manual_seed(seed)
    return torch.rand(tokens.shape[:2], generator=draws).argsort(1).to(tokens.device)
