"""FSHA: a malicious server trains the clients to send releases that its own decoder can read."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Generator

from privkit.attacks.base import Mounting, NotApplicable, ReconstructingAttack, Session, given
from privkit.attacks.fit import fit
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction, check_forms
from privkit.attacks.hijack.fsha_networks import End
from privkit.attacks.hijack.fsha_server import FshaRecipe, Server
from privkit.attacks.hijack.gan import PenaltyNorm
from privkit.constraints import Count, Fraction, NonNegative, Positive, Whole

ROUNDS_AN_EPOCH = 100
_CONTROL_EPOCHS, _CONTROL_WIDTH = 5, 8
EPOCHS = {"strong": 5, "released": 100}
BLOCKS = {"strong": 2, "released": 6}
_WIDTHS = {"strong": 16, "released": 64}
_RECIPES: dict[str, dict[str, Any]] = {
    "strong": {"penalty_weight": 10.0, "learning_rate": 1e-3, "discriminator_rate": 1e-3, "betas": (0.5, 0.9)},
    "released": {"penalty_weight": 500.0, "learning_rate": 1e-5, "discriminator_rate": 1e-4, "betas": (0.9, 0.999)},
}


@dataclass(frozen=True, kw_only=True)
class FSHA(ReconstructingAttack):
    """Hijack the training, as a malicious server, so that the clients' releases resemble the output of the server's
    encoder.

    A release is the smashed data that a client sends. A discriminator learns to distinguish the clients' releases from
    the releases of the server's encoder (the "pilot"), and its gradient is sent to the clients. A decoder, trained with
    the pilot on the server's own images, then decodes the clients' releases.

    Attributes:
        recipe: default values of the options that are None. "strong": 500 rounds, for a CPU, with the labels that
            clients send. "released": the authors' 10,000 rounds, without labels and with a linear pilot. The defaults
            are given below for "strong" and "released", in this order.
        epochs: number ≥ 0 of epochs of a hundred training rounds, in which the server answers the clients; 5 and 100.
            With 0, nothing is trained, and an untrained decoder decodes the given views.
        penalty: norm of the gradient penalty: "full", the L2 norm over a whole release, or "channel", as in the
            authors' code.
        penalty_weight: weight > 0 of the gradient penalty; 10 and 500.
        learning_rate: learning rate of Adam on pilot and decoder, > 0; 1e-3 and 1e-5.
        discriminator_rate: learning rate of Adam on the discriminator, > 0; 1e-3 (with betas .5 and .9) and 1e-4.
        discriminator_steps: number ≥ 1 of discriminator steps in a round, each with fresh images of the server; the
            authors take one.
        width: number of channels of the first convolution, ≥ 1; 16 and 64.
        blocks: number ≥ 1 of blocks of the discriminator, each with two convolutions; 2 and 6. These blocks cause most
            of a round's cost.
        end: last activation of the pilot, "linear", "relu" or "tanh". It should equal the last activation of the
            clients' lower segments, whose architecture is known. "strong" derives it from the range of the first
            release before the attack; "released" takes "linear".
        noise: standard deviation ≥ 0 of Gaussian noise added to the pilot's releases, so that the decoder learns to
            denoise; meant for clients that add such noise. With noise 0 and keep 1, the pilot's releases go through the
            server's copy of the defense (`ImageObservation.imitate`).
        keep: probability in (0, 1] with which each number of the pilot's noisy releases is kept; others become 0. Meant
            for clients that mask in the same way.
        passes: how many times ≥ 1 the same attacked images are sent after the attack; all rounds of the first sending
            come first.

    A tenth of the server's images is held out. The result's `curve` is the MSE of pilot and decoder on these images,
    for pixels in [0, 1]; it says nothing about the clients' images or the discriminator. The strong recipe gives labels
    to the discriminator if the server's own images also have labels.

    If a defense mixes records with public weights, the pilot's releases are mixed with the weights of each round before
    the discriminator compares them, so the gradient at the cut reaches each mixed record. At the end, each record's
    release is computed from the mixed releases of all passes and then decoded. The decoder learns from the pilot's
    releases after the same treatment (`Unmixed`).

    Source: Pasquini, Ateniese and Bernaschi 2021, "Unleashing the Tiger", §4 and the authors' released settings, with
    the penalty of Gulrajani et al. 2017, Eq. 3.
    """

    name: ClassVar[str] = "fsha"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "clients"})
    uses: ClassVar[frozenset[str]] = frozenset({"auxiliary_labels", "imitate"})

    recipe: Literal["strong", "released"] = "strong"
    epochs: Whole | None = None
    penalty: PenaltyNorm = "full"
    penalty_weight: Positive | None = None
    learning_rate: Positive | None = None
    discriminator_rate: Positive | None = None
    discriminator_steps: Count = 1
    width: Count | None = None
    blocks: Count | None = None
    end: End | None = None
    noise: NonNegative = 0.0
    keep: Fraction = 1.0
    passes: Count = 1

    @property
    def mounting(self) -> ImageMounting:
        width = min(_CONTROL_WIDTH, self.width or _WIDTHS[self.recipe])
        return Mounting(
            passes=self.passes,
            start=None if self.epochs == 0 else replace(self, epochs=0),
            control=lambda steps: replace(self, epochs=_CONTROL_EPOCHS, width=width, passes=1),
            control_side=8,
            short_of_published=self._short_of_published(),
        )

    def run(
        self, observation: ImageObservation, generator: Generator, session: Session | None = None
    ) -> Reconstruction:
        views = observation.views
        check_forms(self, observation)
        auxiliary, clients = given(observation.auxiliary), given(observation.clients)
        if len(auxiliary) < max(2, observation.batch_size):
            raise NotApplicable(
                f"fsha trains on as many own images as a round has ({observation.batch_size}), and holds out a tenth "
                f"of all: it needs at least {max(2, observation.batch_size)} auxiliary images, got "
                f"{len(auxiliary)}"
            )
        auxiliary = auxiliary.to(views[0].smashed.device)
        root = int(torch.randint(2**48, (1,), generator=generator))
        server = Server(self._settings(), views[0], clients, observation, auxiliary, root)
        epochs = EPOCHS[self.recipe] if self.epochs is None else self.epochs
        if epochs == 0:
            return Reconstruction(images=server.decoded(views))
        curve = fit(server, epochs, session, objective="fsha: the held-out error")
        return Reconstruction(images=server.decoded(clients.views()), curve=curve)

    def _short_of_published(self) -> str:
        epochs, own = EPOCHS[self.recipe] if self.epochs is None else self.epochs, self._settings()
        theirs = (EPOCHS["released"], _WIDTHS["released"], BLOCKS["released"])
        if all(a >= b for a, b in zip((epochs, own.width, own.blocks), theirs, strict=True)):
            return ""
        return (
            f"{epochs * ROUNDS_AN_EPOCH:,} rounds at width {own.width} with {own.blocks} blocks, where the authors "
            f"take {theirs[0] * ROUNDS_AN_EPOCH:,} at {theirs[1]} with {theirs[2]}: not the published strength"
        )

    def _settings(self) -> FshaRecipe:
        strong = self.recipe == "strong"
        usual = {**_RECIPES[self.recipe], "width": _WIDTHS[self.recipe], "blocks": BLOCKS[self.recipe]}
        usual |= {"end": None if strong else "linear", "labels": strong, "epoch": ROUNDS_AN_EPOCH}
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own = {name: value for name, value in own.items() if value is not None and name not in ("recipe", "epochs")}
        return FshaRecipe(**{**usual, **own})
