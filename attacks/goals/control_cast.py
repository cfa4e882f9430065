"""The roles in a control experiment of reconstruction: attacked records, the adversary's records, and the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import NotApplicable, Query, View, known_to
from privkit.attacks.goals.identity import identity_lower
from privkit.attacks.goals.learners import Learners
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation
from privkit.attacks.memory import Memory
from privkit.attacks.outputs import guesses_of
from privkit.attacks.scores.tables import commonest_values, right_cells
from privkit.attacks.scores.tokens import rouge_1
from privkit.shared.seeds import derive

CONTROL_IMAGES = 1_000  # largest number of auxiliary records that take part
_PLAYED = 100  # largest number of attacked records, unless a round has more
_OF_VECTORS, _LONGER = 8, 4
"""The first number is the side in pixels of images that are sent as vectors. The second multiplies the training steps
with vectors, since a decoder must then learn which place each number describes."""
_PROBE_SCALE = 6.0  # factor on logits that least squares put near 0 and 1, since a trained server is more certain


@dataclass(frozen=True, kw_only=True)
class Cast:
    """The roles in one control experiment: the attack, the adversary's records, and the attacked records."""

    attack: ImageAttack  # the attack in its short version
    own: Tensor  # the adversary's records, with their labels
    own_labels: Tensor
    victims: Tensor  # the attacked records, with their labels
    victim_labels: Tensor
    mean: Tensor  # mean of the adversary's records, without the attacked ones
    identity: nn.Module  # the lower segment that outputs the record itself
    batch_size: int  # records per round
    columns: tuple[int, ...]  # categories of each column of a table, as in `ImageObservation`; else empty
    texts: bool  # whether records are sequences of ids
    real: bool  # whether noise has the real release's shape: images are not shrunk, and the attack needs no `lower`
    memory: Memory | None  # cache of what other attacks learned in their controls

    @classmethod
    def of(cls, attack: ImageAttack, observation: ImageObservation, shorter: int = 1) -> Cast:
        """Divide the auxiliary records into attacked records and the adversary's own. `shorter` divides the attack's
        training steps. Raises `NotApplicable` if there are too few records, or no recorded round."""
        if observation.auxiliary is None or not observation.views:
            raise NotApplicable("controls need auxiliary records, and a view that gives the noise its shape")
        auxiliary, batch_size = observation.auxiliary, observation.batch_size
        labels = observation.auxiliary_labels
        if labels is None:
            labels = torch.zeros(len(auxiliary), dtype=torch.int64, device=auxiliary.device)
        if "clients" not in attack.needs:  # a server that trains clients needs all images
            auxiliary, labels = auxiliary[-CONTROL_IMAGES:], labels[-CONTROL_IMAGES:]
        whole, mounting = auxiliary.shape, attack.mounting
        auxiliary, longer = small(auxiliary, mounting.control_side, observation.views[0].smashed)
        quarter = played_by(len(auxiliary), batch_size)
        if quarter == 0:
            raise NotApplicable(f"controls need at least {4 * batch_size} auxiliary records, got {len(auxiliary)}")
        own, own_labels = auxiliary[:-quarter], labels[:-quarter]
        texts = not own.is_floating_point() and not observation.columns
        mean = own.mode(0).values if texts else own.float().mean(0)
        if mounting.returns_auxiliary:
            own, own_labels = auxiliary, labels
        return cls(
            attack=as_control(attack, len(own), batch_size, shorter / longer),
            own=own,
            own_labels=own_labels,
            victims=auxiliary[-quarter:],
            victim_labels=labels[-quarter:],
            mean=mean,
            identity=identity_lower(observation.views[0].smashed, tuple(auxiliary.shape[1:]), observation.columns),
            batch_size=batch_size,
            columns=observation.columns,
            texts=texts,
            real="lower" not in attack.needs and auxiliary.shape == whole,
            memory=observation.memory,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.victims.shape[1:])

    @property
    def what(self) -> str:
        """The noun for one record, such as "image"."""
        return "image" if len(self.shape) == 3 else "record"

    @property
    def hijacks(self) -> bool:
        """Whether the attack takes over the training."""
        return "clients" in self.attack.needs

    def guess(self, shown: ImageObservation, draws: Generator, rows: int | None = None) -> Tensor:
        """Run the attack and return its guesses, [rows, ...]; by default one row for each attacked record."""
        rows = len(self.victims) if rows is None else rows
        return guesses_of(self.attack, self.attack.run(shown, draws), rows, self.shape).images

    def draws(self, seed: int, name: str) -> tuple[Generator, int]:
        """The random generator of the control with this name, and the generator's seed."""
        start = derive(seed, "control", name)
        return Generator(self.own.device).manual_seed(start), start

    def own_draws(self, seed: int) -> Generator:
        """The attack's own random generator in the control in which it must succeed."""
        return Generator().manual_seed(derive(seed, "control", "identity", "attack"))

    @property
    def measure(self) -> str:
        """The name of the measure that `error` computes."""
        return "one less ROUGE-1" if self.texts else "MSE"

    def errors(self, guess: Tensor, truth: Tensor) -> Tensor:
        """Mean squared error of each record, [N]; for texts 1 − ROUGE-1, which compares token ids in any order."""
        if self.texts:
            return 1 - torch.from_numpy(rouge_1(truth.cpu().numpy(), guess.long().cpu().numpy()))
        return self.sizes(guess.float() - truth.float())

    def error(self, guess: Tensor, truth: Tensor) -> float:
        return self.errors(guess, truth).mean().item()

    def wrong_cells(self, guess: Tensor, truth: Tensor) -> Tensor:
        """The share of wrong cells of each table row, [N]: what verdicts on tables compare."""
        right = right_cells(truth.cpu().numpy(), guess.cpu().numpy(), self.columns)
        return torch.from_numpy(1 - right.mean(1))

    def commonest(self) -> Tensor:
        """The constant table row that is right in most cells of the adversary's records, [C]."""
        own = commonest_values(self.own.cpu().numpy(), self.columns)
        return torch.from_numpy(own).to(self.own.device)

    def sizes(self, apart: Tensor) -> Tensor:
        """Mean square of each record's entries, [N]; in table rows with dense columns, only dense columns count."""
        dense = [place for place, size in enumerate(self.columns) if not size] or slice(None)
        return (apart[:, dense] if self.columns else apart).square().flatten(1).mean(1)

    def shown(
        self,
        attack: ImageAttack,
        views: list[View],
        query: Query,
        lower: nn.Module | None,
        block: nn.Module | None,
        imitate: Callable[[Tensor, Generator], Tensor] | None,
        draws: Generator,
    ) -> ImageObservation:
        """The attack's observation in a control; `lower`, `upper` and `imitate` only if the attack declares them."""
        needs = attack.needs
        return replace(
            self._held(),
            views=views,
            query=query,
            lower=lower if "lower" in needs else None,
            block=block,
            upper=probe_server(query, self.own, self.own_labels, self.batch_size, draws) if "upper" in needs else None,
            imitate=imitate if "imitate" in needs | attack.uses else None,
        )

    def led(self, start: int, noise: bool) -> ImageObservation:
        """The observation in a control of an attack that takes over training; with `noise`, the clients send noise."""
        batch = self.batch_size
        clients = Learners(self.own, self.own_labels, self.victims, self.victim_labels, batch, start, noise)
        return replace(self._held(), views=clients.views(), clients=clients)

    def _held(self) -> ImageObservation:
        return ImageObservation(
            image_shape=cast(tuple[int, int, int], self.shape),  # read by attacks on images only
            columns=self.columns,
            batch_size=self.batch_size,
            auxiliary=self.own,
            auxiliary_labels=self.own_labels if "auxiliary_labels" in known_to(self.attack) else None,
            memory=self.memory,
        )


