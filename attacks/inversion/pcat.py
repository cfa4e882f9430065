"""PCAT: a passive server uses its own segment to train a substitute for the client (pseudo-client), and a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.base import Attack, Session, given
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.attacks.inversion.budgeted import mounted, planned_epochs
from privkit.attacks.inversion.known_lower import frozen
from privkit.attacks.inversion.simulator_training import AttackData, ByLabel, SimulatorTraining, mk_mmd
from privkit.constraints import Checked, Count, NonNegative, Positive, Whole

_CONTROL_EPOCHS = 10


@dataclass(frozen=True, kw_only=True)
class PCAT(Checked, Attack[ImageObservation, Reconstruction]):
    """Train a pseudo-client, whose releases the server's segment classifies correctly, and a decoder of its releases.

    A release is the smashed data that a client sends. The pseudo-client, a substitute for the client, maps the
    adversary's labeled images to releases. During its training, each saved state of the server's segment in turn must
    classify these releases correctly. The decoder learns to reconstruct images from these releases, and then decodes
    the clients' releases. The attack sends no queries, so clients cannot notice it.

    Attributes:
        epochs: number ≥ 0 of epochs over the adversary's (auxiliary) images; 0 trains nothing. None leaves it to an
            audit, which takes 1.5 times its budget of epochs; `run` needs a number.
        mmd_weight: weight ≥ 0 of the discrepancy (`mk_mmd`) between the pseudo-client's and the recorded releases,
            relative to the cross-entropy. The paper does not have this term. At 0, the releases of many different
            pseudo-clients are classified correctly, although they differ from the clients' releases.
        learning_rate: learning rate > 0 of Adam on pseudo-client and decoder.
        width: number of channels of the first layers, ≥ 1.
        batch: number of images in a step, ≥ 2.
        passes: how many times ≥ 1 the same attacked images were sent, one complete sending after another. If records
            were mixed or sent several times, the attack first solves for each record's own release.

    If labels are sent unmixed with the releases, each step takes the adversary's images with the same labels as the
    recorded rows: the paper's label alignment. Without saved states of the server's segment, only its final state is
    used. A tenth of the auxiliary images is held out. The result's `curve` is the decoder's MSE on the
    pseudo-client's releases of these images, which does not show how close the pseudo-client is to the client.

    Source: Gao and Zhang 2023, "PCAT: functionality and data stealing from split learning by pseudo-client attack". The
    authors' pseudo-client takes a step in each round of the training; this pseudo-client takes some epochs at each
    saved state. The discrepancy is FORA's.
    """

    name: ClassVar[str] = "pcat"
    goal: ClassVar[str] = "reconstruct"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "auxiliary_labels", "upper"})

    epochs: Whole | None = None
    mmd_weight: NonNegative = 1.0
    learning_rate: Positive = 1e-3
    width: Count = 16
    batch: Annotated[int, Ge(2)] = 32
    passes: Count = 1

    @property
    def uses(self) -> frozenset[str]:
        """Name the optional fields: `imitate` (the public defense) and, unless `epochs` is 0, `upper_history`."""
        return frozenset({"imitate"}) if self.epochs == 0 else frozenset({"imitate", "upper_history"})

    @property
    def mounting(self) -> ImageMounting:
        return replace(
            mounted(self, 1.5),  # an epoch is cheap
            control=lambda steps: replace(self, epochs=_CONTROL_EPOCHS),
            passes=self.passes,
            control_side=8,
            short_of_published="the pseudo-client is trained with some recorded states of the server's segment, while "
            "the authors' takes a step in each round: not the published strength",
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        root = int(torch.randint(2**48, (1,), generator=generator))
        data = AttackData.of(self, observation)
        earlier = [frozen(upper, data.rows.device) for upper in observation.upper_history or ()]
        return PCATTraining(self, data, [*earlier, given(data.upper)], root).reconstruct(session)


class PCATTraining(SimulatorTraining[PCAT]):
    """Trains pseudo-client and decoder; `history` holds the frozen states of the server's segment, oldest first."""

    def __init__(self, attack: PCAT, data: AttackData, history: list[nn.Module], root: int) -> None:
        self._history, self._wanted = history, data.labels
        super().__init__(attack, replace(data, labels=None), root)  # the decoder gets no labels
        self._own = ByLabel(given(data.own_labels)[: self.train])
        self._upper = history[-1]

    def _rate(self, name: str) -> float:
        return self.attack.learning_rate

    def _learn_all(self, number: int) -> float:
        self._upper = self._history[((number + 1) * len(self._history) - 1) // planned_epochs(self.attack.epochs)]
        return super()._learn_all(number)

    def _learn_from(self, own: Tensor, recorded: Tensor, draws: Generator) -> Tensor:
        if self._wanted is not None:
            own, _ = self._own.drawn(self._wanted[recorded], draws)
        simulated = self._sent(self.parts["simulator"](self.given.images[own]), draws)
        loss = self.pretense(own, simulated, recorded)
        self._learn("simulator", loss)
        error = self.error(own, simulated.detach())
        self._learn("decoder", error)
        return loss.detach() + error.detach()

    def pretense(self, own: Tensor, simulated: Tensor, recorded: Tensor) -> Tensor:
        """The pseudo-client's loss: the cross-entropy of its releases, plus their discrepancy from recorded rows."""
        labels = given(self.given.own_labels)[own]
        loss = functional.cross_entropy(self._upper(simulated.clone()), labels)  # the segment can change its input
        if self.attack.mmd_weight:
            loss = loss + self.attack.mmd_weight * mk_mmd(self.given.rows[recorded], simulated)
        return loss

    def error(self, own: Tensor, simulated: Tensor) -> Tensor:
        return functional.mse_loss(self._decode(simulated, None), self.given.images[own])
