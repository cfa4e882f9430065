"""What passive attacks without queries share: a simulator of the client and a decoder of it learn from own images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.base import AttackDiverged, Session
from privkit.attacks.fit import fit
from privkit.attacks.goals.reconstruct import Reconstruction
from privkit.attacks.inversion.budgeted import planned_epochs
from privkit.attacks.inversion.simulator_data import AttackData
from privkit.attacks.inversion.simulator_networks import Simulator, SimulatorDecoder
from privkit.attacks.inversion.unsplit import fresh
from privkit.torch_utils.chunks import in_chunks
from privkit.torch_utils.seeded import seeded

BETAS = (0.5, 0.999)
"""Adam's, of adversarial training."""
_CHUNK = 1_000
_SUREST = -60.0  # score of a fake, beyond which float32 loses what is left of a discriminator's gradient


class SimulatorRecipe(Protocol):
    """The attack's own fields that every such training reads; ranges are `SDAR`'s."""

    @property
    def name(self) -> str:
        """Of the attack."""

    @property
    def epochs(self) -> int | None:
        """Passes over the auxiliary images."""

    @property
    def width(self) -> int:
        """Channels of the first layers."""

    @property
    def batch(self) -> int:
        """Images in a step."""


def short_of_published(epochs: int | None, share: str, steps: int, batch: int) -> str:
    """The sentence on attacks that their authors train along with the clients.

    Args:
        epochs: of the attack; None for a share of a run's.
        share: that share, in words.
        steps: of the authors' attack.
        batch: images in such a step.
    """
    taken = f"{share} the budget's" if epochs is None else f"{epochs:,}"
    return (
        f"{taken} epochs on the recorded releases of trained clients, where the authors' attack takes {steps:,} steps "
        f"of {batch} images along with training: not the published strength"
    )


