"""Optimization of many images at once, until a known lower segment maps them to the recorded releases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, nan, pi
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privkit.attacks.assign import hungarian, pair_costs, sinkhorn, take
from privkit.attacks.fit import Resumable
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.torch_utils.seeded import seeded

STEPS_AN_EPOCH = 100
_STEPS_A_ROUND = 25  # steps in each round of the permutation
_SINKHORN_STEPS = 30
# an error 40 dB below the release's variance counts as explained: no image metric shows smaller errors
_EXPLAINED = 1e-4
_COOLED = 0.5  # share of the cooling of the assignment that a further cycle skips: tokens then have their places
HOME = 2.0  # nats in favor of a token's own row, as if batch shuffling of ten images kept .4 of the tokens there
RESTART_NOISE = 0.25
_EDGE = 0.02  # least distance of the initial pixels from 0 and 1, where a sigmoid's gradient vanishes
_SHRINKAGE = 0.1  # share of the pooled covariance in each place's covariance, since a corner can be black in all images
_PLACE_CHANNELS = 32  # principal components in which the places' Gaussians are fitted
PLACE_NUMBERS = 2**24  # most numbers in memory at a time, 64 MiB in float32; this limit changes no result


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The input of the optimization: released rows, each of k mixed images, and knowledge about the images."""

    smashed: Tensor  # [N, ...], as in `View`
    start: Tensor  # [R, C, H, W] in [0, 1], a guess for each of R records; R = N·k if `records` is None
    unit: Tensor  # variance of the whole release, the unit of matching errors
    mixed: int = 1  # number k of images in a row
    weights: Tensor | None = None  # public weights [N, k, T], or None
    # int64 [N, k], the guesses that belong to each row; None if row n holds guesses n·k to n·k + k − 1
    records: Tensor | None = None
    anchor: Tensor | None = None  # [R, C, H, W], images near which the guess is kept; None for `start`
    places: Tensor | None = None  # [N, T, T], cost in nats of token t at place s, or None
    # number of rows that share guesses or tokens and are kept or restored together; 1 if rows are independent
    group: int = 1

    @property
    def seats(self) -> Tensor | slice:
        return slice(None) if self.records is None else self.records.flatten()

    def repeated(self, times: int) -> Problem:
        def again(x: Tensor) -> Tensor:
            return x.repeat(times, *[1] * (x.ndim - 1))

        first = torch.arange(times, device=self.start.device).repeat_interleave(len(self.smashed)) * len(self.start)
        return replace(
            self,
            smashed=again(self.smashed),
            start=again(self.start),
            weights=None if self.weights is None else again(self.weights),
            records=None if self.records is None else again(self.records) + first.unsqueeze(1),
            anchor=None if self.anchor is None else again(self.anchor),
            places=None if self.places is None else again(self.places),
        )


@dataclass(frozen=True, kw_only=True)
class Method:
    """The method of optimizing images; see `WhiteBox` for the meaning and the ranges of the fields."""

    epochs: int
    learning_rate: float
    decay: bool
    bounds: Literal["sigmoid", "project", "none"]
    temperature: float
    order: Literal["known", "shuffled", "batch", "guessed"]


