"""Refinement: a small residual network that corrects guesses, learned from guesses at own images left out of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

import torch
from torch import Tensor, nn

from privkit.attacks.base import Session
from privkit.attacks.fit import Learner, fit
from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.torch_utils.one_cycle import one_cycle
from privkit.torch_utils.seeded import seeded

_STEP_ROWS = 64
_LEARNING_RATE = 1e-3


def correcting(inputs: int, outputs: int, width: int) -> nn.Sequential:
    """A network of two hidden layers with dropout, whose output is 0 before training."""
    last = nn.Linear(width, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    hidden = [nn.Linear(inputs, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*hidden, nn.Dropout(0.1), last)


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """Guesses at own images by fits that never saw these images, so their errors resemble those on victims."""

    guesses: Tensor  # [N, P] in [0, 1]
    truth: Tensor  # the own images, [N, P]
    held: Tensor  # bool [N], from which the network does not learn
    width: int  # of its two hidden layers
    epochs: int  # of its training; 0 leaves guesses as they are
    module: int  # seed of its start
    root: int  # seed of its epochs

    def of(self, guess: Tensor, session: Session | None, attack: str) -> Reconstruction:
        """Train the network, and add to guesses [M, P] the share of its correction that helps held-out guesses most.

        The curve is the error on held-out own images: of the guesses, then of the network after each epoch.
        """
        guesses, truth, held = self.guesses, self.truth, self.held
        curve: tuple[float, ...] = (nn.functional.mse_loss(guesses[held], truth[held]).item(),)
        if not self.epochs:
            return Reconstruction(images=guess, curve=curve)
        with seeded(truth.device, self.module):
            training = _Residual(self)
            curve += fit(training, self.epochs, session, objective=f"{attack}: the held-out error")
        training.network.eval()  # a training that was finished before a kill runs no epoch again
        with torch.no_grad():
            added, missing = training.network(guesses[held]) - guesses[held], truth[held] - guesses[held]
            share = float(((added * missing).sum() / added.square().sum().clamp_min(1e-12)).clamp(0, 1))
            guess = (guess + share * (training.network(guess) - guess)).clamp(0, 1)
        note = f"{100 * share:.0f} % of the network's correction was taken, which guesses left-out images best"
        return Reconstruction(images=guess, curve=curve, note=note)


class _Refiner(nn.Module):
    """A guess plus what two hidden layers make of it; at its start the guess itself."""

    def __init__(self, pixels: int, width: int) -> None:
        super().__init__()
        self.added = correcting(pixels, pixels, width)

    def forward(self, guess: Tensor) -> Tensor:
        refined: Tensor = guess + self.added(guess - 0.5)
        return refined


class _Residual(Learner):
    """Trains the refiner; an epoch tells its error on the images held out."""

    def __init__(self, plan: Refinement) -> None:
        self._guesses, self._truth, self._held, self._seed = plan.guesses, plan.truth, plan.held, plan.root
        network = _Refiner(plan.truth.shape[1], plan.width).to(plan.truth.device)
        optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.05)
        steps = plan.epochs * ceil(int((~plan.held).sum()) / _STEP_ROWS)
        super().__init__(network, optimizer, partial(one_cycle, optimizer, _LEARNING_RATE, warm_up=0.1), steps)

    def epoch(self, number: int) -> float:
        device = self._truth.device
        self.network.train()
        with seeded(device, self._seed + number):
            own = (~self._held).nonzero().squeeze(1)
            for rows in own[torch.randperm(len(own), device=device)].split(_STEP_ROWS):
                self.step(nn.functional.mse_loss(self.network(self._guesses[rows]), self._truth[rows]))
        self.network.eval()
        with torch.no_grad():
            drawn = self.network(self._guesses[self._held]).clamp(0, 1)
        return nn.functional.mse_loss(drawn, self._truth[self._held]).item()