class SimulatorTraining(ABC):
    """Networks with their optimizers, and the data they learn from; satisfies `privkit.attacks.fit.Training`.

    A tenth of the adversary's images is held out.

    Args:
        recipe: of the attack.
        data: what the adversary recorded and owns.
        root: seed of weights and draws.
    """

    def __init__(self, recipe: SimulatorRecipe, data: AttackData, root: int) -> None:
        self.recipe, self.given, self.root = recipe, data, root
        rows, images = data.rows, data.images
        self.device = rows.device
        self.train = len(images) - max(1, len(images) // 10)
        self.unit = rows.std().clamp_min(1e-6)
        shape = (images.shape[1], images.shape[2], images.shape[3])
        with seeded(torch.device("cpu"), root):  # torch's initialisers know only the global generator
            known = data.lower
            simulator = Simulator(rows.cpu(), shape, width=recipe.width) if known is None else fresh(known, root)
            parts = {
                "simulator": simulator.requires_grad_(),  # a client's copy may come frozen
                "decoder": SimulatorDecoder(self._told(rows[:1], data.labels).cpu(), shape, width=recipe.width),
                **self._discriminators(shape),
            }
        for name, part in parts.items():
            if name != "simulator" or known is None:  # a foreign module may count on the order of its weights
                part.to(memory_format=torch.channels_last)
        self.parts = {name: part.to(self.device) for name, part in parts.items()}
        self.optimizers = {
            name: torch.optim.Adam(part.parameters(), lr=self._rate(name), betas=BETAS, fused=True)
            for name, part in self.parts.items()
            if list(part.parameters())
        }

    def reconstruct(self, session: Session | None) -> Reconstruction:
        """Train for the attack's epochs, then decode what was recorded."""
        objective = f"{self.recipe.name}: the held-out error"
        curve = fit(self, planned_epochs(self.recipe.epochs), session, objective=objective)
        return Reconstruction(images=self.guess(), curve=curve)

    def _discriminators(self, image_shape: tuple[int, int, int]) -> dict[str, nn.Module]:
        """Networks beside simulator and decoder, by name."""
        return {}

    @abstractmethod
    def _rate(self, name: str) -> float: ...
    @abstractmethod
    def _learn_from(self, own: Tensor, recorded: Tensor, draws: Generator) -> Tensor:
        """One step of every network.

        Args:
            own: int64 [B], which own images.
            recorded: int64 [B], which recorded rows.
            draws: of everything random in the step.

        Returns:
            The sum of all losses.
        """

    def epoch(self, number: int) -> float:
        """One pass over the auxiliary images; the decoder's mean square error on held-out ones.

        Raises:
            AttackDiverged: if a loss is not finite.
        """
        losses = self._learn_all(number)
        if not isfinite(losses):
            raise AttackDiverged(f"{self.recipe.name}: the losses of epoch {number + 1} add up to {losses}")
        return self.held_out()

    def _learn_all(self, number: int) -> float:
        """Every part learns from one pass over the auxiliary images; the sum of all losses, finite where all are."""
        draws = Generator(self.device).manual_seed(self.root + 1 + number)  # nothing of earlier epochs is in it
        batch = min(self.recipe.batch, self.train)
        steps = self.train // batch
        order = torch.randperm(self.train, generator=draws, device=self.device)[: steps * batch].view(steps, batch)
        seen = torch.randint(len(self.given.rows), (steps, batch), generator=draws, device=self.device)
        total = torch.zeros((), device=self.device)
        for part in self.parts.values():
            part.train()
        with seeded(self.device, self.root + 1 + number):
            for own, recorded in zip(order, seen, strict=True):
                total = total + self._learn_from(own, recorded, draws)
        return float(total)

    def _sent(self, simulated: Tensor, draws: Generator) -> Tensor:
        """What the clients' defense would make of it, as part of a whole round."""
        given, count = self.given, len(simulated)
        if given.imitate is None:
            return simulated
        rows = torch.arange(-(-count // given.round_size) * given.round_size, device=self.device) % count
        return given.imitate(simulated[rows], draws)[:count]

    def _learn(self, name: str, loss: Tensor) -> None:
        if name in self.optimizers:
            weights = list(self.parts[name].parameters())
            self._go(name, torch.autograd.grad(loss, weights, allow_unused=True))

    def _discriminate(
        self, name: str, real: Tensor, of_real: Tensor | None, fake: Tensor, of_fake: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of a discriminator; its logistic loss, its opponent's loss, and the opponent's gradient at `fake`.

        A discriminator looks at each row alone, so that one backward pass serves both: at the row of score s the
        gradient of softplus(-s) is that of softplus(s), times -exp(-s).
        """
        discriminator, fake = self.parts[name], fake.requires_grad_()
        labels = None if of_real is None or of_fake is None else torch.cat([of_real, of_fake])
        true, false = discriminator(torch.cat([real, fake]), labels).split([len(real), len(fake)])
        loss = functional.softplus(-true).mean() + functional.softplus(false).mean()
        *gradients, slope = torch.autograd.grad(loss, [*discriminator.parameters(), fake], allow_unused=True)
        self._go(name, gradients)
        assert slope is not None
        sign = -torch.exp(-false.detach().clamp_min(_SUREST)).view(-1, *[1] * (fake.ndim - 1))
        return loss.detach(), functional.softplus(-false.detach()).mean(), slope * sign

    def _go(self, name: str, gradients: Sequence[Tensor | None]) -> None:
        for weight, gradient in zip(self.parts[name].parameters(), gradients, strict=True):
            weight.grad = gradient
        self.optimizers[name].step()

    def _told(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """What the decoder reads: rows with the labels, where they are known, as further channels."""
        rows = rows / self.unit
        if self.given.labels is None or labels is None:
            return rows
        onehot = functional.one_hot(labels[: len(rows)], self.given.classes).to(rows.dtype)
        if rows.ndim == 3:
            return torch.cat([rows, onehot.unsqueeze(1).expand(-1, rows.shape[1], -1)], 2)
        onehot = onehot.view(*onehot.shape, *[1] * (rows.ndim - 2))
        return torch.cat([rows, onehot.expand(-1, -1, *rows.shape[2:])], 1)

    def _decode(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        images: Tensor = self.parts["decoder"](self._told(rows, labels))
        return images

    @torch.no_grad()
    def held_out(self) -> float:
        """MSE of the held-out auxiliary images, through simulator and decoder."""
        given = self.given
        images, labels = given.images[self.train :], given.own_labels
        simulator = self.parts["simulator"].eval()
        self.parts["decoder"].eval()
        draws = Generator(self.device).manual_seed(self.root)
        simulated = torch.cat([self._sent(simulator(chunk), draws) for chunk in images.split(_CHUNK)])
        guess = self._decoded(simulated, None if labels is None else labels[self.train :])
        return functional.mse_loss(guess, images).item()

    @torch.no_grad()
    def guess(self) -> Tensor:
        """The images behind the recorded rows."""
        self.parts["decoder"].eval()
        images = self._decoded(self.given.rows, self.given.labels)
        return images if self.given.seats is None else images[self.given.seats]

    def _decoded(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        """Images of many releases, cut to [0, 1]."""
        return in_chunks(
            lambda part: self._decode(rows[part], None if labels is None else labels[part]), len(rows), _CHUNK
        ).clamp(0, 1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": {name: part.state_dict() for name, part in self.parts.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, weights in state["weights"].items():
            self.parts[name].load_state_dict(weights)
        for name, kept in state["optimizers"].items():
            self.optimizers[name].load_state_dict(kept)
