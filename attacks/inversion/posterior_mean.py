"""Posterior mean: the mean image given a very noisy release, learned from images that are each sent many times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, sqrt
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from privkit.attacks.base import Mounting, Query, ReconstructingAttack, Session, View, given
from privkit.attacks.fit import fit
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_rows, whole_rounds
from privkit.attacks.inversion.augment import deformed
from privkit.attacks.inversion.refinement import Guessing, correcting
from privkit.attacks.inversion.rounds import averaged, by_round
from privkit.constraints import Count, NonNegative, Whole
from privkit.torch_utils.seeded import seeded

_POWER_ITERATIONS = 4
_BOUNDS = (inf, 2.0, 1.0, 0.5, 0.25)  # bounds of a released number, in its standard deviations around its mean
_WORTH = 1.05  # numbers are clamped only if this multiplies the signal-to-noise ratio by at least this factor


@dataclass(frozen=True, kw_only=True)
class PosteriorMean(ReconstructingAttack):
    """Guess the mean of all images that could have given a noisy release, by a network trained on noisy releases.

    A release is the smashed data that clients send for an image. The adversary sends each of its images many times. The
    mean release of an image contains hardly any noise, and a release minus this mean is a sample of the noise. Any mean
    plus any noise sample is a training example, so the network sees far more noisy releases than were sent. A release
    enters the network by its coordinates along the largest principal components of the means. The noise must not depend
    on the image: with secret masks, for example, the attack learns the wrong mean.

    If noise has heavy tails, large released numbers carry little information: under strong Laplace noise, the signs of
    the numbers alone carry as much information as the numbers under Gaussian noise of half the variance. So released
    numbers are clamped at the bound with the largest ratio of the variance between the adversary's images to the
    noise's variance. Under Gaussian noise a clamp does not help, so none is used.

    If the attacked images were sent several times, their releases are averaged, and the same number of noise samples is
    averaged for training. For R passes and n releases of an image, these samples are shrunk by √((n - R) / (n - 1)),
    since the mean of the n releases already holds 1/n of the noise's variance.

    Under strong noise, the mean of all likely images is close to many images, although the release may still identify
    the right one. With `contrast`, guesses must also be nearer to their own image than to others: the loss adds the
    cross-entropy of finding each guess's image among 128 images by distance.

    Attributes:
        repeats: how many times ≥ 4 each of the adversary's images is sent. A quarter of these releases gives the
            principal components; the number n of the other releases must be at least `passes`.
        passes: how many times R ≥ 1 the same attacked images were sent, one complete sending after another.
        components: largest number ≥ 1 of principal components.
        epochs: number ≥ 0 of epochs over the adversary's images, of which one round is held out; 0 for the mean image.
            The result's `curve` is the error on this round (with `contrast`, the weighted sum of both errors). If the
            last error is over 5 % larger than the smallest error, the network with the smallest error is used.
        width: number ≥ 1 of units in each of two hidden layers.
        mirror: whether mirrored copies of the training images are also sent and learned from; for natural images.
        copies: number ≥ 0 of copies of each training image, each rotated, scaled, sheared and shifted a little at
            random, that are also sent and learned from.
        contrast: weight ≥ 0 of the contrastive error relative to the squared error; each is divided by the error of a
            constant guess. At 0 the guess is the posterior mean; a larger weight identifies more images, but
            reconstructs them less exactly.

    Raises:
        NotApplicable: by `run`, if a released row mixes images, or the adversary's images fill fewer than two rounds.

    Source: privkit's own. The posterior mean has the least squared error of all guesses (Robert 2007, §2.5.1); clamping
    under heavy-tailed noise: Huber 1964. The contrastive error is InfoNCE (van den Oord et al. 2018) on pixel
    distances, with a learned temperature.
    """

    name: ClassVar[str] = "posterior_mean"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "query"})

    repeats: Annotated[int, Ge(4)] = 48
    passes: Count = 1
    components: Count = 64
    epochs: Whole = 80
    width: Count = 512
    mirror: bool = False
    copies: Whole = 0
    contrast: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passes > self._samples:
            raise ValueError(
                f"posterior_mean samples the noise of passes={self.passes} releases from three quarters of the "
                f"repeats={self.repeats} releases of an own image, which are too few: take repeats of at least "
                f"{self.passes + (self.passes - 1) // 3}"
            )

    @property
    def _samples(self) -> int:
        """The number n of releases per image that serve as samples of the noise."""
        return self.repeats - self.repeats // 4

    @property
    def mounting(self) -> ImageMounting:
        return Mounting(
            passes=self.passes,
            undoes=frozenset({"maps", "scales"}),
            start=None if self.epochs == 0 else replace(self, epochs=0),
            control=lambda an_epoch: replace(self, epochs=ceil(CONTROL_STEPS / an_epoch)),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        check_rows(self, observation)
        views, query, batch = observation.views, given(observation.query), observation.batch_size
        own, device = whole_rounds(self, observation, 2), views[0].smashed.device
        root, module = torch.randint(2**48, (2,), generator=generator).tolist()
        draws = Generator(device).manual_seed(root)
        if self.mirror:
            own = torch.cat([own[:-batch].flip(-1), own])
        own = torch.cat([*(deformed(own[:-batch], draws) for _ in range(self.copies)), own])
        with seeded(device, module), torch.no_grad():
            clamp, middle, basis = self._components(query, own, batch, draws)
            rounds = [averaged([clamp.view(one) for one in same]) for same in by_round(views, self.passes)]
            seen = torch.cat([view.smashed.flatten(1) for view in rounds]).float()
            each = (clamp(_released(query, own, batch, draws)) - middle for _ in range(self._samples))
            sent = torch.stack([one @ basis for one in each])
            scale = sent.flatten(0, 1).std(0).clamp_min(1e-12)
            training = _Denoising(sent / scale, own.flatten(1), batch, self, root)
        curve = fit(training, self.epochs, session, objective="posterior_mean: the held-out error", keep_best=True)
        with torch.no_grad():
            images = training.drawn((seen - middle) @ basis / scale)
        return Reconstruction(images=images.view(-1, *observation.image_shape), curve=curve, note=clamp.note)

    def _components(self, query: Query, own: Tensor, batch: int, draws: Generator) -> tuple[_Clamp, Tensor, Tensor]:
        """Choose the clamp; also return mean [F] and principal components [F, k] of images' mean clamped releases."""
        count = self.repeats // 4
        first = _released(query, own, batch, draws)
        clamps = [_Clamp(first.mean(0), first.std(0), bound) for bound in (_BOUNDS if count > 1 else _BOUNDS[:1])]
        sums = [clamp(first) for clamp in clamps]
        squares = [one.square().sum(0) for one in sums]
        for _ in range(count - 1):
            sent = _released(query, own, batch, draws)
            for number, clamp in enumerate(clamps):
                clamped = clamp(sent)
                sums[number] = sums[number] + clamped
                squares[number] += clamped.square().sum(0)
        gains = [_signal(a, b, count) for a, b in zip(sums, squares, strict=True)] if count > 1 else [0.0]
        best = gains.index(max(gains))
        if gains[0] > 1 or gains[best] < _WORTH * gains[0]:  # the signal exceeds the noise, or a clamp helps little
            best = 0
        means = sums[best] / count
        middle = means.mean(0)
        most = min(self.components, *means.shape)
        return clamps[best], middle, torch.svd_lowrank(means - middle, q=most, niter=_POWER_ITERATIONS)[2]


