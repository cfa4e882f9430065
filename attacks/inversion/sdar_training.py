"""SDAR's training: simulator, decoder and two discriminators learn in turn, and can be put away after each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.base import AttackDiverged
from privkit.attacks.inversion.sdar_networks import Decoder, Discriminator, Simulator
from privkit.attacks.inversion.unsplit_training import fresh
from privkit.torch_utils.seeded import seeded

if TYPE_CHECKING:
    from privkit.attacks.inversion.sdar import SDAR

_BETAS = (0.5, 0.999)
CHUNK = 1_000
_SUREST = -60.0  # score of a fake, beyond which float32 loses what is left of a discriminator's gradient


@dataclass(frozen=True, kw_only=True)
class AttackData:
    """What the adversary recorded and owns.

    Attributes:
        rows: recorded releases [N, ...].
        labels: int64 [N], theirs, or None where they do not travel.
        images: auxiliary images [M, C, H, W] in [0, 1].
        own_labels: int64 [M], theirs.
        upper: the server's segment, frozen.
        classes: number of its logits.
        lower: the client's segment where its architecture is known.
        imitate: what the clients' defense makes of a round of smashed data, or None.
        round_size: rows of that round.
    """

    rows: Tensor
    labels: Tensor | None
    images: Tensor
    own_labels: Tensor
    upper: nn.Module
    classes: int
    lower: nn.Module | None = None
    imitate: Callable[[Tensor, Generator], Tensor] | None = None
    round_size: int = 1


class SDARTraining:
    """Four networks with their optimizers, and the data they learn from; satisfies `privkit.attacks.fit.Training`."""

    def __init__(self, attack: SDAR, data: AttackData, root: int) -> None:
        self.attack, self.given, self.root = attack, data, root
        rows, images = data.rows, data.images
        self.device = device = rows.device
        self.train = len(images) - max(1, len(images) // 10)
        self.unit = rows.std().clamp_min(1e-6)
        told = data.classes if data.labels is not None else 0
        shape, width = (images.shape[1], images.shape[2], images.shape[3]), attack.width
        with seeded(torch.device("cpu"), root):  # torch's initialisers know only the global generator
            known = data.lower
            simulator = Simulator(rows.cpu(), shape, width=width) if known is None else fresh(known, root)
            parts = {
                "simulator": simulator.requires_grad_(),  # a client's copy may come frozen
                "decoder": Decoder(self._told(rows[:1], data.labels).cpu(), shape, width=width),
                "releases": Discriminator(rows.cpu(), shape, width=width, classes=told),
                "images": Discriminator(images.cpu(), shape, width=width, classes=told),
            }
        for name, part in parts.items():
            if name != "simulator" or known is None:  # a foreign module may count on the order of its weights
                part.to(memory_format=torch.channels_last)
        self.parts = {name: part.to(device) for name, part in parts.items()}
        rates = {"simulator": attack.learning_rate, "decoder": attack.learning_rate}
        self.optimizers = {
            name: torch.optim.Adam(
                part.parameters(), lr=rates.get(name, attack.discriminator_rate), betas=_BETAS, fused=True
            )
            for name, part in self.parts.items()
            if list(part.parameters())
        }

    def epoch(self, number: int) -> float:
        """One pass over the auxiliary images; the decoder's mean square error on held-out ones.

        Raises:
            AttackDiverged: if a loss is not finite.
        """
        losses = self._learn_all(number)
        if not isfinite(losses):
            raise AttackDiverged(f"sdar: the losses of epoch {number + 1} add up to {losses}")
        return self.held_out()

    def _learn_all(self, number: int) -> float:
        """Every part learns from one pass over the auxiliary images; the sum of all losses, finite where all are."""
        draws = Generator(self.device).manual_seed(self.root + 1 + number)  # nothing of earlier epochs is in it
        batch = min(self.attack.batch, self.train)
        steps = self.train // batch
        order = torch.randperm(self.train, generator=draws, device=self.device)[: steps * batch].view(steps, batch)
        seen = torch.randint(len(self.given.rows), (steps, batch), generator=draws, device=self.device)
        total = torch.zeros((), device=self.device)
        for part in self.parts.values():
            part.train()
        with seeded(self.device, self.root + 1 + number):
            for own, private in zip(order, seen, strict=True):
                labels = self.given.own_labels[own]
                anew = torch.randint(self.given.classes, labels.shape, generator=draws, device=self.device)
                flipped = torch.rand(labels.shape, generator=draws, device=self.device) < self.attack.flip
                labels = torch.where(flipped, anew, labels)
                theirs = None if self.given.labels is None else self.given.labels[private]
                total = total + self._step(self.given.images[own], labels, self.given.rows[private], theirs, draws)
        return float(total)

    def _step(self, images: Tensor, labels: Tensor, rows: Tensor, theirs: Tensor | None, draws: Generator) -> Tensor:
        """One step of the four: each sees the others as they were before it, and learns alone."""
        attack, count = self.attack, len(rows)
        simulated = self._sent(self.parts["simulator"](images), draws)
        adversarial, fooled, push = self._discriminate("releases", rows, theirs, simulated.detach(), labels)
        classified = functional.cross_entropy(self.given.upper(simulated.clone()), labels)  # it may work in place
        towards = (simulated * (attack.lambda1 * push)).sum()
        self._learn("simulator", classified + towards)
        total = classified.detach() + attack.lambda1 * fooled + adversarial

        both = None if theirs is None else torch.cat([theirs, labels])
        drawn, own = self._decode(torch.cat([rows, simulated.detach()]), both).split([count, len(images)])
        adversarial, fooled, push = self._discriminate("images", images, labels, drawn.detach(), theirs)
        error = functional.mse_loss(own, images)
        self._learn("decoder", error + (drawn * (attack.lambda2 * push)).sum())
        return total + error.detach() + attack.lambda2 * fooled + adversarial

    def _sent(self, simulated: Tensor, draws: Generator) -> Tensor:
        """What the clients' defense would make of it, as part of a whole round."""
        given, count = self.given, len(simulated)
        if given.imitate is None:
            return simulated
        rows = torch.arange(-(-count // given.round_size) * given.round_size, device=self.device) % count
        return given.imitate(simulated[rows], draws)[:count]

    def _learn(self, name: str, loss: Tensor) -> None:
        """One step of one part alone."""
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
        """One step of one optimizer."""
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
        """Images of releases."""
        images: Tensor = self.parts["decoder"](self._told(rows, labels))
        return images

    @torch.no_grad()
    def held_out(self) -> float:
        """MSE of the held-out auxiliary images, through simulator and decoder."""
        images, labels = self.given.images[self.train :], self.given.own_labels[self.train :]
        simulator = self.parts["simulator"].eval()
        self.parts["decoder"].eval()
        draws = Generator(self.device).manual_seed(self.root)
        simulated = torch.cat([self._sent(simulator(chunk), draws) for chunk in images.split(CHUNK)])
        guess = torch.cat(
            [self._decode(z, y) for z, y in zip(simulated.split(CHUNK), labels.split(CHUNK), strict=True)]
        )
        return functional.mse_loss(guess.clamp(0, 1), images).item()

    @torch.no_grad()
    def guess(self) -> Tensor:
        """The images behind the recorded rows."""
        self.parts["decoder"].eval()
        labels = (
            self.given.own_labels.new_zeros(len(self.given.rows)) if self.given.labels is None else self.given.labels
        )
        pairs = zip(self.given.rows.split(CHUNK), labels.split(CHUNK), strict=True)
        return torch.cat([self._decode(rows, of_rows) for rows, of_rows in pairs]).clamp(0, 1)

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizers."""
        return {
            "weights": {name: part.state_dict() for name, part in self.parts.items()},
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        for name, weights in state["weights"].items():
            self.parts[name].load_state_dict(weights)
        for name, kept in state["optimizers"].items():
            self.optimizers[name].load_state_dict(kept)
