"""The malicious server of FSHA: its training, and its answer to clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import AttackDiverged, NotApplicable, TrainingClients, View, given
from privkit.attacks.fit import Resumable
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.hijack.fsha_networks import End, Networks, hijacking_networks
from privkit.attacks.hijack.gan import PenaltyNorm, all_finite, between, gradient_penalty
from privkit.attacks.inversion.known_lower import mixed_release
from privkit.attacks.inversion.linear_mixtures import Unmixed
from privkit.attacks.inversion.mixed_releases import check_public
from privkit.attacks.inversion.simulator_training import ByLabel
from privkit.attacks.patches import class_tokens
from privkit.torch_utils.seeded import seeded

_DECODED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class FshaRecipe:
    """The settings of `FSHA`, in which the recipe's values replace None. If `end` is None, the range of the first
    release decides."""

    penalty: PenaltyNorm
    penalty_weight: float
    learning_rate: float
    discriminator_rate: float
    discriminator_steps: int
    betas: tuple[float, float]
    width: int
    blocks: int
    end: End | None
    noise: float
    keep: float
    labels: bool
    epoch: int  # training rounds in an epoch
    passes: int


class Server(Resumable):
    """The malicious server of feature-space hijacking: its networks, and the gradient with which it answers each round.

    It satisfies `privkit.attacks.fit.Training`. All three networks ignore a class token; its gradient is 0.
    """

    def __init__(
        self,
        settings: FshaRecipe,  # the recipe of `FSHA`
        view: View,  # a release before the attack
        clients: TrainingClients,  # clients in training, steered by the server
        observation: ImageObservation,  # the server's other knowledge
        auxiliary: Tensor,  # [N, C, H, W] in [0, 1], on the device of the release
        root: int,  # seed of weights and draws
    ) -> None:
        self.settings, self.now, self.root, self.form = settings, 0, root, view.smashed.shape[1:]
        self.mixed, self.clients, self.front = view.mixed, clients, class_tokens(view.smashed)
        by_hand = settings.noise > 0 or settings.keep < 1
        self.imitate, self.round_size = None if by_hand else observation.imitate, observation.batch_size
        solves = view.mixed > 1 or settings.passes > 1
        self.unmixed = Unmixed.of(observation.views, settings.passes) if solves else None
        held_out = max(1, len(auxiliary) // 10)
        self.images, self.held_out = auxiliary[:-held_out] * 2 - 1, auxiliary[-held_out:]
        labels = observation.auxiliary_labels if settings.labels else None
        self.labels = None if labels is None else ByLabel(labels[:-held_out].to(auxiliary.device))
        with seeded(torch.device("cpu"), root):  # torch's initialisers know only the global generator
            self.networks: Networks = hijacking_networks(
                tuple(self._patches(view.smashed).shape[1:]),
                observation.image_shape,
                settings.width,
                settings.end or range_of(view.smashed),
                0 if self.labels is None else len(self.labels.counts),
                settings.blocks,
            )
        for network in vars(self.networks).values():
            network.to(auxiliary.device)
        own = [*self.networks.pilot.parameters(), *self.networks.decoder.parameters()]
        self.on_images = torch.optim.Adam(own, lr=settings.learning_rate, fused=True)
        self.on_discriminator = torch.optim.Adam(
            self.networks.discriminator.parameters(), lr=settings.discriminator_rate, betas=settings.betas, fused=True
        )

    def epoch(self, number: int) -> float:
        """Train for one epoch of rounds, and return the held-out mean squared error of encoder and decoder."""
        draws = Generator(self.images.device).manual_seed(self.root + 1 + number)
        for step in range(self.settings.epoch):
            self.now = number * self.settings.epoch + step
            self.clients.round(lambda view: self.answer(view, draws))
        return self.examine()

    def answer(self, view: View, draws: Generator) -> Tensor:
        """Train all three networks on one round, and return the gradient that the clients receive."""
        pilot, decoder, discriminator = self.networks.pilot, self.networks.decoder, self.networks.discriminator
        if view.mixed != self.mixed or view.smashed.shape[1:] != self.form:
            raise NotApplicable(
                f"fsha was given views of {list(self.form)} with {self.mixed} images per row, but the clients train in "
                f"rounds of {list(view.smashed.shape[1:])} with {view.mixed}"
            )
        real, told = self._patches(view.smashed).detach().clone().requires_grad_(), _told_by(view)
        count = len(real)
        for step in range(self.settings.discriminator_steps):
            rows, labels = self._drawn(count * view.mixed, told, draws)
            images = self.images[rows]
            last = step == self.settings.discriminator_steps - 1
            with torch.set_grad_enabled(last):
                own = pilot(images)
                made = self._sent(own, draws) if view.mixed == 1 else self._mixed(own, view, draws)
            fake = made.detach()
            # one backward pass gives the discriminator's gradient and, with the opposite sign, that of the clients
            scores = discriminator(torch.cat([real, fake]), None if labels is None else labels.repeat(2))
            wanted = scores[count:].mean() - scores[:count].mean()
            points = between(real.detach(), fake, draws)
            steep = gradient_penalty(lambda x, y=labels: discriminator(x, y), points, self.settings.penalty)  # type: ignore[misc]
            real.grad = None
            self.on_discriminator.zero_grad(set_to_none=True)
            (wanted + self.settings.penalty_weight * steep).backward()
            if not last:
                self._go_on(wanted, steep)
                self.on_discriminator.step()
        self.on_images.zero_grad(set_to_none=True)
        read = made if self.unmixed is None else self._solved(own, draws)
        error = (decoder(read) - images).square().mean()
        error.backward()
        gradient = -given(real.grad)
        self._go_on(wanted, steep, error, gradient)
        self.on_discriminator.step()
        self.on_images.step()
        return self._whole(gradient)

    def _patches(self, released: Tensor) -> Tensor:
        return released[:, self.front :]

    def _whole(self, patches: Tensor) -> Tensor:
        return nn.functional.pad(patches, (0, 0, self.front, 0)) if self.front else patches

    def _go_on(self, *values: Tensor) -> None:
        if not all_finite(*(value.detach() for value in values)):
            raise AttackDiverged(
                f"fsha: a loss or the clients' gradient is not finite in round {self.now + 1}; "
                f"the weights after {self.now // self.settings.epoch * self.settings.epoch} rounds are kept"
            )

    def _drawn(self, count: int, told: Tensor | None, draws: Generator) -> tuple[Tensor, Tensor | None]:
        if self.labels is None or told is None:
            return torch.randint(len(self.images), (count,), generator=draws, device=self.images.device), None
        return self.labels.drawn(told, draws)

    def _sent(self, released: Tensor, draws: Generator) -> Tensor:
        """One round of the encoder's releases after the clients' defense, as far as the server knows the defense."""
        if self.imitate is not None:
            return self._patches(self.imitate(self._whole(released), draws))
        if self.settings.noise > 0:
            noise = torch.randn(released.shape, generator=draws, device=released.device)
            released = released + self.settings.noise * noise
        if self.settings.keep < 1:
            chance = torch.rand(released.shape, generator=draws, device=released.device)
            released = released * (chance < self.settings.keep)
        return released

    def _mixed(self, released: Tensor, view: View, draws: Generator) -> Tensor:
        check_public([view])
        weights = view.weights
        if weights is not None and view.clients is not None:
            weights = weights * (view.clients >= 0).unsqueeze(2)
        mixed = mixed_release(self._whole(released), view.mixed, weights)
        noise = torch.randn(mixed.shape, generator=draws, device=mixed.device)
        return self._patches(mixed + given(self.unmixed).noise * noise)

    def _solved(self, released: Tensor, draws: Generator) -> Tensor:
        return self._patches(given(self.unmixed).imitate(self._whole(released), draws))

    @torch.no_grad()
    def examine(self) -> float:
        """The mean squared error of encoder and decoder on held-out images in [0, 1], always with the same noise.

        It raises `AttackDiverged` if the error, a weight of the server, or a release of the clients is not finite.
        """
        draws = Generator(self.held_out.device).manual_seed(self.root)
        total, parts = 0.0, self._examined()
        for part in parts:
            made = self.networks.pilot(part * 2 - 1)
            read = self._sent(made, draws) if self.unmixed is None else self._solved(made, draws)
            image = self.networks.decoder(read) / 2 + 0.5
            total += (image - part).square().sum().item()
        error = total / sum(part.numel() for part in parts)
        weights = [weight for network in vars(self.networks).values() for weight in network.parameters()]
        if not (isfinite(error) and all_finite(*weights)):
            raise AttackDiverged(f"fsha: a weight or held-out error ({error}) is not finite after round {self.now + 1}")
        if not all_finite(*(view.smashed for view in self.clients.views())):
            raise AttackDiverged(f"fsha: what the clients release is not finite after round {self.now + 1}")
        return error

    def _examined(self) -> tuple[Tensor, ...]:
        """The held-out images; if a defense needs whole rounds, the first images fill up the last round."""
        if self.imitate is None:
            return torch.split(self.held_out, _DECODED_AT_ONCE)
        rows = torch.arange(-(-len(self.held_out) // self.round_size) * self.round_size) % len(self.held_out)
        return torch.split(self.held_out[rows.to(self.held_out.device)], self.round_size)

    @torch.no_grad()
    def decoded(self, views: Sequence[View]) -> Tensor:
        """Decode all releases to images in [0, 1]."""
        now = None if self.unmixed is None else Unmixed.of(views, self.settings.passes)
        released = [view.smashed for view in views] if now is None else [now.rows]
        parts = [part for rows in released for part in self._patches(rows).split(_DECODED_AT_ONCE)]
        images = torch.cat([self.networks.decoder(part).float() / 2 + 0.5 for part in parts]).clamp(0, 1)
        return images if now is None else images[now.seats]

    def stateful(self) -> dict[str, Any]:
        optimizers = {"on_images": self.on_images, "on_discriminator": self.on_discriminator}
        return {**vars(self.networks), **optimizers, "clients": self.clients}


def _told_by(view: View) -> Tensor | None:
    labels = view.labels
    return labels if labels is not None and labels.ndim == 1 and not labels.is_floating_point() else None


def range_of(released: Tensor) -> End:
    """Choose a last activation for the server's encoder whose range contains all released numbers, so that no
    discriminator recognizes the encoder's releases by their range."""
    if released.min() >= 0:
        return "relu"
    return "tanh" if released.abs().max() <= 1 else "linear"