@dataclass(frozen=True)
class _Clamp:
    """Clamps each number of a release to at most `bound` standard deviations from its mean."""

    middle: Tensor  # [F]
    spread: Tensor  # [F], standard deviations
    bound: float  # clamp in standard deviations; infinite for none

    def __call__(self, rows: Tensor) -> Tensor:
        if not isfinite(self.bound):
            return rows
        return rows.clamp(self.middle - self.bound * self.spread, self.middle + self.bound * self.spread)

    def view(self, view: View) -> View:
        return replace(view, smashed=self(view.smashed.flatten(1)).view_as(view.smashed))

    @property
    def note(self) -> str:
        """A sentence that reports the clamp; empty if `bound` is infinite."""
        if not isfinite(self.bound):
            return ""
        return (
            f"released numbers were clamped at {self.bound:g} standard deviations, since heavy tails of the noise hide "
            "more than they show"
        )


def _signal(sums: Tensor, squares: Tensor, count: int) -> float:
    """The signal-to-noise ratio: the variance between images' mean releases, divided by the noise's variance.

    `sums` [N, F] holds the sum of each image's `count` ≥ 2 releases, `squares` [F] the sum of squares of all releases.
    """
    noise = (squares - sums.square().sum(0) / count).sum() / (len(sums) * (count - 1))
    between = (sums / count).var(0).sum() - noise / count
    return float(between / noise.clamp_min(1e-30))


def _released(query: Query, own: Tensor, batch: int, draws: Generator) -> Tensor:
    """Send each of the adversary's images once, in randomly drawn rounds; return the releases, [N, F]."""
    order = torch.randperm(len(own), generator=draws, device=own.device)
    answers = [query(own[part], draws) for part in order.split(batch)]
    rows = [one.view.smashed.flatten(1).float()[one.row_of_each(batch, "posterior_mean")] for one in answers]
    return torch.cat(rows)[order.argsort()]


class _Denoising(Guessing):
    """Trains a network that guesses N images of P numbers, [N, P], from R releases of k numbers for each, [R, N, k].

    An epoch returns the error on the last `held` images, from which the network does not learn.
    """

    def __init__(self, sent: Tensor, truth: Tensor, held: int, plan: PosteriorMean, seed: int) -> None:
        passes = plan.passes
        self._clean = sent[:, :-held].mean(0)
        shrunk = sqrt((len(sent) - passes) / (len(sent) - 1))
        self._noise = shrunk * (sent[:, :-held] - self._clean).flatten(0, 1)
        self._truth, self._seed, self._passes = truth[:-held], seed, passes
        self._held, self._held_truth = sent[:passes, -held:].mean(0), truth[-held:]
        self._middle = self._truth.mean(0)
        super().__init__(correcting(sent.shape[2], truth.shape[1], plan.width), self._truth, plan.contrast, plan.epochs)

    def epoch(self, number: int) -> float:
        device = self._truth.device
        self.guesser.train()
        with seeded(device, self._seed + number):
            for rows in torch.randperm(len(self._truth), device=device).split(self.error.rows):
                noise = self._noise[torch.randint(len(self._noise), (self._passes, *rows.shape), device=device)]
                guess = self._middle + self.guesser(self._clean[rows] + noise.mean(0))
                self.step(self.error(guess, self._truth[rows]))
        with torch.no_grad():
            held: Tensor = self.error(self.drawn(self._held), self._held_truth)
            return held.item()

    def drawn(self, releases: Tensor) -> Tensor:
        """Guess images [M, P] in [0, 1] from releases [M, k]."""
        self.guesser.eval()
        guess: Tensor = (self._middle + self.guesser(releases)).clamp(0, 1)
        return guess
