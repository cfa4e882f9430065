"""Common parts of passive attacks without queries: training a simulator of the client, and its decoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from privkit.attacks.base import AttackDiverged, NotApplicable, Session, given
from privkit.attacks.fit import Resumable, fit
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation, Reconstruction, check_forms
from privkit.attacks.inversion.budgeted import Budgeted, planned_epochs
from privkit.attacks.inversion.known_lower import check_release, fresh, frozen
from privkit.attacks.inversion.linear_mixtures import Unmixed
from privkit.attacks.inversion.rounds import labels_of
from privkit.attacks.inversion.simulator_networks import Simulator, SimulatorDecoder
from privkit.torch_utils.out_of_memory import in_chunks
from privkit.torch_utils.seeded import seeded

_BETAS = (0.5, 0.999)  # Adam's betas in adversarial training
_CHUNK = 1_000
_SUREST = -60.0  # score of a fake beyond which float32 loses the discriminator's gradient
_SMALLEST = 10  # least number of auxiliary images
_BANDWIDTHS = tuple(2.0**power for power in range(-3, 2))  # Gaussian kernels' σ², in mean squared distances of two rows


class _SimulatorRecipe(Budgeted, Protocol):
    """An attack that simulates the client; `SDAR` describes the fields and their ranges."""

    @property
    def width(self) -> int: ...

    @property
    def batch(self) -> int: ...


_Recipe = TypeVar("_Recipe", bound=_SimulatorRecipe)


def short_of_published(epochs: int | None, share: str, steps: int, batch: int) -> str:
    """Say in a sentence that the attack runs on trained clients, while the published attack runs during training.

    If `epochs` is None, the attack takes `share` (in words) of the audit's epochs. The published attack takes `steps`
    steps of `batch` images.
    """
    taken = f"{share} the budget's" if epochs is None else f"{epochs:,}"
    return (
        f"{taken} epochs on the recorded releases of trained clients, where the authors' attack takes {steps:,} steps "
        f"of {batch} images along with training: not the published strength"
    )


@dataclass(frozen=True, kw_only=True)
class AttackData:
    """The data of an attack: recorded releases, and the adversary's images and labels."""

    # recorded releases [N, ...]; with mixing or several passes, the solved release of each record (`Unmixed`)
    rows: Tensor
    images: Tensor  # auxiliary images [M, C, H, W] in [0, 1]
    labels: Tensor | None = None  # int64 [N], labels of the rows; None if not sent or not used
    own_labels: Tensor | None = None  # int64 [M], labels of the images; None if not used
    upper: nn.Module | None = None  # the server's segment, frozen; None for attacks that do not use it
    classes: int = 0  # number of the server's logits
    lower: nn.Module | None = None  # the client's segment, if its architecture is known
    # function that applies the clients' defense, and unmixing, to a round of smashed data; or None
    imitate: Callable[[Tensor, Generator], Tensor] | None = None
    round_size: int = 1  # number of rows in a round for `imitate`
    seats: Tensor | None = None  # int64, the row of each image that is to be guessed; None for each row once

    @classmethod
    def of(cls, attack: ImageAttack, observation: ImageObservation, lower: nn.Module | None = None) -> AttackData:
        """Collect and check the data of an attack: recorded rows, and the adversary's images and labels.

        The adversary knows the architecture of `lower`, if given; its weights are not used. Raises `NotApplicable` if a
        field is missing, weights of mixed records are hidden, there are too few images, labels are not whole numbers,
        or the server's segment cannot classify the rows.
        """
        check_forms(attack, observation)
        views, device, passes = observation.views, observation.views[0].smashed.device, attack.mounting.passes
        unmixed = Unmixed.of(views, passes) if views[0].mixed > 1 or passes > 1 else None
        rows = torch.cat([view.smashed for view in views]).float() if unmixed is None else unmixed.rows
        own = given(observation.auxiliary).to(device)
        labels, own_labels, upper, classes = None, None, None, 0
        if "auxiliary_labels" in attack.needs and observation.auxiliary_labels is not None:
            labels = labels_of(views) if unmixed is None else unmixed.labels
            own_labels = observation.auxiliary_labels.to(device)
            if own_labels.shape != own.shape[:1] or own_labels.is_floating_point():
                raise NotApplicable(f"{attack.name} needs a whole-number label of each of {len(own)} auxiliary images")
        if len(own) < _SMALLEST:
            raise NotApplicable(f"{attack.name} holds out a tenth of its images: it needs {_SMALLEST}, got {len(own)}")
        if "upper" in attack.needs and observation.upper is not None:
            upper = frozen(observation.upper, device)
            classes = _classes(attack.name, upper, rows, own_labels, labels)
        if lower is not None:
            check_release(frozen(lower, device), views[0], observation.image_shape)
        return cls(
            rows=rows,
            images=own,
            labels=labels,
            own_labels=own_labels,
            upper=upper,
            classes=classes,
            lower=lower,
            imitate=observation.imitate if unmixed is None else unmixed.imitate,
            round_size=observation.batch_size if unmixed is None else 1,
            seats=None if unmixed is None else unmixed.seats,
        )


