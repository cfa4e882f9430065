"""A small residual network that refines an attack's guesses at images.

It learns from guesses at the adversary's images by models that were fitted without these images: only such guesses have
errors like those at attacked images. Optionally, the loss also rewards guesses that identify their image
(`GuessError`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil, log

import torch
from torch import Tensor, nn

from privkit.attacks.base import Session
from privkit.attacks.fit import Learner, fit
from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.torch_utils.one_cycle import one_cycle
from privkit.torch_utils.seeded import seeded

_STEP_ROWS = 64
_CONTRAST_ROWS = 128  # rows among which each guess's image must be found
_COOL = 0.03  # first temperature, as a share of the mean squared distance of two images
_LEARNING_RATE = 1e-3
_SHARES = tuple(tenths / 10 for tenths in range(11))  # shares of the correction that are tried


def correcting(inputs: int, outputs: int, width: int) -> nn.Sequential:
    """Build a network of two hidden layers with dropout, whose output is 0 before training."""
    last = nn.Linear(width, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    hidden = [nn.Linear(inputs, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*hidden, nn.Dropout(0.1), last)


class GuessError(nn.Module):
    """The loss of n guessed images of P pixel values, [n, P], against the true images: the mean squared error.

    With a weight > 0, a contrastive error is added: the cross-entropy of finding a guess's own image among the others
    by distance. Each error is then divided by the same error of a constant guess.

    Source: InfoNCE (van den Oord et al. 2018) on distances of pixels, with a learned temperature.
    """

    def __init__(self, truth: Tensor, weight: float) -> None:
        super().__init__()
        self.rows, self._weight = _CONTRAST_ROWS if weight else _STEP_ROWS, weight
        self._floor = max(float(truth.var(0, correction=0).mean()), 1e-12)
        if weight:
            distance = 2 * self._floor * truth.shape[1]  # between two images, squared, on average
            self.temperature = nn.Parameter(torch.tensor(log(max(_COOL * distance, 1e-12)), device=truth.device))

    def forward(self, guess: Tensor, truth: Tensor) -> Tensor:
        error = nn.functional.mse_loss(guess, truth)
        if not self._weight:
            return error
        away = torch.cdist(guess, truth).square() / self.temperature.exp()
        told = nn.functional.cross_entropy(-away, torch.arange(len(truth), device=truth.device))
        return error / self._floor + self._weight * told / log(max(len(truth), 2))


class Guessing(Learner):
    """Trains a network to guess `truth` [N, P], in batches of `error.rows` rows."""

    def __init__(self, guesser: nn.Module, truth: Tensor, contrast: float, epochs: int) -> None:
        self.guesser, self.error = guesser.to(truth.device), GuessError(truth, contrast)
        both = nn.ModuleList([self.guesser, self.error])
        optimizer = torch.optim.AdamW(both.parameters(), lr=_LEARNING_RATE, weight_decay=0.05)
        steps = epochs * ceil(len(truth) / self.error.rows)
        super().__init__(both, optimizer, partial(one_cycle, optimizer, _LEARNING_RATE, warm_up=0.1), steps)


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """Settings and training data of a correction network; each guess comes from models fitted without its image."""

    guesses: Tensor  # [N, P] in [0, 1], guesses at N images
    truth: Tensor  # the true images, [N, P]
    held: Tensor  # bool [N], the held-out images, from which the network does not learn
    width: int  # width of the network's two hidden layers
    epochs: int  # epochs of the network's training; 0 leaves guesses unchanged
    module: int  # seed of the network's initial weights
    root: int  # seed of the draws in training
    contrast: float = 0.0  # weight of the contrastive error, as in `GuessError`
    share_by_contrast: bool = False  # whether the factor is chosen by both errors; else by the squared error

    def of(self, guess: Tensor, session: Session | None, attack: str) -> Reconstruction:
        """Train a correction network, and add its correction to each of M guesses [M, P] in [0, 1].

        The correction is multiplied by the factor in [0, 1] with the smallest error on held-out images. The result's
        `curve` is the error on the held-out images: first of the guesses, then of the network after each epoch.
        """
        guesses, truth, held = self.guesses, self.truth, self.held
        with seeded(truth.device, self.module):
            training = _Residual(self)
            curve: tuple[float, ...] = (training.held(guesses[held]),)
            if not self.epochs:
                return Reconstruction(images=guess, curve=curve)
            curve += fit(training, self.epochs, session, objective=f"{attack}: the held-out error")
        refiner = training.guesser.eval()  # a training that was finished before a kill runs no epoch again
        with torch.no_grad():
            added, missing = refiner(guesses[held]) - guesses[held], truth[held] - guesses[held]
            share = float(((added * missing).sum() / added.square().sum().clamp_min(1e-12)).clamp(0, 1))
            if self.share_by_contrast:
                tried = [(training.held((guesses[held] + one * added).clamp(0, 1)), one) for one in _SHARES]
                share = min(tried)[1]
            guess = (guess + share * (refiner(guess) - guess)).clamp(0, 1)
        note = (
            f"{100 * share:.0f} % of the network's correction was applied, the share with the smallest error on "
            f"held-out images"
        )
        return Reconstruction(images=guess, curve=curve, note=note)


class _Refiner(nn.Module):
    """A guess plus the output of a network with two hidden layers, which is 0 before training."""

    def __init__(self, pixels: int, width: int) -> None:
        super().__init__()
        self.added = correcting(pixels, pixels, width)

    def forward(self, guess: Tensor) -> Tensor:
        refined: Tensor = guess + self.added(guess - 0.5)
        return refined


class _Residual(Guessing):
    """Trains the refiner; an epoch returns the error on held-out images."""

    def __init__(self, plan: Refinement) -> None:
        self._learned = plan.guesses[~plan.held], plan.truth[~plan.held]
        self._held, self._seed = (plan.guesses[plan.held], plan.truth[plan.held]), plan.root
        super().__init__(_Refiner(plan.truth.shape[1], plan.width), self._learned[1], plan.contrast, plan.epochs)

    def epoch(self, number: int) -> float:
        guesses, truth = self._learned
        self.guesser.train()
        with seeded(truth.device, self._seed + number):
            for rows in torch.randperm(len(truth), device=truth.device).split(self.error.rows):
                self.step(self.error(self.guesser(guesses[rows]), truth[rows]))
        self.guesser.eval()
        with torch.no_grad():
            return self.held(self.guesser(self._held[0]).clamp(0, 1))

    @torch.no_grad()
    def held(self, drawn: Tensor) -> float:
        error: Tensor = self.error(drawn, self._held[1])
        return error.item()
