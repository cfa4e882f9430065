"""FORA: a passive server trains a simulator of the client until simulated and recorded releases look alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.base import ReconstructingAttack, Session
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.hijack.gan import between, gradient_penalty
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.simulator_networks import Discriminator
from privkit.attacks.inversion.simulator_training import AttackData, SimulatorTraining, mk_mmd, short_of_published
from privkit.constraints import Count, Positive, Probability, Whole

_CONTROL_STEPS = 400  # training steps in control experiments; without labels, the simulator needs many
_RATES = {"strong": 1e-3, "released": 1e-4}
_DISCRIMINATOR_RATES = {"strong": 1e-3, "released": 3e-4}
_PENALTY = 1_000.0  # weight of the gradient penalty on the release
_PUBLISHED_STEPS, _PUBLISHED_BATCH = 40_000, 64  # as in the authors' released script


@dataclass(frozen=True, kw_only=True)
class FORA(ReconstructingAttack):
    """Train a network that simulates the client's releases, without queries, and a decoder that learns from it.

    A release is the smashed data that a client sends. The simulator maps the adversary's images to simulated releases.
    It is trained so that a discriminator cannot distinguish simulated from recorded releases, and so that the
    multi-kernel discrepancy (`mk_mmd`) between the two is small. The decoder learns to reconstruct images from
    simulated releases, and then decodes the recorded releases. The attack is passive: it uses no queries, no labels and
    no segment of the server.

    Attributes:
        epochs: number ≥ 0 of epochs over the adversary's (auxiliary) images; 0 trains nothing. None leaves it to an
            audit, which takes 1.5 times its budget of epochs; `run` needs a number.
        recipe: "strong" (logistic discriminator) or "released" (the authors' Wasserstein critic with gradient penalty).
        mmd_weight: weight w in [0, 1] of the discrepancy; the discriminator has the weight 1 − w.
        learning_rate: learning rate > 0 of Adam on simulator and decoder; None for 1e-3 ("strong") or 1e-4
            ("released").
        discriminator_rate: learning rate > 0 of Adam on the discriminator; None for 1e-3 ("strong") or 3e-4
            ("released").
        width: number of channels of the first layers, ≥ 1.
        batch: number of images in a step, ≥ 2.
        passes: how many times ≥ 1 the same attacked images were sent, one complete sending after another. If records
            were mixed or sent several times, the attack first solves for each record's own release.

    A tenth of the auxiliary images is held out. The result's `curve` is the decoder's MSE on simulated releases of the
    held-out images, which does not show how close the simulator is to the client.

    Source: Xu et al. 2024, "A stealthy wrongdoer: feature-oriented reconstruction attack against split learning", with
    the loss weights of the authors' code. The authors' attack runs during training; this attack uses the releases of
    the trained client.
    """

    name: ClassVar[str] = "fora"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"imitate"})

    epochs: Whole | None = None
    recipe: Literal["strong", "released"] = "strong"
    mmd_weight: Probability = 0.8
    learning_rate: Positive | None = None
    discriminator_rate: Positive | None = None
    width: Count = 16
    batch: Annotated[int, Ge(2)] = 32
    passes: Count = 1

    @property
    def mounting(self) -> ImageMounting:
        return replace(
            mounted(self, 1.5, _CONTROL_STEPS),  # two networks must converge before the decoder is useful
            passes=self.passes,
            control_side=8,
            short_of_published=short_of_published(self.epochs, "1.5 times", _PUBLISHED_STEPS, _PUBLISHED_BATCH),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        root = int(torch.randint(2**48, (1,), generator=generator))
        return FORATraining(self, AttackData.of(self, observation), root).reconstruct(session)


class FORATraining(SimulatorTraining[FORA]):
    """Trains FORA's simulator and decoder, with a discriminator of releases."""

    def _discriminators(self, image_shape: tuple[int, int, int]) -> dict[str, nn.Module]:
        rows = self.given.rows.cpu()
        return {"releases": Discriminator(rows, image_shape, width=self.attack.width, classes=0)}

    def _rate(self, name: str) -> float:
        attack = self.attack
        if name == "releases":
            return attack.discriminator_rate or _DISCRIMINATOR_RATES[attack.recipe]
        return attack.learning_rate or _RATES[attack.recipe]

    def _learn_from(self, own: Tensor, recorded: Tensor, draws: Generator) -> Tensor:
        images, rows, weight = self.given.images[own], self.given.rows[recorded], self.attack.mmd_weight
        simulated = self._sent(self.parts["simulator"](images), draws)
        adversarial, fooled, push = self._oppose(rows, simulated.detach(), draws)
        apart = mk_mmd(rows, simulated)
        self._learn("simulator", weight * apart + (simulated * ((1 - weight) * push)).sum())
        error = functional.mse_loss(self._decode(simulated.detach(), None), images)
        self._learn("decoder", error)
        return self._objective(fooled, apart.detach()) + adversarial + error.detach()

    def _objective(self, fooled: Tensor, apart: Tensor) -> Tensor:
        weight = self.attack.mmd_weight
        return (1 - weight) * fooled + weight * apart

    def _oppose(self, rows: Tensor, fake: Tensor, draws: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Update the discriminator; return its loss, the simulator's loss, and the gradient of the latter at `fake`."""
        if self.attack.recipe == "strong":
            return self._discriminate("releases", rows, None, fake, None)

        def critic(released: Tensor) -> Tensor:
            score: Tensor = self.parts["releases"](released * self.unit, None)
            return score

        real, fake = rows / self.unit, (fake / self.unit).requires_grad_()
        fooled = -critic(fake).mean()
        (push,) = torch.autograd.grad(fooled, fake, retain_graph=True)
        penalty = gradient_penalty(critic, between(real, fake.detach(), draws))
        loss = -fooled - critic(real).mean() + _PENALTY * penalty
        self._learn("releases", loss)
        return loss.detach(), fooled.detach(), push / self.unit