def _classes(attack: str, upper: nn.Module, rows: Tensor, *labels: Tensor | None) -> int:
    """Count the classes of the server's segment; raise `NotApplicable` if rows or labels do not fit the segment."""
    try:
        with torch.no_grad():
            logits: Tensor = upper(rows[:2])
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise NotApplicable(f"the server's segment does not read rows of {list(rows.shape[1:])}: {reason}") from None
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise NotApplicable(f"{attack} needs a classifier of two or more classes, got {list(logits.shape[1:])} a row")
    for known in labels:
        if known is not None and len(known) and not 0 <= int(known.min()) <= int(known.max()) < logits.shape[1]:
            raise NotApplicable(
                f"labels run from {int(known.min())} to {int(known.max())}, but the server's segment has "
                f"{logits.shape[1]} classes"
            )
    return logits.shape[1]


class SimulatorTraining(Resumable, Generic[_Recipe]):
    """The networks of an attack that simulates the client, with their optimizers and training data.

    It satisfies `privkit.attacks.fit.Training`. A tenth of the adversary's images is held out. `root` is the seed.
    """

    def __init__(self, attack: _Recipe, data: AttackData, root: int) -> None:
        self.attack, self.given, self.root = attack, data, root
        rows, images = data.rows, data.images
        self.device = rows.device
        self.train = len(images) - max(1, len(images) // 10)
        self.unit = rows.std().clamp_min(1e-6)
        shape = (images.shape[1], images.shape[2], images.shape[3])
        with seeded(torch.device("cpu"), root):  # torch's initialisers know only the global generator
            known = data.lower
            simulator = Simulator(rows.cpu(), shape, width=attack.width) if known is None else fresh(known, root)
            parts = {
                "simulator": simulator.requires_grad_(),  # a client's copy may come frozen
                "decoder": SimulatorDecoder(self._with_labels(rows[:1], data.labels).cpu(), shape, width=attack.width),
                **self._discriminators(shape),
            }
        for name, part in parts.items():
            if name != "simulator" or known is None:  # a foreign module may depend on this order of memory
                part.to(memory_format=torch.channels_last)
        self.parts = {name: part.to(self.device) for name, part in parts.items()}
        self.optimizers = {
            name: torch.optim.Adam(part.parameters(), lr=self._rate(name), betas=_BETAS, fused=True)
            for name, part in self.parts.items()
            if list(part.parameters())
        }

    def reconstruct(self, session: Session | None) -> Reconstruction:
        """Train for the attack's epochs, then decode the recorded releases."""
        attack = self.attack
        curve = fit(self, planned_epochs(attack.epochs), session, objective=f"{attack.name}: the held-out error")
        return Reconstruction(images=self.guess(), curve=curve)

    def _discriminators(self, image_shape: tuple[int, int, int]) -> dict[str, nn.Module]:
        return {}

    @abstractmethod
    def _rate(self, name: str) -> float: ...

    @abstractmethod
    def _learn_from(self, own: Tensor, recorded: Tensor, draws: Generator) -> Tensor:
        """Update all networks on images `own` and rows `recorded` (int64 [B] indices); return the sum of losses."""

    def epoch(self, number: int) -> float:
        """Train for one pass over the auxiliary images; return the decoder's MSE on held-out images."""
        losses = self._learn_all(number)
        if not isfinite(losses):
            raise AttackDiverged(f"{self.attack.name}: the losses of epoch {number + 1} add up to {losses}")
        return self.held_out()

    def _learn_all(self, number: int) -> float:
        """Train all networks for one pass over the auxiliary images; return the sum of losses, finite if each is."""
        draws = Generator(self.device).manual_seed(self.root + 1 + number)  # independent of earlier epochs
        batch = min(self.attack.batch, self.train)
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
        """Apply the clients' defense to a simulated release; repeated rows fill the last round."""
        given, count = self.given, len(simulated)
        if given.imitate is None:
            return simulated
        rows = torch.arange(-(-count // given.round_size) * given.round_size, device=self.device) % count
        return given.imitate(simulated[rows], draws)[:count]

    def _learn(self, name: str, loss: Tensor) -> None:
        if name in self.optimizers:
            weights = list(self.parts[name].parameters())
            self._step_down(name, torch.autograd.grad(loss, weights, allow_unused=True))

    def _discriminate(
        self, name: str, real: Tensor, of_real: Tensor | None, fake: Tensor, of_fake: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train a discriminator for one step on real and fake rows, with labels if both kinds of rows have them.

        A discriminator scores each row separately, so one backward pass serves both losses: for a row with score s, the
        gradient of softplus(-s) equals -exp(-s) times the gradient of softplus(s). Returns the discriminator's loss,
        the loss of the network that made `fake`, and the gradient of this second loss at `fake`.
        """
        discriminator, fake = self.parts[name], fake.requires_grad_()
        labels = None if of_real is None or of_fake is None else torch.cat([of_real, of_fake])
        true, false = discriminator(torch.cat([real, fake]), labels).split([len(real), len(fake)])
        loss = functional.softplus(-true).mean() + functional.softplus(false).mean()
        *gradients, slope = torch.autograd.grad(loss, [*discriminator.parameters(), fake], allow_unused=True)
        self._step_down(name, gradients)
        assert slope is not None
        sign = -torch.exp(-false.detach().clamp_min(_SUREST)).view(-1, *[1] * (fake.ndim - 1))
        return loss.detach(), functional.softplus(-false.detach()).mean(), slope * sign

    def _step_down(self, name: str, gradients: Sequence[Tensor | None]) -> None:
        for weight, gradient in zip(self.parts[name].parameters(), gradients, strict=True):
            weight.grad = gradient
        self.optimizers[name].step()

    def _with_labels(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        rows = rows / self.unit
        if self.given.labels is None or labels is None:
            return rows
        onehot = functional.one_hot(labels[: len(rows)], self.given.classes).to(rows.dtype)
        if rows.ndim == 3:
            return torch.cat([rows, onehot.unsqueeze(1).expand(-1, rows.shape[1], -1)], 2)
        onehot = onehot.view(*onehot.shape, *[1] * (rows.ndim - 2))
        return torch.cat([rows, onehot.expand(-1, -1, *rows.shape[2:])], 1)

    def _decode(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        images: Tensor = self.parts["decoder"](self._with_labels(rows, labels))
        return images

    @torch.no_grad()
    def held_out(self) -> float:
        """The MSE at which the decoder reconstructs held-out images from simulated releases."""
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
        """Guess the images behind the recorded rows, [G, C, H, W] in [0, 1]."""
        self.parts["decoder"].eval()
        images = self._decoded(self.given.rows, self.given.labels)
        return images if self.given.seats is None else images[self.given.seats]

    def _decoded(self, rows: Tensor, labels: Tensor | None) -> Tensor:
        return in_chunks(
            lambda part: self._decode(rows[part], None if labels is None else labels[part]), len(rows), _CHUNK
        ).clamp(0, 1)

    def stateful(self) -> dict[str, Any]:
        return {"weights": self.parts, "optimizers": self.optimizers}


class ByLabel:
    """Draws images with given labels; `labels`, int64 [M], are the labels of the M images to draw from."""

    def __init__(self, labels: Tensor) -> None:
        self.rows = labels.argsort(stable=True)
        self.counts = labels.bincount()
        self.starts = self.counts.cumsum(0) - self.counts

    def drawn(self, wanted: Tensor, draws: Generator) -> tuple[Tensor, Tensor]:
        """Draw an image index for each wanted label; return indices and labels, −1 for a label that no image has."""
        inside = (wanted >= 0) & (wanted < len(self.counts))
        known = wanted.clamp(0, len(self.counts) - 1)
        usable = inside & (self.counts[known] > 0)
        place = torch.rand(len(wanted), generator=draws, device=wanted.device, dtype=torch.float64)
        some = (place * len(self.rows)).long()
        own = self.starts[known] + (place * self.counts[known]).long()
        return self.rows[torch.where(usable, own, some)], torch.where(usable, wanted, -1)


def mk_mmd(recorded: Tensor, simulated: Tensor) -> Tensor:
    """How much the distributions of two sets of N ≥ 2 rows [N, ...] differ: an estimate of their squared MMD, a scalar.

    It is the unbiased estimate of the squared maximum mean discrepancy by Gaussian kernels of several widths: within a
    set, no row is compared with itself; between the sets, all pairs count. The constant 2 / (N − 1) is added, as in the
    code of FORA, to keep the values positive.

    Source: Gretton et al. 2012, "A kernel two-sample test", Lemma 6, with the kernels of Long et al. 2015, "Learning
    transferable features with deep adaptation networks".
    """
    count, rows = len(recorded), torch.cat([recorded, simulated]).flatten(1)
    squares = rows.square().sum(1)
    apart = (squares.unsqueeze(1) + squares - 2 * rows @ rows.T).clamp_min(0)
    unit = 2 * apart.detach().mean().clamp_min(1e-12)
    alike = torch.stack([torch.exp(-apart / (width * unit)) for width in _BANDWIDTHS]).sum(0)
    others = 1 - torch.eye(count, device=rows.device, dtype=rows.dtype)
    within = (alike[:count, :count] * others).sum() + (alike[count:, count:] * others).sum()
    return within / (count * (count - 1)) - 2 * alike[:count, count:].mean() + 2 / (count - 1)
