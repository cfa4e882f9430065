"""SDAR's training: simulator, decoder and two discriminators learn in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.inversion.simulator_data import AttackData
from privkit.attacks.inversion.simulator_networks import Discriminator
from privkit.attacks.inversion.simulator_training import SimulatorTraining

if TYPE_CHECKING:
    from privkit.attacks.inversion.sdar import SDAR


class SDARTraining(SimulatorTraining):
    """Simulator and decoder, each with a discriminator as its opponent."""

    def __init__(self, attack: SDAR, data: AttackData, root: int) -> None:
        self.attack = attack
        super().__init__(attack, data, root)

    def _discriminators(self, image_shape: tuple[int, int, int]) -> dict[str, nn.Module]:
        given, width = self.given, self.attack.width
        told = given.classes if given.labels is not None else 0
        return {
            "releases": Discriminator(given.rows.cpu(), image_shape, width=width, classes=told),
            "images": Discriminator(given.images.cpu(), image_shape, width=width, classes=told),
        }

    def _rate(self, name: str) -> float:
        learns = name in ("simulator", "decoder")
        return self.attack.learning_rate if learns else self.attack.discriminator_rate

    def _learn_from(self, own: Tensor, recorded: Tensor, draws: Generator) -> Tensor:
        given = self.given
        assert given.own_labels is not None
        labels = given.own_labels[own]
        anew = torch.randint(given.classes, labels.shape, generator=draws, device=self.device)
        flipped = torch.rand(labels.shape, generator=draws, device=self.device) < self.attack.flip
        labels = torch.where(flipped, anew, labels)
        theirs = None if given.labels is None else given.labels[recorded]
        return self._step(given.images[own], labels, given.rows[recorded], theirs, draws)

    def _step(self, images: Tensor, labels: Tensor, rows: Tensor, theirs: Tensor | None, draws: Generator) -> Tensor:
        """One step of the four: each sees the others as they were before it, and learns alone."""
        attack, upper, count = self.attack, self.given.upper, len(rows)
        assert upper is not None
        simulated = self._sent(self.parts["simulator"](images), draws)
        adversarial, fooled, push = self._discriminate("releases", rows, theirs, simulated.detach(), labels)
        classified = functional.cross_entropy(upper(simulated.clone()), labels)  # it may work in place
        towards = (simulated * (attack.lambda1 * push)).sum()
        self._learn("simulator", classified + towards)
        total = classified.detach() + attack.lambda1 * fooled + adversarial

        both = None if theirs is None else torch.cat([theirs, labels])
        drawn, own = self._decode(torch.cat([rows, simulated.detach()]), both).split([count, len(images)])
        adversarial, fooled, push = self._discriminate("images", images, labels, drawn.detach(), theirs)
        error = functional.mse_loss(own, images)
        self._learn("decoder", error + (drawn * (attack.lambda2 * push)).sum())
        return total + error.detach() + attack.lambda2 * fooled + adversarial