def as_control(attack: ImageAttack, own: int, batch_size: int, shorter: float = 1) -> ImageAttack:
    """Return the attack's version for controls, which has few training steps. If there is none, return the attack
    itself.

    The number of steps in an epoch is computed from the number `own` of the adversary's records and multiplied by
    `shorter`. Most attacks train for fewer epochs there if an epoch has more steps. A tenth of these records (at least
    one batch) is held out and does not count.
    """
    control, an_epoch = attack.mounting.control, max(1, (own - max(batch_size, own // 10)) // batch_size)
    return attack if control is None else control(max(1, round(shorter * an_epoch)))


def probe_server(query: Query, own: Tensor, labels: Tensor, batch_size: int, draws: Generator) -> nn.Module:
    """Train the server of a control experiment on answers to queries. If a released row mixes several records, its
    target is the label of the first one."""
    sent = own[: len(own) // batch_size * batch_size]
    answers = [query(part, draws) for part in sent.split(batch_size)]
    places = [batch_size * number + answer.members[:, 0].clamp_min(0) for number, answer in enumerate(answers)]
    return _probe(torch.cat([answer.view.smashed for answer in answers]), labels[torch.cat(places)])


def _probe(released: Tensor, labels: Tensor) -> nn.Module:
    rows = released.flatten(1).double()
    inputs = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
    targets = nn.functional.one_hot(labels, int(labels.max()) + 1).double()
    ridge = 1e-2 * len(rows) * torch.eye(len(rows), dtype=inputs.dtype, device=inputs.device)
    weights = (inputs.T @ torch.linalg.solve(inputs @ inputs.T + ridge, targets)).float()
    linear = nn.Linear(weights.shape[0] - 1, weights.shape[1], device=released.device)
    with torch.no_grad():
        linear.weight.copy_(_PROBE_SCALE * weights[:-1].T)
        linear.bias.copy_(_PROBE_SCALE * weights[-1])
    return nn.Sequential(nn.Flatten(), linear)


def played_by(records: int, batch_size: int) -> int:
    """Number of auxiliary records that act as attacked records: 100, or `batch_size` if this is larger; but at most a
    quarter of `records`, and a multiple of `batch_size`.

    >>> played_by(1_000, 50), played_by(200, 50)
    (100, 50)
    """
    return min(records // 4, max(_PLAYED, batch_size)) // batch_size * batch_size


def small(records: Tensor, side: int | None, release: Tensor) -> tuple[Tensor, int]:
    """Shrink images to at most `side` pixels (at most 8 if released as vectors). Return them with a factor on the
    training steps: 4 for vectors, else 1. Records that are not images are unchanged.

    >>> import torch
    >>> images, longer = small(torch.ones(2, 1, 28, 28), None, torch.zeros(5, 64))
    >>> images.shape, longer
    (torch.Size([2, 1, 8, 8]), 4)
    """
    if records.ndim == 4 and release.ndim == 2:
        return _shrunk(records, min(side or _OF_VECTORS, _OF_VECTORS)), _LONGER
    return records if side is None else _shrunk(records, side), 1


def _shrunk(images: Tensor, side: int) -> Tensor:
    height, width = (min(side, pixels) for pixels in images.shape[2:])
    return nn.functional.adaptive_avg_pool2d(images, (height, width))