def neighbor_differences(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of each image [N, C, H, W], vertical plus horizontal: [N]."""
    down, across = images.diff(dim=2).abs(), images.diff(dim=3).abs()
    return down.flatten(1).mean(1) + across.flatten(1).mean(1)


class ImageFit(Resumable):
    """Images that are optimized until a known lower segment maps them to the releases.

    It satisfies `privkit.attacks.fit.Training`. An epoch has a hundred steps. Adam works coordinate by coordinate, so
    released rows do not affect each other. If the optimization goes on beyond its planned epochs (a further cycle),
    Adam and the learning rate start again from the present images, and the search for an order of tokens skips half of
    its cooling. If a further cycle does not lower the objective of a row (or of a group of rows that share images or
    tokens), the earlier images of the row (or group) are restored.
    """

    def __init__(
        self,
        lower: nn.Module,  # the lower segment, as `frozen` returns it
        problem: Problem,  # the rows
        method: Method,  # the recipe
        # weights of total variation and of the mean squared distance from the anchor, for all rows or [N] each
        priors: tuple[float | Tensor, float | Tensor],
        seed: int,  # seed of the guessed order and of a lower segment's own draws
    ) -> None:
        self._lower, self._problem, self._method, self._priors, self._seed = lower, problem, method, priors, seed
        self._free = problem.start.clone()
        if method.bounds == "sigmoid":
            self._free = torch.logit(self._free.clamp(_EDGE, 1 - _EDGE))
        self._free.requires_grad_()
        self._kept = self._free.detach().clone()  # images before this cycle
        self._optimizer = self._adam()
        self._before, self._length = 0, method.epochs  # epochs of the cycles so far, and of this one
        self._anchor = problem.start if problem.anchor is None else problem.anchor
        self._rearranges = method.order in ("shuffled", "batch")
        self._target = problem.smashed
        if method.order == "guessed":
            drawn = torch.rand(self._target.shape[:2], generator=torch.Generator().manual_seed(seed))
            self._target = take(self._target, drawn.argsort(1).to(self._target.device))

    def epoch(self, number: int) -> float:
        """Take a hundred steps; return the mean objective of rows, at least 1e-4, or NaN if a pixel is not finite."""
        method, free, total = self._method, self._free, self._length * STEPS_AN_EPOCH
        now, cooled = number - self._before, _COOLED if self._before else 0.0
        with seeded(free.device, self._seed + number):
            for step in range(now * STEPS_AN_EPOCH, (now + 1) * STEPS_AN_EPOCH):
                if self._rearranges and step % _STEPS_A_ROUND == 0:
                    self._rearrange(cooled + (1 - cooled) * step / total)
                if method.decay:
                    self._optimizer.param_groups[0]["lr"] = method.learning_rate * (1 + cos(pi * step / total)) / 2
                (free.grad,) = torch.autograd.grad(self._objective().sum(), free)
                self._optimizer.step()
                if method.bounds == "project":
                    with torch.no_grad():
                        free.clamp_(0, 1)
            if self._before and now + 1 == self._length:
                self._keep_better()
            value = self._final_objective().mean().item()
        return max(value, _EXPLAINED) if free.isfinite().all() else nan

    def again(self, times: int) -> None:
        self._before = self._length = times * self._method.epochs
        self._kept.copy_(self._free.detach())
        self._optimizer = self._adam()

    def rest(self) -> dict[str, Any]:
        """The state on which a further cycle depends: the images, without Adam's moments."""
        images = self._free.detach()
        return {"free": images, "kept": images, "optimizer": self._adam().state_dict()}

    def guess(self) -> tuple[Tensor, Tensor]:
        """The images of R records, [R, C, H, W] in [0, 1], and the objective of each of N released rows, [N]."""
        with torch.no_grad(), seeded(self._free.device, self._seed):
            images = self._problem.start if self._method.epochs == 0 else self._images().clamp(0, 1)
            return images.detach().clone(), self._final_objective()

    def stateful(self) -> dict[str, Any]:
        return {"free": self._free, "kept": self._kept, "optimizer": self._optimizer}

    def _adam(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([self._free], lr=self._method.learning_rate, amsgrad=True)

    @torch.no_grad()
    def _keep_better(self) -> None:
        """Restore the images of rows, or groups of rows, whose objective this cycle did not lower."""
        reached, now = self._free.clone(), self._final_objective()
        self._free.copy_(self._kept)
        group = self._problem.group
        better = now.view(-1, group).mean(1) < self._final_objective().view(-1, group).mean(1)
        after, before = (images.reshape(len(better), -1) for images in (reached, self._kept))
        self._free.copy_(torch.where(better.unsqueeze(1), after, before).view_as(reached))

    def _images(self) -> Tensor:
        return self._free.sigmoid() if self._method.bounds == "sigmoid" else self._free

    def _objective(self) -> Tensor:
        problem, x = self._problem, self._images()
        seats = problem.seats
        gap = mixed_release(self._lower(x)[seats], problem.mixed, problem.weights) - self._target
        unexplained = gap.square().flatten(1).mean(1) / problem.unit
        away = (x - self._anchor).square().flatten(1).mean(1)
        smooth, near = (term[seats].view(-1, problem.mixed).mean(1) for term in (neighbor_differences(x), away))
        return unexplained + self._priors[0] * smooth + self._priors[1] * near

    @torch.no_grad()
    def _final_objective(self) -> Tensor:
        """The objective of each row, [N], with the sharp order of the last epoch, so that epochs are comparable."""
        if self._rearranges:
            self._rearrange(1.0)
        return self._objective()

    def _rearrange(self, progress: float) -> None:
        self._target = _assigned_tokens(self._lower, self._problem, self._images(), self._method, progress)


@torch.no_grad()
def _assigned_tokens(lower: nn.Module, problem: Problem, images: Tensor, method: Method, progress: float) -> Tensor:
    """Move tokens to the positions that suit the present images: a position gets a blend (Sinkhorn), or one token."""
    n, tokens, channels = problem.smashed.shape
    group = problem.group
    released = problem.smashed.reshape(n // group, group * tokens, channels)
    costs = pair_costs(released, lower(images).reshape(released.shape))
    if problem.places is not None:
        costs = costs + problem.places.repeat(1, 1, group).view(n // group, group * tokens, group * tokens)
    scale = 1.0 if problem.places is not None else 0.002  # costs in nats, or in shares of their mean
    if group > 1:  # nothing else distinguishes images that start alike
        row = torch.arange(group * tokens, device=costs.device) // tokens
        costs = costs - HOME * scale * (row.unsqueeze(1) == row)
    if progress >= 0.5 and method.temperature == 0:
        return take(released, hungarian(costs)).view_as(problem.smashed)
    warm = scale * max(method.temperature, 10 ** (1 - 2 * progress))
    return (sinkhorn(-costs / warm, _SINKHORN_STEPS).exp().transpose(1, 2) @ released).view_as(problem.smashed)


@dataclass(frozen=True, kw_only=True)
class PlaceModel:
    """A Gaussian distribution of released tokens at each position ("place"), in principal components of tokens."""

    mean: Tensor  # mean of all tokens, [D]
    axes: Tensor  # [D, d], map to d principal components of variance 1
    means: Tensor  # [T, d], the mean at each of T places
    factors: Tensor  # [T, d, d], Cholesky factors of the places' covariances

    @classmethod
    def fit(cls, examples: Tensor) -> PlaceModel:
        """Fit the model to the ordered tokens of M ≥ 2 images, [M, T, D], in chunks, since M can be millions."""
        m, t, d = examples.shape
        parts = examples.split(max(1, PLACE_NUMBERS // (t * d)))
        mean = torch.stack([part.sum((0, 1)) for part in parts]).sum(0) / (m * t)
        gram = examples.new_zeros(d, d)
        for part in parts:
            away = (part - mean).flatten(0, 1)
            gram += away.T @ away
        variances, axes = torch.linalg.eigh(gram / (m * t))
        kept = min(_PLACE_CHANNELS, d)
        axes = axes[:, -kept:] / variances[-kept:].clamp_min(1e-6 * variances[-1]).sqrt()
        known = torch.cat([(part - mean) @ axes for part in parts])
        means = known.mean(0)
        known -= means
        own = (known.permute(1, 2, 0) @ known.transpose(0, 1)) / m
        pooled = own.mean(0, keepdim=True) + 1e-3 * torch.eye(kept, device=own.device, dtype=own.dtype)
        factors = torch.linalg.cholesky((1 - _SHRINKAGE) * own + _SHRINKAGE * pooled)
        return cls(mean=mean, axes=axes, means=means, factors=factors)

    def costs(self, released: Tensor) -> Tensor:
        """The cost [N, T, T] of each token of [N, T, D] (axis 1) at each place (axis 2): −ln likelihood + constant."""
        places, kept = self.means.shape
        costs = []
        for part in released.flatten(0, 1).split(max(1, PLACE_NUMBERS // (places * kept))):
            gaps = ((part - self.mean) @ self.axes - self.means.unsqueeze(1)).transpose(1, 2)
            squared = torch.linalg.solve_triangular(self.factors, gaps, upper=False).square().sum(1)
            costs.append((squared / 2 + self.factors.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)).T)
        return torch.cat(costs).view(released.shape[0], released.shape[1], -1)
