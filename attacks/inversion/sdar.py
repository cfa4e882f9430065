"""SDAR: a passive server trains a simulator of the client on recorded releases, and a decoder for its releases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.base import ReconstructingAttack, Session, given
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.inversion.budgeted import mounted
from privkit.attacks.inversion.simulator_networks import Discriminator
from privkit.attacks.inversion.simulator_training import AttackData, SimulatorTraining, short_of_published
from privkit.constraints import Count, NonNegative, Positive, Whole

_CONTROL_EPOCHS = 10
_PUBLISHED_STEPS, _PUBLISHED_BATCH = 20_000, 128  # as in the authors' released script


@dataclass(frozen=True, kw_only=True)
class SDAR(ReconstructingAttack):
    """Train a network that simulates the client's releases, with the help of the server's own segment, and a decoder.

    A release is the smashed data that a client sends. The simulator maps the adversary's images to simulated releases.
    The server's frozen segment should classify simulated releases correctly, and a discriminator should not distinguish
    simulated from recorded releases. A decoder learns to reconstruct the adversary's images from simulated releases. A
    second discriminator should not distinguish the decoder's images of recorded releases from the adversary's images.
    The attack is passive: it sends nothing, so clients cannot notice it.

    Attributes:
        epochs: number ≥ 0 of epochs over the adversary's (auxiliary) images; 0 trains nothing. None leaves it to an
            audit, which takes half of its budget of epochs; `run` needs a number.
        simulator: "generic" (convolutions that use only the form of the release), or "known" (the client's architecture
            with new random weights, as in UnSplit; needs `lower`).
        learning_rate: learning rate > 0 of Adam on simulator and decoder.
        discriminator_rate: learning rate > 0 of Adam on both discriminators.
        lambda1: weight ≥ 0 of the discriminator's term relative to the cross-entropy in the simulator's objective.
        lambda2: weight ≥ 0 of the second discriminator's term relative to the mean squared error in the decoder's
            objective.
        flip: share in [0, 1) of auxiliary labels replaced by random ones in each step, against overfitting.
        width: number ≥ 1 of channels of the first layers.
        batch: number ≥ 2 of images in a step.
        passes: how many times ≥ 1 the same attacked images were sent, one complete sending after another. If records
            were mixed or sent several times, the attack first solves for each record's own release.

    If integer labels are sent with the releases, discriminators and decoder use them, as in the paper. A tenth of the
    auxiliary images is held out. The result's `curve` is the decoder's MSE on simulated releases of the held-out
    images, which does not show how close the simulator is to the client.

    Source: Zhu et al. 2023, "Passive inference attacks on split learning via adversarial regularization", Section IV.
    The authors' attack runs during training; this attack uses the releases of the trained client.
    """

    name: ClassVar[str] = "sdar"
    uses: ClassVar[frozenset[str]] = frozenset({"imitate"})

    epochs: Whole | None = None
    simulator: Literal["generic", "known"] = "generic"
    learning_rate: Positive = 1e-3
    discriminator_rate: Positive = 1e-3
    lambda1: NonNegative = 0.3
    lambda2: NonNegative = 1e-3
    flip: Annotated[float, Ge(0), Lt(1)] = 0.0
    width: Count = 16
    batch: Annotated[int, Ge(2)] = 32
    passes: Count = 1

    @property
    def needs(self) -> frozenset[str]:
        """Name the required fields: labeled images, the server's segment and, if `simulator` is "known", `lower`."""
        own = frozenset({"auxiliary", "auxiliary_labels", "upper"})
        return own | {"lower"} if self.simulator == "known" else own

    @property
    def mounting(self) -> ImageMounting:
        return replace(
            mounted(self, 0.5),  # an epoch costs twice as much as in other attacks
            control=lambda steps: replace(self, epochs=_CONTROL_EPOCHS),
            passes=self.passes,
            control_side=8,
            short_of_published=short_of_published(self.epochs, "half", _PUBLISHED_STEPS, _PUBLISHED_BATCH),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        root = int(torch.randint(2**48, (1,), generator=generator))
        data = AttackData.of(self, observation, observation.lower if self.simulator == "known" else None)
        return SDARTraining(self, data, root).reconstruct(session)


class SDARTraining(SimulatorTraining[SDAR]):
    """Trains simulator and decoder, each against a discriminator."""

    def _discriminators(self, image_shape: tuple[int, int, int]) -> dict[str, nn.Module]:
        data, width = self.given, self.attack.width
        classes = data.classes if data.labels is not None else 0
        return {
            "releases": Discriminator(data.rows.cpu(), image_shape, width=width, classes=classes),
            "images": Discriminator(data.images.cpu(), image_shape, width=width, classes=classes),
        }

    def _rate(self, name: str) -> float:
        learns = name in ("simulator", "decoder")
        return self.attack.learning_rate if learns else self.attack.discriminator_rate

    def _learn_from(self, own: Tensor, recorded: Tensor, draws: Generator) -> Tensor:
        data = self.given
        labels = given(data.own_labels)[own]
        anew = torch.randint(data.classes, labels.shape, generator=draws, device=self.device)
        flipped = torch.rand(labels.shape, generator=draws, device=self.device) < self.attack.flip
        labels = torch.where(flipped, anew, labels)
        theirs = None if data.labels is None else data.labels[recorded]
        return self._step(data.images[own], labels, data.rows[recorded], theirs, draws)

    def _step(self, images: Tensor, labels: Tensor, rows: Tensor, theirs: Tensor | None, draws: Generator) -> Tensor:
        """Update all four networks, each given the other networks before the step; return the sum of the losses."""
        attack, upper, count = self.attack, given(self.given.upper), len(rows)
        simulated = self._sent(self.parts["simulator"](images), draws)
        adversarial, fooled, push = self._discriminate("releases", rows, theirs, simulated.detach(), labels)
        classified = functional.cross_entropy(upper(simulated.clone()), labels)  # the segment can change its input
        towards = (simulated * (attack.lambda1 * push)).sum()
        self._learn("simulator", classified + towards)
        total = classified.detach() + attack.lambda1 * fooled + adversarial

        both = None if theirs is None else torch.cat([theirs, labels])
        drawn, own = self._decode(torch.cat([rows, simulated.detach()]), both).split([count, len(images)])
        adversarial, fooled, push = self._discriminate("images", images, labels, drawn.detach(), theirs)
        error = functional.mse_loss(own, images)
        self._learn("decoder", error + (drawn * (attack.lambda2 * push)).sum())
        return total + error.detach() + attack.lambda2 * fooled + adversarial
